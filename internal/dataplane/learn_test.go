package dataplane

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"smartcookie/internal/control"
	"smartcookie/internal/cookie"
	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

func (e edgeAgent) edge() *Edge { return &Edge{tables: *e.tables, objects: *e.edgeObjects} }

func announcedFlow(f cookie.Flow) control.Flow {
	return control.Flow{Client: f.Source, Server: f.Destination}
}

func TestAnnouncedFlowsHaveTheFiltersBits(t *testing.T) {
	e := newEdge(t)
	edge, twin, random := e.edge(), newFilterTwin(e), newRandom(t)
	for _, swept := range []uint64{0, 60, 125, 3000} {
		e.forget()
		twin.Clear()
		twin.After(swept)
		e.writePosition(twin)
		var flows []control.Flow
		for i := range 1000 {
			flow := numberedFlow(random.Uint64N(1<<40), i%2 == 0)
			flows = append(flows, announcedFlow(flow))
			twin.Add(flow)
		}
		if n, err := edge.Learn(flows); err != nil || n != len(flows) {
			t.Fatalf("%d of %d learnt: %v", n, len(flows), err)
		}
		if !bytes.Equal(e.lines(), twin.Bytes()) {
			t.Errorf("after %d swept lines: the bits differ", swept)
		}
	}
}

func TestFlowsOfNoServiceAreNotLearnt(t *testing.T) {
	e := newEdge(t)
	e.forget()
	empty := e.lines()
	client := netip.MustParseAddrPort("192.0.2.1:1000")
	n, err := e.edge().Learn([]control.Flow{
		{Client: client, Server: netip.MustParseAddrPort("203.0.113.1:9")},
		{Client: client, Server: netip.MustParseAddrPort("192.0.2.80:80")},
	})
	if err != nil || n != 0 {
		t.Errorf("%d learnt: %v", n, err)
	}
	if !bytes.Equal(e.lines(), empty) {
		t.Error("they are in the filter")
	}
}

