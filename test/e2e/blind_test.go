package e2e

import (
	"maps"
	"slices"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// blind is an attacker who sees no answer, sends numbers at random to a defence,
// and hopes.
type blind struct {
	defence string
	kind    lab.Kind
	// admits is the edge's verdict with which a guess is taken, and setup the
	// server's that makes a connection of it; "" where there is no agent there.
	admits, setup string
	// chance is that of one guess.
	chance float64
	// besideSYNs: only beside a flood of SYNs are cookies looked at.
	besideSYNs bool
}

const (
	// oneMAC is the chance of a guess against one key (contract/cookie.md).
	oneMAC = 1.0 / (1 << 26)
	// edgeMACs is the mean number of keys that an edge tries: of the three epochs
	// that it accepts, two have one parity and one the other.
	edgeMACs = 1.5
	// proxyNumbers are those that an edge which proxies tries with each key: an ACK's
	// may be one behind (bpf/answer.h).
	proxyNumbers = 2
	// oneChallenge is the chance against one key of a challenge, which has 30 bits.
	oneChallenge = 1.0 / (1 << 30)
	// equalNumbers is how auth-full is met by chance; who knows how it works needs
	// no chance (docs/strategies.md).
	equalNumbers = 1.0 / (1 << 32)
	// kernelCookie is the chance against the kernel's cookie: two minutes of 256, and
	// four values of the 24 bits that have the MSS.
	kernelCookie = 2.0 / (1 << 8) * 4 / (1 << 24)
)

// A server asks as much as its edge has asked and more, so that the edge's chance
// is also that of a connection.
var blinds = []blind{
	{defence: "split", kind: lab.ACK, admits: "pass_cookie", setup: "setup", chance: edgeMACs * oneMAC},
	{defence: "host", kind: lab.ACK, admits: "pass_cookie", setup: "setup", chance: edgeMACs * oneMAC},
	{defence: "host-kernel", kind: lab.ACK, admits: "pass_kernel_cookie", chance: kernelCookie, besideSYNs: true},
	{defence: "proxy", kind: lab.ACK, admits: "pass_cookie", chance: proxyNumbers * edgeMACs * oneMAC},
	{defence: "auth-cookie", kind: lab.ACK, admits: "answer_reset", chance: edgeMACs * oneMAC},
	{defence: "auth-full", kind: lab.ACK, admits: "answer_reset", chance: equalNumbers},
	{defence: "auth-rst", kind: lab.RST, admits: "drop_challenged", chance: edgeMACs * oneChallenge},
}

// unguessed are the defences at which nobody guesses, and why.
var unguessed = map[string]string{
	"none":   "it has no cookie",
	"kernel": "its cookies are the same as host-kernel's, and none of ours",
}

func blindTime() time.Duration {
	if long() {
		return time.Minute
	}
	return 5 * time.Second
}

// Who guesses at full rate gets no more than the length of the cookie says. The
// bound is that of a Poisson distribution, exceeded once in a million runs.
func TestBlindAttackerGetsWhatTheCookieSays(t *testing.T) {
	for _, b := range blinds {
		t.Run(b.defence, func(t *testing.T) {
			l := newLab(t, lab.Options{})
			server := serveExchanges(t, l)
			guard, err := l.Defend(t.Context(), b.defence)
			if err != nil {
				t.Fatal(err)
			}
			if b.besideSYNs {
				b.floodSYNs(t, l, guard)
			}
			flood := flood(t, l, lab.FloodOptions{Kind: b.kind, Rate: lab.MaxRate, Limit: blindTime()})
			select {
			case <-flood.Done():
			case <-time.After(blindTime() + time.Minute):
				t.Fatal("the flood does not end")
			}
			offered, err := flood.Offered()
			if err != nil {
				t.Fatal(err)
			}
			b.judge(t, guard, offered, server.accepted.Load())
		})
	}
}

// floodSYNs begins a flood of SYNs that lasts until the test's end, and waits until
// the defence answers them.
func (b blind) floodSYNs(t *testing.T, l *lab.Lab, guard *lab.Guard) {
	t.Helper()
	flood(t, l, lab.FloodOptions{Rate: besideFlood, Limit: blindTime() + time.Minute})
	eventually(t, 30*time.Second, "the SYNs are answered", func() bool {
		v, err := guard.EdgeVerdicts()
		return err == nil && v["answer_syn"] > aFlood
	})
}

func (b blind) judge(t *testing.T, guard *lab.Guard, offered, accepted uint64) {
	t.Helper()
	edge, err := guard.EdgeVerdicts()
	if err != nil {
		t.Fatal(err)
	}
	atServer, err := guard.ServerVerdicts()
	if err != nil {
		t.Fatal(err)
	}
	expected := float64(offered) * b.chance
	most := atMost(expected)
	t.Logf("%d guesses: %.2f expected, at most %d; edge: %s; server: %s", offered, expected, most, sorted(edge), sorted(atServer))
	if offered < uint64(aFlood*blindTime().Seconds()) {
		t.Errorf("%d packets in %s are no flood", offered, blindTime())
	}
	for what, got := range map[string]uint64{
		"let through by the edge": edge[b.admits], "made connections at the server": atServer[b.setup], "were accepted by the listener": accepted,
	} {
		if got > most {
			t.Errorf("%d guesses %s, at most %d may be", got, what, most)
		}
	}
	if edge[b.admits]+refused(edge) < offered/2 {
		t.Errorf("the edge has judged few of %d guesses: %s", offered, sorted(edge))
	}
}

// refused are packets that an edge has lost for want of a proof.
func refused(verdicts map[string]uint64) uint64 {
	return verdicts["drop_bad_cookie"] + verdicts["drop_unverified_rst"]
}

// A defence has to say what a guess is worth, or why nobody guesses at it.
func TestEveryDefenceIsGuessedAt(t *testing.T) {
	known := slices.Sorted(maps.Keys(unguessed))
	for _, b := range blinds {
		known = append(known, b.defence)
	}
	slices.Sort(known)
	for name, why := range unguessed {
		t.Logf("nobody guesses at %s: %s", name, why)
	}
	if has := lab.Defences(); !slices.Equal(has, known) {
		t.Errorf("the lab has the defences %q; %q are guessed at, or it is said why not", has, known)
	}
}
