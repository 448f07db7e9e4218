package dataplane

import (
	"bytes"
	"slices"
	"testing"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// inMode are the services of the tests in one mode. Those that are off stay so.
func inMode(mode policy.Mode, change ...func(*policy.Service)) func(*EdgeConfig) {
	return func(c *EdgeConfig) { c.Services = servicesIn(mode, change...) }
}

func servicesIn(mode policy.Mode, change ...func(*policy.Service)) []policy.Service {
	all := slices.Clone(services)
	for i := range all {
		all[i].Detect = policy.DefaultDetect
		if all[i].Mode == policy.Off {
			continue
		}
		all[i].Mode = mode
		for _, f := range change {
			f(&all[i])
		}
	}
	return all
}

// Every way to prove strangers is there: a monitored service's packets come to
// none of them.
func TestMonitoredServiceChangesNoPacket(t *testing.T) {
	for _, strategy := range []policy.Strategy{policy.Split, policy.Proxy, policy.AuthCookie, policy.AuthFull, policy.AuthRST} {
		e := newEdge(t, inMode(policy.Monitor, func(s *policy.Service) { s.Strategy = strategy }))
		for _, g := range goldens() {
			t.Run(g.name, func(t *testing.T) {
				e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
				e.forget()
				frame := g.frame()
				got := e.outside(frame)
				if got.action != xdpRedirect || !bytes.Equal(got.out, frame) {
					t.Fatalf("action %d (%s), want %d\nin  %x\nout %x", got.action, got.verdict, xdpRedirect, frame, got.out)
				}
				if strategy == policy.Split && g.service < authCookie { // whose rows are of other strategies
					wantForetold(t, g, got)
				}
			})
		}
	}
}

// What is counted is what an enforcing edge would have done, but for what is known
// only to who does it: whether the answer has room.
func wantForetold(t *testing.T, g golden, got outcome) {
	t.Helper()
	want := g.verdict
	if want == "drop_no_room" {
		want = "answer_syn"
	}
	if got.verdict != want || g.service != none && got.service != g.service {
		t.Errorf("%s of service %d, want %s of %d", got.verdict, got.service, want, g.service)
	}
}

func TestMonitoringServerLetsEverythingPass(t *testing.T) {
	s := newServer(t, func(c *ServerConfig) { c.Services, c.Strict = servicesIn(policy.Monitor), true })
	for _, g := range goldens() {
		frame := g.frame()
		if !fitsSKB(frame) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			s := serverAgent{agent{s.tables, t}, s.serverObjects}
			if got := s.ingress(frame); got.action != tcNext || !bytes.Equal(got.out, frame) {
				t.Errorf("%s: action %d, want %d\nin  %x\nout %x", got.verdict, got.action, tcNext, frame, got.out)
			}
		})
	}
}

func TestPassiveServiceChangesNoPacket(t *testing.T) {
	e := newEdge(t, inMode(policy.Adaptive))
	for _, g := range goldens() {
		t.Run(g.name, func(t *testing.T) {
			e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
			e.forget()
			frame := g.frame()
			got := e.outside(frame)
			if got.action != xdpRedirect || !bytes.Equal(got.out, frame) {
				t.Fatalf("action %d (%s), want %d\nin  %x\nout %x", got.action, got.verdict, xdpRedirect, frame, got.out)
			}
			if g.service != none && g.service != off && got.verdict != "pass_passive" {
				t.Errorf("%s, want pass_passive", got.verdict)
			}
		})
	}
}

// Neighbours of one prefix: while one of them is defended, what cannot be told
// apart is lost; a monitored one alone counts it.
func TestFragmentIsLostWhereAnyServiceIsDefended(t *testing.T) {
	fragment := with(syn4(windowsOptions), func(p *wire.Packet) { p.More = true })
	for mode, want := range map[policy.Mode]string{
		policy.Always: "drop_fragment", policy.Monitor: "drop_fragment", policy.Adaptive: "pass_other", policy.Off: "pass_other",
	} {
		e := newEdge(t, func(c *EdgeConfig) {
			c.Services = slices.Clone(services[:1])
			c.Services[0].Mode = mode
		})
		got := e.outside(fragment.Frame())
		if lost := got.action == xdpDrop; got.verdict != want || lost != (mode == policy.Always) {
			t.Errorf("%s: %s, action %d, want %s", mode, got.verdict, got.action, want)
		}
	}
}