func TestMillionFlowsAreLearntInTime(t *testing.T) {
	e := newEdge(t, func(c *EdgeConfig) { c.Flows = 1_000_000 })
	edge := e.edge()
	flows := make([]control.Flow, 1_000_000)
	for i := range flows {
		flows[i] = announcedFlow(numberedFlow(uint64(i)*0x9e3779b9%(1<<40), false))
	}
	begin := time.Now()
	for i := 0; i < len(flows); i += 222 { // as many as one message has
		if _, err := edge.Learn(flows[i:min(i+222, len(flows))]); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(begin)
	t.Logf("1,000,000 flows learnt in %s, %.1f million a second", took, 1/took.Seconds())
	if took > 2*time.Second {
		t.Error("that is more than two seconds")
	}
}

// phases puts web's addresses under an agent in a phase.
func (e edgeAgent) phase(phase control.Phase, listeners ...string) {
	e.t.Helper()
	edge := e.edge()
	for _, p := range prefixes("203.0.113.0/24", "2001:db8:1::/48") {
		if err := edge.Cover(p, 21); err != nil {
			e.t.Fatal(err)
		}
	}
	var all []netip.AddrPort
	for _, l := range listeners {
		all = append(all, netip.MustParseAddrPort(l))
	}
	if err := edge.SetListeners(21, all); err != nil {
		e.t.Fatal(err)
	}
	if err := edge.SetPeer(21, control.Peer{Phase: phase}); err != nil {
		e.t.Fatal(err)
	}
}

func (e edgeAgent) wantVerdict(what string, p wire.Packet, verdict string) {
	e.t.Helper()
	if got := e.outside(p.Frame()); got.verdict != verdict {
		e.t.Errorf("%s: %s, want %s", what, got.verdict, verdict)
	}
}

func TestVerdictsFollowTheAgent(t *testing.T) {
	set := map[policy.OnSilence]map[control.Phase][2]string{ // of a SYN and of an unknown ACK
		policy.SilentKeep: {
			control.Unheard:  {"pass_unheard", "pass_unheard"},
			control.Grace:    {"answer_syn", "pass_learning"},
			control.Enforced: {"answer_syn", "drop_bad_cookie"},
			control.Silent:   {"answer_syn", "drop_bad_cookie"},
		},
		policy.SilentPass: {control.Silent: {"pass_unheard", "pass_unheard"}, control.Enforced: {"answer_syn", "drop_bad_cookie"}},
		policy.SilentStop: {control.Silent: {"drop_silent", "drop_bad_cookie"}, control.Enforced: {"answer_syn", "drop_bad_cookie"}},
	}
	for silent, phases := range set {
		e := newEdge(t, func(c *EdgeConfig) {
			c.Services = append([]policy.Service{}, services...)
			c.Services[web-1].Silent = silent
		})
		for phase, want := range phases {
			e.phase(phase, web4.String(), web6.String())
			for _, to := range []netip.AddrPort{web4, web6} {
				from := client4
				if to == web6 {
					from = client6
				}
				e.wantVerdict(phase.String()+" SYN", wire.Packet{Source: from, To: to, Flags: wire.SYN}, want[0])
				e.wantVerdict(phase.String()+" ACK", wire.Packet{Source: from, To: to, Flags: wire.ACK}, want[1])
			}
		}
	}
}

func TestPortOnWhichNobodyListensIsNotAnswered(t *testing.T) {
	e := newEdge(t)
	syn := func(to string) wire.Packet {
		at := netip.MustParseAddrPort(to)
		from := client4
		if !at.Addr().Is4() {
			from = client6
		}
		return wire.Packet{Source: from, To: at, Flags: wire.SYN}
	}
	e.phase(control.Enforced, "203.0.113.10:443", "0.0.0.0:80", "[2001:db8:1::10]:443")
	for to, want := range map[string]string{
		"203.0.113.10:443": "answer_syn", "203.0.113.11:443": "drop_closed_port", "203.0.113.10:8000": "drop_closed_port",
		"203.0.113.11:80": "answer_syn", "[2001:db8:1::10]:443": "answer_syn", "[2001:db8:1::10]:80": "drop_closed_port",
		"198.18.7.1:443": "answer_syn", // no agent covers it
	} {
		e.wantVerdict(to, syn(to), want)
	}
	e.phase(control.Enforced, "203.0.113.10:8000")
	e.wantVerdict("a new listener", syn("203.0.113.10:8000"), "answer_syn")
	e.wantVerdict("a listener that has gone", syn("203.0.113.10:443"), "drop_closed_port")
	if err := e.edge().SetPeer(21, control.Peer{Phase: control.Enforced, AnyListens: true}); err != nil {
		t.Fatal(err)
	}
	e.wantVerdict("any port listens", syn("203.0.113.10:443"), "answer_syn")
}

func TestAgentIsStrictOnlyWhileAnEdgeEnforces(t *testing.T) {
	s := newServer(t, func(c *ServerConfig) { c.HearsEdges, c.Strict = true, true })
	server := &Server{tables: *s.tables, objects: *s.serverObjects}
	syn := wire.Packet{Source: client4, To: web4, Flags: wire.SYN}
	ack := wire.Packet{Source: client4, To: web4, Flags: wire.ACK}
	for _, step := range []struct {
		until    time.Duration
		syn, ack string
	}{
		{0, "pass_unenforced", "pass_unenforced"},
		{1 << 62, "drop_strict_syn", "drop_bad_cookie"},
		{time.Duration(monotonic(t)), "pass_unenforced", "pass_unenforced"},
	} {
		if err := server.SetEnforced(step.until); err != nil {
			t.Fatal(err)
		}
		if got := s.ingress(syn.Frame()); got.verdict != step.syn {
			t.Errorf("enforced until %s, SYN: %s, want %s", step.until, got.verdict, step.syn)
		}
		if got := s.ingress(ack.Frame()); got.verdict != step.ack {
			t.Errorf("enforced until %s, ACK: %s, want %s", step.until, got.verdict, step.ack)
		}
	}
}
