package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/cookie"
	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

const (
	// besideFlood is what an attacker sends meanwhile, in SYNs per second: it
	// fills the queue of a server without cookies ten times in a second.
	besideFlood lab.Rate = 20_000
	// exchangeLimit is generous: five seconds would do on an idle machine.
	exchangeLimit = 30 * time.Second
	// contactsLimit is how many connections a client may need for its first
	// contact; one on which packets are lost may need more.
	contactsLimit, lossyContactsLimit = 2, 6
	reusedPort                        = 41000
	reusedTimes                       = 8
)

// strategyBytes is how much goes each way over one connection.
func strategyBytes() uint32 {
	if long() {
		return 64 << 20
	}
	return 4 << 20
}

// trialOf is a defence under test.
type trialOf struct {
	strategy
	lab    *lab.Lab
	guard  *lab.Guard
	server *exchangeServer
	stacks []stackUnderTest
	floods []*lab.Flood
	begun  time.Time
	seed   uint64
}

// What every strategy must pass, whatever client comes.
func TestStrategies(t *testing.T) {
	need(t, "ss")
	for _, s := range strategies {
		t.Run(s.defence, func(t *testing.T) {
			trial := s.begin(t, lab.Options{})
			t.Run("first contact", trial.firstContact)
			t.Run("data", trial.data)
			t.Run("server first", trial.serverFirst)
			t.Run("options", trial.options)
			t.Run("reused port", trial.reusedPort)
			t.Run("port after TIME_WAIT", trial.portAfterTimeWait)
			trial.wasFlooded(t)
		})
	}
}

// Streams across a bad line end, and are whole.
func TestStrategiesOnABadLine(t *testing.T) {
	for _, s := range strategies {
		t.Run(s.defence, func(t *testing.T) {
			beside(t)
			trial := s.begin(t, lab.Options{Wire: &badwire.Faults{Loss: 5, Delay: 2 * time.Millisecond, Seed: 1}})
			everyStack(t, trial.lab, trial.stacks, func(t *testing.T, from stackUnderTest, address string) {
				trial.meet(t, from, address, lossyContactsLimit)
			})
			t.Run("streams", trial.lossyStreams)
			noOverload(t, trial.lab)
			trial.wasFlooded(t)
		})
	}
}

// begin makes a lab with a server that is defended, flooded and answers
// exchanges.
func (s strategy) begin(t *testing.T, options lab.Options) *trialOf {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	l := newLab(t, options)
	trial := &trialOf{strategy: s, lab: l, seed: seed, server: serveExchanges(t, l)}
	var err error
	if trial.guard, err = l.Defend(t.Context(), s.defence); err != nil {
		t.Fatal(err)
	}
	// A client may use a port again while it remembers the last use of it.
	if err := l.Client.Sysctl("net.ipv4.tcp_tw_reuse", "1"); err != nil {
		t.Fatal(err)
	}
	trial.stacks = twoStacks(t, l)
	trial.begun = time.Now()
	for _, ipv6 := range []bool{false, true} {
		if !s.open {
			trial.floods = append(trial.floods, flood(t, l, lab.FloodOptions{Rate: besideFlood, IPv6: ipv6}))
		}
	}
	return trial
}

// wasFlooded wants that there was a flood at all: otherwise nothing is shown.
func (r *trialOf) wasFlooded(t *testing.T) {
	t.Helper()
	due := time.Since(r.begun).Seconds() * float64(besideFlood)
	for _, flood := range r.floods {
		if offered, err := flood.Offered(); err != nil || float64(offered) < due/4 {
			t.Errorf("%d SYNs of the flood, %v", offered, err)
		}
	}
}

// flood floods until the test ends; nothing comes back to the attacker's kernel.
func flood(t *testing.T, l *lab.Lab, options lab.FloodOptions) *lab.Flood {
	t.Helper()
	flood, err := l.StartFlood(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := flood.Stop(); err != nil {
			t.Error(err)
		}
	})
	return flood
}

func (r *trialOf) exchange(bytes uint32) exchange {
	r.seed++
	return exchange{up: bytes, down: bytes, seed: r.seed}
}

