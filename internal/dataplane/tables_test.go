package dataplane

import (
	"net/netip"
	"testing"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// webPorts is where the ports of web stand in the tables.
func webPorts(t *testing.T) policy.PortSet {
	t.Helper()
	return compile(t, services).Prefixes[netip.MustParsePrefix("198.18.7.0/28")]
}

func TestMovedAddressIsProtectedAtItsNewPlaceAtOnce(t *testing.T) {
	e := newEdge(t)
	old, moved := prefixes("198.18.7.0/28"), prefixes("10.77.0.1/32", "2001:db8:77::1/128")
	was := to(syn4(""), "198.18.7.1:443")
	is4, is6 := to(syn4(""), "10.77.0.1:443"), to(syn6(""), "[2001:db8:77::1]:443")
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
	check("after it has moved back", "answer_syn", "pass_other")
	e.setEpoch(testEpoch, longEpoch)
	check("after the clock was set again", "answer_syn", "pass_other")
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
