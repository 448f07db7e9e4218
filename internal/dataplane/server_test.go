package dataplane

import (
	"bytes"
	"testing"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// serverVerdict is what a server without sockets does with a frame of the
// edge's table.
func serverVerdict(g golden) string {
	switch g.verdict {
	case "answer_syn", "drop_bad_source", "pass_no_key", "drop_no_key":
		switch {
		case g.in.Flags&wire.RST != 0:
			return "pass_rst"
		case g.in.Flags&wire.SYN == 0:
			return "drop_bad_cookie"
		}
		return "pass_syn"
	case "drop_unverified_rst":
		return "pass_rst"
	}
	return g.verdict
}

func TestFramesToTheServerEndAsTheTableSays(t *testing.T) {
	s := newServer(t)
	for _, g := range goldens() {
		frame := g.frame()
		if !fitsSKB(frame) || len(g.in.Tags) > 0 {
			continue // a tag is the VLAN device's
		}
		if g.service != none && services[g.service-1].Strategy != policy.Split {
			continue // an edge's alone
		}
		t.Run(g.name, func(t *testing.T) {
			s := serverAgent{agent{s.tables, t}, s.serverObjects}
			got, want := s.ingress(frame), serverVerdict(g)
			action := tcNext
			if actionOf(want) == xdpDrop {
				action = tcDrop
			}
			if got.verdict != want || got.action != action || !bytes.Equal(got.out, frame) {
				t.Errorf("%s, action %d; want %s, %d and the packet as it was", got.verdict, got.action, want, action)
			}
		})
	}
}

func TestTaggedFramesAreTheVLANDevices(t *testing.T) {
	s := newServer(t)
	for _, tags := range [][]wire.Tag{{{Type: wire.Customer, ID: 1}}, {{Type: wire.Service, ID: 2}, {Type: wire.Customer, ID: 1}}} {
		if got := s.ingress(tagged(flagged(syn4(""), wire.ACK), tags...).Frame()); got.verdict != "pass_other" || got.action != tcNext {
			t.Errorf("%v: %s", tags, got.verdict)
		}
	}
}

func TestStrictServerTakesSYNsFromAllowedPrefixesOnly(t *testing.T) {
	s := newServer(t, func(c *ServerConfig) {
		c.Strict, c.Allowed = true, prefixes("192.0.2.0/25", "2001:db8:c::/64")
	})
	for _, c := range []struct {
		source, verdict string
	}{
		{"192.0.2.1", "pass_syn"},
		{"192.0.2.127", "pass_syn"},
		{"192.0.2.128", "drop_strict_syn"},
		{"2001:db8:c::1", "pass_syn"},
		{"2001:db8:c:1::1", "drop_strict_syn"},
	} {
		p := from(syn6(linuxOptions), c.source)
		if p.Source.Addr().Is4() {
			p = from(syn4(linuxOptions), c.source)
		}
		if got := s.ingress(p.Frame()); got.verdict != c.verdict {
			t.Errorf("SYN from %s: %s, want %s", c.source, got.verdict, c.verdict)
		}
		if got := s.ingress(flagged(p, wire.ACK).Frame()); got.verdict != "drop_bad_cookie" {
			t.Errorf("ACK from %s: %s", c.source, got.verdict)
		}
		p = to(p, "192.0.2.99:1")
		if p.Source.Addr().Is4() && s.ingress(p.Frame()).verdict != "pass_other" {
			t.Errorf("SYN from %s to an unprotected address is judged", c.source)
		}
	}
}

func TestServerWithoutServicesTouchesNothing(t *testing.T) {
	s := newServer(t, func(c *ServerConfig) { c.Services = []policy.Service{} })
	for _, g := range goldens() {
		if frame := g.frame(); fitsSKB(frame) {
			if got := s.ingress(frame); got.verdict != "pass_other" || got.action != tcNext {
				t.Errorf("%s: %s", g.name, got.verdict)
			}
		}
	}
}