// mustRun wants an exchange to succeed at the first attempt.
func (e exchange) mustRun(t *testing.T, from stackUnderTest, port uint16, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), exchangeLimit)
	defer cancel()
	if err := e.run(ctx, from, port, address); err != nil {
		t.Error(err)
	}
}

func (r *trialOf) firstContact(t *testing.T) {
	tap := newWireTap(t, r.lab.Client.Namespace, r.lab.Client.Port)
	syns := func() int { return len(tap.frames(opensToServer)) }
	everyStack(t, r.lab, r.stacks, func(t *testing.T, from stackUnderTest, address string) {
		begin, before := time.Now(), syns()
		connections := r.meet(t, from, address, contactsLimit)
		took := time.Since(begin)
		if want := map[contact]int{served: 1, reset: 2, delayed: 1}[r.contact]; connections != want {
			t.Errorf("%d connections were needed, want %d", connections, want)
		}
		begin = time.Now()
		r.exchange(1000).mustRun(t, from, 0, address)
		later := time.Since(begin)
		// The next one takes one more. The tap may be behind; and who repeats a SYN
		// may do so before it knows that the challenge is met.
		want := map[contact]int{served: 1, reset: 2, delayed: 2}[r.contact] + 1
		eventually(t, 10*time.Second, fmt.Sprintf("%d SYNs are seen", want), func() bool { return syns()-before >= want })
		got := syns() - before
		if got > want && r.contact != delayed {
			t.Errorf("%d SYNs were needed, want %d", got, want)
		}
		t.Logf("%d connections, %s; the next one %s; %d SYNs", connections, took.Round(time.Millisecond), later.Round(time.Millisecond), got)
	})
}

// opensToServer tells a SYN that the client itself sends: a bridge that has not
// learned an address yet floods what is sent to it, the attacker's SYNs among it.
func opensToServer(f wireFrame) bool {
	if !f.out {
		return false
	}
	s := wire.Read(f.bytes)
	return s.Kind == wire.KindTCP && s.Flags&(wire.SYN|wire.ACK) == wire.SYN && s.ToPort == lab.HTTPPort
}

// meet makes the client known to the defence, and returns how many connections
// it took.
func (r *trialOf) meet(t *testing.T, from stackUnderTest, address string, limit int) (connections int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), exchangeLimit)
	defer cancel()
	for connections = 1; ; connections++ {
		err := r.exchange(1000).run(ctx, from, 0, address)
		if err == nil {
			return connections
		}
		if !wasReset(err) || r.contact != reset || connections == limit {
			t.Fatalf("connection %d: %v", connections, err)
		}
	}
}

func (r *trialOf) data(t *testing.T) {
	everyStack(t, r.lab, r.stacks, func(t *testing.T, from stackUnderTest, address string) {
		e := r.exchange(strategyBytes())
		begin := time.Now()
		e.mustRun(t, from, 0, address)
		t.Logf("%d MB each way in %s", e.up>>20, time.Since(begin).Round(time.Millisecond))
		// One way alone, and hardly anything.
		for _, sizes := range [][2]uint32{{0, 100_000}, {100_000, 0}, {1, 1}} {
			e = r.exchange(0)
			e.up, e.down = sizes[0], sizes[1]
			e.mustRun(t, from, 0, address)
		}
	})
}

func (r *trialOf) serverFirst(t *testing.T) {
	r.server.speaksFirst.Store(true)
	defer r.server.speaksFirst.Store(false)
	everyStack(t, r.lab, r.stacks, func(t *testing.T, from stackUnderTest, address string) {
		e := r.exchange(100_000)
		e.serverFirst = true
		e.mustRun(t, from, 0, address)
	})
}

// reusedPort: the server closes first and has TIME_WAIT, the client comes again
// from the same port at once.
func (r *trialOf) reusedPort(t *testing.T) {
	everyStack(t, r.lab, r.stacks, func(t *testing.T, from stackUnderTest, address string) {
		for range reusedTimes {
			e := r.exchange(10_000)
			e.serverCloses = true
			r.fromSamePort(t, e, from, address)
		}
	})
}

// portAfterTimeWait: the client closes first, and comes again from the same port
// when its own TIME_WAIT lets it: Linux at once, netstack when that is over.
func (r *trialOf) portAfterTimeWait(t *testing.T) {
	everyStack(t, r.lab, r.stacks, func(t *testing.T, from stackUnderTest, address string) {
		for range 2 {
			r.fromSamePort(t, r.exchange(10_000), from, address)
		}
	})
}

