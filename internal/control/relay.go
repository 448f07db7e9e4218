package control

import (
	"net/netip"
	"time"
)

// Relay sends a packet to the agent that protects its destination, as a SETUP
// or a PROBE. Fail closed: what cannot be sent is lost, and its client sends
// it again.
func (e *Edge) Relay(kind Kind, packet []byte) {
	flow, ok := segmentFlow(packet)
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.protector(flow.Server.Addr())
	if !ok || p == nil || p.peer == 0 || e.Monotonic()-p.heardAt > Silence {
		e.add(Unsent, 1)
		return
	}
	e.asked.add(flow, p.ID, e.Monotonic())
	event := SentSetup
	if kind == KindProbe {
		event = SentProbe
	}
	if !e.transmit(p, kind, 0, packet, event) {
		e.add(Unsent, 1)
	}
}

// protector is the agent with the longest prefix around an address.
func (e *Edge) protector(a netip.Addr) (best *agentPeer) {
	bits := -1
	for _, p := range e.agents {
		for _, prefix := range p.Protects {
			if prefix.Bits() > bits && prefix.Contains(a) {
				best, bits = p, prefix.Bits()
			}
		}
	}
	return best
}

// confirmed believes an agent about its own addresses, and about flows that it
// was asked about: one that lies gains nothing.
func (e *Edge) confirmed(p *agentPeer, h Header, body []byte) Event {
	a := announced{flows: e.flows[:0]}
	if h.Flags != 0 || len(body) == 0 || !a.groups(body) {
		return RefusedBody
	}
	e.flows = a.flows
	known := a.flows[:0]
	for _, f := range a.flows {
		if !p.owns(f.Server.Addr()) {
			return RefusedForeign
		}
		if e.asked.has(f, p.ID, e.Monotonic()) {
			known = append(known, f)
		}
	}
	e.add(RefusedUnasked, uint64(len(a.flows)-len(known)))
	n, err := e.plane.Learn(known)
	if err != nil {
		e.Log.Error(err.Error())
	}
	e.add(Learned, uint64(n))
	e.add(RefusedUnprotected, uint64(len(known)-n))
	return HeardConfirm
}

// asked remembers about which flows an edge has asked which agent, for one to
// two times askedFor, and askedMost of them in each.
type asked struct {
	current, before map[Flow]uint32
	since           time.Duration
}

const (
	askedFor  = 2 * time.Second
	askedMost = 1 << 15
)

func (a *asked) turn(now time.Duration) {
	if now-a.since >= 2*askedFor {
		a.current = nil
	}
	a.current, a.before, a.since = make(map[Flow]uint32), a.current, now
}

func (a *asked) add(f Flow, agent uint32, now time.Duration) {
	if a.current == nil || now-a.since >= askedFor || len(a.current) >= askedMost {
		a.turn(now)
	}
	a.current[f] = agent
}

func (a *asked) has(f Flow, agent uint32, now time.Duration) bool {
	if now-a.since >= askedFor {
		a.turn(now)
	}
	return a.current[f] == agent || a.before[f] == agent
}
