package control

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestRestartedEdgeLearnsEverythingAtOnce(t *testing.T) {
	p := newPair(t)
	for i := range 1000 {
		p.flows = append(p.flows, Flow{netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), uint16(i+1)), web4})
	}
	p.second()
	for restart := range 5 {
		p.edgePlane.filter = map[Flow]bool{}
		p.startEdge()
		from := p.now
		p.second()
		p.second()
		if len(p.edgePlane.filter) != len(p.flows) {
			t.Fatalf("restart %d: it knows %d of %d flows", restart, len(p.edgePlane.filter), len(p.flows))
		}
		t.Logf("restart %d: all known after at most %s", restart, p.now-from)
	}
}

func TestFlowsAreAnnouncedEveryHalfGeneration(t *testing.T) {
	p := newPair(t)
	p.seconds(3)
	before := p.agent.Read()[Announced]
	p.seconds(300) // ten half generations
	sent := p.agent.Read()[Announced] - before
	if per := uint64(len(p.flows)); sent < 9*per || sent > 10*per {
		t.Errorf("%d announcements of %d flows in ten half generations", sent, per)
	}
}

func TestEdgeEnforcesAfterItHasHeardAndLearnt(t *testing.T) {
	p := newPair(t)
	p.wantPhase(Unheard)
	p.wire.lose = func(m packet) bool { return Kind(m.bytes[1]) == KindFlows }
	p.seconds(20)
	p.wantPhase(Unheard) // heard, but it would cut what it does not know
	if p.agentPlane.enforced > p.now {
		t.Error("the agent is strict though no edge enforces")
	}
	p.wire.lose = nil
	p.seconds(30)
	p.wantPhase(Grace)
	p.seconds(40)
	p.wantPhase(Enforced)
	p.second()
	if p.agentPlane.enforced <= p.now {
		t.Error("the agent is not strict though its edge enforces")
	}
}

func (p *pair) enforced() *pair {
	p.t.Helper()
	p.seconds(120)
	p.wantPhase(Enforced)
	return p
}

func TestLostPieceIsNoWholeAnnouncement(t *testing.T) {
	p := newPair(t)
	for i := range 1000 {
		p.flows = append(p.flows, Flow{netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), uint16(i+1)), web4})
	}
	lost := false
	p.wire.lose = func(m packet) bool {
		first := !lost && Kind(m.bytes[1]) == KindFlows
		lost = lost || first
		return first
	}
	p.seconds(10)
	p.wantPhase(Unheard)
	p.seconds(30)
	p.wantPhase(Grace)
}

func TestSilentAgentAndItsReturn(t *testing.T) {
	p := newPair(t).enforced()
	p.wire.lose = func(packet) bool { return true }
	p.seconds(4)
	p.wantPhase(Enforced)
	p.seconds(3)
	p.wantPhase(Silent)
	p.seconds(3)
	if p.agentPlane.enforced > p.now {
		t.Error("the agent is strict though its edge has fallen silent")
	}
	p.wire.lose = nil
	p.seconds(2)
	p.wantPhase(Grace)
	p.seconds(70)
	p.wantPhase(Enforced)
}

func TestAgentThatRestartsIsHeardAgain(t *testing.T) {
	p := newPair(t).enforced()
	for range 5 {
		p.startAgent()
		before := p.edge.Read()[HeardState]
		p.seconds(2)
		if p.edge.Read()[HeardState] == before {
			t.Fatal("its STATE is not accepted")
		}
		p.wantPhase(Enforced)
	}
}

func TestHalvesThatAreDetachedSaySo(t *testing.T) {
	p := newPair(t).enforced()
	p.edge.Leave()
	p.settle()
	if p.agentPlane.enforced > p.now {
		t.Error("the agent is strict though its edge has left")
	}
	p = newPair(t).enforced()
	p.agent.Leave()
	p.settle()
	p.wantPhase(Unheard)
}

func TestPhaseOutlivesTheDaemon(t *testing.T) {
	p := newPair(t).enforced()
	p.startEdge()
	p.wantPhase(Enforced)
	p.seconds(3)
	p.wantPhase(Enforced)
}

// While an edge's daemon was away for longer than a generation, the filter has
// forgotten flows: unknown packets pass until it has learnt them all anew.
func TestEdgeThatWasAwayForAGenerationBeginsWithGrace(t *testing.T) {
	p := newPair(t).enforced()
	p.now += 61 * time.Second
	p.startEdge()
	p.seconds(2)
	p.wantPhase(Grace)
	p.seconds(60)
	p.wantPhase(Enforced)
}

