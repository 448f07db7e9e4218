package e2e

import (
	"maps"
	"slices"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

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
	for _, b := range lab.Blinds {
		t.Run(b.Defence, func(t *testing.T) {
			l := newLab(t, lab.Options{})
			server := serveExchanges(t, l)
			guard, err := l.Defend(t.Context(), b.Defence)
			if err != nil {
				t.Fatal(err)
			}
			if b.BesideSYNs {
				answersSYNs(t, l, guard)
			}
			flood := flood(t, l, lab.FloodOptions{Kind: b.Kind, Rate: lab.MaxRate, Limit: blindTime()})
			select {
			case <-flood.Done():
			case <-time.After(blindTime() + time.Minute):
				t.Fatal("the flood does not end")
			}
			offered, err := flood.Offered()
			if err != nil {
				t.Fatal(err)
			}
			judgeBlind(t, b, guard, offered, server.accepted.Load())
		})
	}
}

// answersSYNs begins a flood of SYNs that lasts until the test's end, and waits until
// the defence answers them.
func answersSYNs(t *testing.T, l *lab.Lab, guard *lab.Guard) {
	t.Helper()
	flood(t, l, lab.FloodOptions{Rate: besideFlood, Limit: blindTime() + time.Minute})
	eventually(t, 30*time.Second, "the SYNs are answered", func() bool {
		v, err := guard.EdgeVerdicts()
		return err == nil && v["answer_syn"] > aFlood
	})
}

func judgeBlind(t *testing.T, b lab.Blind, guard *lab.Guard, offered, accepted uint64) {
	t.Helper()
	edge, err := guard.EdgeVerdicts()
	if err != nil {
		t.Fatal(err)
	}
	atServer, err := guard.ServerVerdicts()
	if err != nil {
		t.Fatal(err)
	}
	expected := float64(offered) * b.Chance
	most := atMost(expected)
	t.Logf("%d guesses: %.2f expected, at most %d; edge: %s; server: %s", offered, expected, most, sorted(edge), sorted(atServer))
	if offered < uint64(aFlood*blindTime().Seconds()) {
		t.Errorf("%d packets in %s are no flood", offered, blindTime())
	}
	for what, got := range map[string]uint64{
		"let through by the edge": edge[b.Admits], "made connections at the server": atServer[b.Setup], "were accepted by the listener": accepted,
	} {
		if got > most {
			t.Errorf("%d guesses %s, at most %d may be", got, what, most)
		}
	}
	if edge[b.Admits]+refused(edge) < offered/2 {
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
	for _, b := range lab.Blinds {
		known = append(known, b.Defence)
	}
	slices.Sort(known)
	for name, why := range unguessed {
		t.Logf("nobody guesses at %s: %s", name, why)
	}
	if has := lab.Defences(); !slices.Equal(has, known) {
		t.Errorf("the lab has the defences %q; %q are guessed at, or it is said why not", has, known)
	}
}