// fromSamePort waits until the client's stack has the port to give.
func (r *trialOf) fromSamePort(t *testing.T, e exchange, from stackUnderTest, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), exchangeLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := e.run(ctx, from, reusedPort, address)
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) || ctx.Err() != nil {
			t.Fatalf("from port %d: %v", reusedPort, err)
		}
		<-tick.C
	}
}

func (r *trialOf) options(t *testing.T) {
	tap := newTap(t, r.lab.Client.Namespace, r.lab.Client.Port)
	compare := func(t *testing.T, from stackUnderTest, address string) {
		tap.t = t
		e := r.exchange(1000)
		e.whileItStands = func(conn net.Conn) { r.compareOptions(t, tap, conn) }
		e.mustRun(t, from, 0, address)
	}
	everyStack(t, r.lab, r.stacks, compare)
	if err := r.lab.Client.Sysctl("net.ipv4.tcp_timestamps", "0"); err != nil {
		t.Fatal(err)
	}
	everyStack(t, r.lab, r.stacks[:1], func(t *testing.T, from stackUnderTest, address string) {
		t.Log("without timestamps")
		compare(t, from, address)
	})
	if err := r.lab.Client.Sysctl("net.ipv4.tcp_timestamps", "1"); err != nil {
		t.Fatal(err)
	}
}

// compareOptions compares the client's SYN with what the server's kernel says of
// the connection.
func (r *trialOf) compareOptions(t *testing.T, tap *tap, conn net.Conn) {
	t.Helper()
	client := netip.MustParseAddrPort(conn.LocalAddr().String())
	syn, _ := tap.find("SYN", func(s wire.Seen, _ []byte) bool {
		return s.Kind == wire.KindTCP && s.Flags&(wire.SYN|wire.ACK) == wire.SYN && s.SourcePort == client.Port()
	})
	wanted := wire.ReadOptions(syn.Options, syn.Flags).Options
	want, known := r.keeps(wanted, client.Addr().Unmap().Is4())
	if !known {
		t.Logf("nothing is promised to a client that asks for %+v", wanted)
		return
	}
	got := viewOf(t, r.lab.Server.Namespace, lab.HTTPPort, int(client.Port()))
	send, _, scales := strings.Cut(got.scales, ",")
	got.scales, got.advmss = send, 0 // the rest is the server's own
	if scales && want.Scale < wanted.Scale {
		// Windows look smaller than they are, and Linux sends no segment larger
		// than half of the largest.
		got.mss = int(want.MSS)
	}
	if expected := expectedView(want); got != expected {
		t.Errorf("the server has %+v, want %+v for a client that asks for %+v", got, expected, wanted)
	}
}

// keeps is what reaches the server of a client's options.
func (r *trialOf) keeps(o cookie.Options, ipv4 bool) (kept cookie.Options, known bool) {
	of := cookie.IPv6
	if ipv4 {
		of = cookie.IPv4
	}
	switch r.keeping {
	case encoded:
		record := cookie.Encode(of, o, cookie.OfferAll)
		return cookie.Decode(of, record.Code, record.Timestamps, uint32(record.TSvalBits)), true
	case stamped:
		return o, o.Timestamps
	}
	return o, true
}

func expectedView(o cookie.Options) view {
	v := view{timestamps: o.Timestamps, sack: o.SACK, ecn: o.ECN, mss: int(o.MSS)}
	if o.HasScale {
		v.scales = fmt.Sprint(o.Scale)
	}
	if o.Timestamps {
		v.mss -= 12
	}
	return v
}

// lossyStreams runs many streams of each stack and family at once.
func (r *trialOf) lossyStreams(t *testing.T) {
	const each, size = 4, 200_000
	ctx, cancel := context.WithTimeout(t.Context(), 2*exchangeLimit)
	defer cancel()
	err := together(len(r.stacks)*2*each, func(i int) error {
		e := exchange{up: size, down: size, seed: r.seed + 1000 + uint64(i)}
		return e.run(ctx, r.stacks[i%2], 0, webAddress(r.lab, i/2%2 == 1))
	})
	if err != nil {
		t.Error(err)
	}
}