// What is off at an edge lets SYNs through: then no agent may be strict.
func TestEdgeThatIsOffDoesNotEnforce(t *testing.T) {
	for all, phase := range map[bool]Phase{true: Unheard, false: Enforced} {
		p := newPair(t).enforced()
		p.someOff, p.allOff = true, all
		p.startEdge()
		p.seconds(5)
		p.wantPhase(phase)
		if p.agentPlane.enforced > p.now {
			t.Errorf("the agent is strict (all services are off: %t)", all)
		}
		p.someOff, p.allOff = false, false
		p.startEdge()
		p.seconds(120)
		p.wantPhase(Enforced)
		if p.agentPlane.enforced < p.now {
			t.Errorf("the agent is not strict (all services were off: %t)", all)
		}
	}
}

// A mode that changes while the edge runs is told within a second, and needs no
// new beginning.
func TestEdgeThatBecomesPassiveStopsEnforcing(t *testing.T) {
	p := newPair(t).enforced()
	for range 3 {
		p.edge.SetOff(agentID, true, false)
		p.seconds(2)
		p.wantPhase(Enforced)
		if p.agentPlane.enforced > p.now {
			t.Error("the agent is strict while a service is passive")
		}
		p.edge.SetOff(agentID, false, false)
		p.seconds(2)
		if p.agentPlane.enforced < p.now {
			t.Error("the agent is not strict while all services are defended")
		}
	}
	p.edge.SetOff(agentID, true, true)
	p.seconds(5)
	p.wantPhase(Unheard)
	p.edge.SetOff(agentID, false, false)
	p.seconds(120)
	p.wantPhase(Enforced)
}

func TestAgentThatIsOffIsNotEnforced(t *testing.T) {
	p := newPair(t).enforced()
	p.local.Off = true
	p.seconds(2)
	p.wantPhase(Unheard)
	if d := p.edge.agents[agentID].differs; d != DisagreeMode {
		t.Errorf("disagreements %v", d.Names())
	}
	p.local.Off = false
	p.seconds(120)
	p.wantPhase(Enforced)
}

func TestOneEdgeThatDoesNotEnforceKeepsTheAgentLenient(t *testing.T) {
	p := newPair(t).enforced()
	other := &edgePeer{EdgePeer: EdgePeer{ID: 8}, heardAt: p.now, ring: p.agent.edges[edgeID].ring}
	other.peer = 1
	p.agent.edges[8] = other
	p.second()
	if p.agentPlane.enforced > p.now {
		t.Error("strict, though an edge lets SYNs through")
	}
}

func TestListenersAreTheAgentsOwn(t *testing.T) {
	p := newPair(t)
	any4 := netip.MustParseAddrPort("0.0.0.0:80")
	p.local.Listeners = []netip.AddrPort{web4, any4, netip.MustParseAddrPort("198.51.100.1:443")}
	p.seconds(2)
	if want := []netip.AddrPort{any4, web4}; !slices.Equal(p.edgePlane.listeners, want) {
		t.Errorf("%v, want %v", p.edgePlane.listeners, want)
	}
	if p.edge.Read()[RefusedForeign] == 0 {
		t.Error("the foreign listener is not counted")
	}
	p.local.Listeners = nil
	p.seconds(2)
	if len(p.edgePlane.listeners) != 0 {
		t.Error("the edge still believes in listeners")
	}
	for i := range 300 {
		p.local.Listeners = append(p.local.Listeners, netip.AddrPortFrom(web4.Addr(), uint16(i+1)))
	}
	p.seconds(2)
	if !p.edgePlane.peers[agentID].AnyListens {
		t.Error("a list that does not fit does not make every port count as listening")
	}
}

