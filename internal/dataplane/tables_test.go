package dataplane

import (
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// webPorts is where the ports of web stand in the tables.
func webPorts(t *testing.T) policy.PortSet {
	t.Helper()
	return compile(t, services).Prefixes[netip.MustParsePrefix("198.18.7.0/28")]
}

// stayOnOneCPU makes all packets of a test meet with the same memory: what a
// CPU remembers is its own.
func stayOnOneCPU(t *testing.T) {
	t.Helper()
	var all, one unix.CPUSet
	runtime.LockOSThread()
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !all.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(0, &all); err == nil {
			runtime.UnlockOSThread()
		}
	})
}

func TestMovedAddressIsProtectedAtItsNewPlaceAtOnce(t *testing.T) {
	e := newEdge(t)
	stayOnOneCPU(t)
	// The last bytes differ: each destination has a place of its own in memory.
	old, moved := prefixes("198.18.7.0/28"), prefixes("10.77.0.2/32", "2001:db8:77::3/128")
	was := to(syn4(""), "198.18.7.1:443")
	is4, is6 := to(syn4(""), "10.77.0.2:443"), to(syn6(""), "[2001:db8:77::3]:443")
	check := func(when, atOld, atNew string) {
		t.Helper()
		for range 2 { // looked up, then remembered
			e.want(when+", old address", was, atOld)
			e.want(when+", new address", is4, atNew)
			e.want(when+", new address, IPv6", is6, atNew)
			e.want(when+", another port there", to(is4, "10.77.0.1:444"), "pass_other")
		}
	}
	check("before", "answer_syn", "pass_other")
	if err := e.MovePrefixes(moved, old, webPorts(t)); err != nil {
		t.Fatal(err)
	}
	check("after", "pass_other", "answer_syn")
	e.setEpoch(testEpoch, longEpoch)
	check("after the clock was set", "pass_other", "answer_syn")
	if err := e.MovePrefixes(old, moved, webPorts(t)); err != nil {
		t.Fatal(err)
	}
	e.setEpoch(testEpoch, longEpoch) // before the next packet
	check("after it has moved back", "answer_syn", "pass_other")
	if err := e.MovePrefixes(moved, old, webPorts(t)); err != nil {
		t.Fatal(err)
	}
	e.setEpoch(testEpoch, longEpoch)
	check("after it has moved again", "pass_other", "answer_syn")
}

// Many destinations share a place in what the edge remembers.
func TestDestinationsThatShareAPlaceInMemoryAreNotConfused(t *testing.T) {
	e := newEdge(t)
	for round := range 3 {
		for last := range uint16(256) {
			for _, port := range []uint16{80, 443, 444, 8000 + last} {
				a := netip.AddrFrom4([4]byte{203, 0, 113, byte(last)})
				p := with(syn4(""), func(p *wire.Packet) { p.To = netip.AddrPortFrom(a, port) })
				want := "answer_syn"
				if port == 444 {
					want = "pass_other"
				}
				action, _ := e.runUncounted(e.EdgeOutside, p.Frame())
				if action != actionOf(want) {
					t.Fatalf("round %d, %v: action %d, want %s", round, p.To, action, want)
				}
			}
		}
	}
}

func TestEveryVerdictHasItsNumber(t *testing.T) {
	for i, name := range VerdictNames() {
		if n, ok := VerdictNumber(name); !ok || n != i {
			t.Errorf("%s is number %d, not %d", name, n, i)
		}
	}
	if _, ok := VerdictNumber("count"); ok {
		t.Error("the end of the list is a verdict")
	}
}

// The server's hooks remember as the edge does, and what they may drop there
// they must not drop elsewhere: an address that is no longer protected, or
// another port, is nobody's.
func TestServerFollowsAMovedAddressAtOnce(t *testing.T) {
	s := newServer(t)
	stayOnOneCPU(t)
	old, moved := prefixes("198.18.7.0/28"), prefixes("10.77.0.2/32", "2001:db8:77::3/128")
	stray := func(p wire.Packet, address string) wire.Packet { return flagged(to(p, address), wire.ACK) }
	was, is4, is6 := stray(syn4(""), "198.18.7.1:443"), stray(syn4(""), "10.77.0.2:443"), stray(syn6(""), "[2001:db8:77::3]:443")
	check := func(when string, p wire.Packet, protected bool) {
		t.Helper()
		in, out := "pass_other", "pass_other"
		if protected {
			in, out = "drop_bad_cookie", "pass_inside"
		}
		for range 2 { // looked up, then remembered
			if got := s.ingress(p.Frame()); got.verdict != in {
				t.Errorf("%s, to %s: %s, want %s", when, p.To, got.verdict, in)
			}
			if got := s.egress(reversed(p).Frame()); got.verdict != out {
				t.Errorf("%s, from %s: %s, want %s", when, p.To, got.verdict, out)
			}
		}
	}
	here := false
	for _, when := range []string{"before", "after", "moved back", "moved again"} {
		check(when, was, !here)
		check(when, is4, here)
		check(when, is6, here)
		check(when, stray(is4, "10.77.0.2:444"), false)
		added, removed := moved, old
		if here {
			added, removed = old, moved
		}
		if err := s.MovePrefixes(added, removed, webPorts(t)); err != nil {
			t.Fatal(err)
		}
		here = !here
	}
}