func TestDisagreementsHaveNames(t *testing.T) {
	for name, change := range map[string]func(*pair){
		"key": func(p *pair) {
			f := newKeys(t, 8, 1)
			if err := f.Rotate("web", f.Epoch(time.Unix(0, int64(begin)))+100_000, 1, 7, p.random); err != nil {
				t.Fatal(err)
			}
			p.agentKeys.file = f
		},
		"epoch_length":  func(p *pair) { p.agentKeys.file = newKeys(t, 4, 1) },
		"clock":         func(p *pair) { p.agentKeys.skew = 5 * time.Second },
		"mss":           func(p *pair) { p.local.MTU = 1400 },
		"mode":          func(p *pair) { p.local.Off = true },
		"unheard_key":   func(p *pair) { p.agentKeys.file = newKeys(t, 8, 9) },
		"unheard_clock": func(p *pair) { p.agentKeys.skew = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			change(p)
			p.startAgent()
			p.seconds(8)
			if got := p.edge.agents[agentID].differs.Names(); !slices.Equal(got, []string{name}) && name[:2] != "un" {
				t.Errorf("the edge says %q", got)
			}
			if got := p.agent.edges[edgeID].differs.Names(); name[:2] == "un" && !slices.Equal(got, []string{name}) {
				t.Errorf("the agent says %q", got)
			}
		})
	}
}

// Both ends see the same skew, from their own side; of who is silent there is none.
func TestSkewIsThePeersClockLessOwn(t *testing.T) {
	const skew = 3 * time.Second
	p := newPair(t)
	p.agentKeys.skew = skew
	p.startAgent()
	if len(p.edge.Skews()) > 0 || len(p.agent.Skews()) > 0 {
		t.Error("a skew of somebody who was never heard")
	}
	p.seconds(3)
	near := func(got, want time.Duration) bool { return (got - want).Abs() <= 100*time.Millisecond }
	if got, ok := p.edge.Skews()[agentID]; !ok || !near(got, skew) {
		t.Errorf("the agent's clock, at the edge: %v, %v", got, ok)
	}
	if got, ok := p.agent.Skews()[edgeID]; !ok || !near(got, -skew) {
		t.Errorf("the edge's clock, at the agent: %v, %v", got, ok)
	}
	p.wire.lose = func(packet) bool { return true }
	p.seconds(int(Silence/time.Second) + 2)
	if len(p.edge.Skews()) > 0 || len(p.agent.Skews()) > 0 {
		t.Error("a skew of somebody who is silent")
	}
}

func TestPackedFlowsComeOut(t *testing.T) {
	for _, n := range []int{0, 1, 221, 222, 223, 5000} {
		for _, servers := range []int{1, 3, 2000} {
			t.Run(fmt.Sprint(n, " flows of ", servers), func(t *testing.T) {
				packed, want := newPacker(), map[Flow]bool{}
				for i := range n {
					f := numbered(i, servers)
					want[f] = true
					packed.add(f)
				}
				packed.flush()
				for _, b := range packed.done {
					if len(b.body) > bodyBytes {
						t.Fatalf("a body of %d bytes", len(b.body))
					}
					a, ok := decodeFlows(0, b.body, nil)
					if !ok || len(a.flows) != b.flows {
						t.Fatalf("%d flows of %d, %v", len(a.flows), b.flows, ok)
					}
					for _, f := range a.flows {
						delete(want, f)
					}
				}
				if len(want) > 0 {
					t.Errorf("%d flows are missing", len(want))
				}
			})
		}
	}
}

func numbered(i, servers int) Flow {
	port := uint16(1000 + i%servers)
	if i%3 == 0 {
		return Flow{netip.AddrPortFrom(netip.MustParseAddr("2001:db8:9::1"), uint16(i)), netip.AddrPortFrom(web6.Addr(), port)}
	}
	return Flow{netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), uint16(i)), netip.AddrPortFrom(web4.Addr(), port)}
}

func TestWindowTakesEachCounterOnce(t *testing.T) {
	var w window
	for _, step := range []struct {
		counter uint64
		want    bool
	}{
		{0, false}, {1, true}, {1, false}, {3, true}, {2, true}, {2, false}, {1024, true}, {1025, true},
		{1, false}, {4, true}, {5000, true}, {5000 - windowSize, false}, {5000 - windowSize + 1, true},
		{1 << 63, true}, {5000, false}, {1<<63 - 1, true}, {^uint64(0), true}, {^uint64(0), false},
	} {
		if got := w.take(step.counter); got != step.want {
			t.Errorf("counter %d: %v, want %v", step.counter, got, step.want)
		}
	}
	for top := range uint64(200) {
		w.only(top)
		for c := range top + 1 {
			if w.take(c) {
				t.Fatalf("%d is taken, though only %d and later are new", c, top+1)
			}
		}
		if !w.take(top+1) || !w.take(top+70) {
			t.Fatalf("counters behind %d are not taken", top)
		}
	}
}
