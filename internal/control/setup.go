package control

import (
	"bytes"
	"time"
)

// setup is a packet that was injected and whose connection has not been seen.
type setup struct {
	edge    uint32
	session uint64
	flow    Flow
	packet  []byte
	looks   int
}

// How often a connection is looked for that was not there right after its
// packet was injected, and for how many at a time.
const (
	lookEvery       = 5 * time.Millisecond
	looksMost       = 10
	unconfirmedMost = 256
)

// relayed takes a packet that an edge has sent on. It is judged twice: here, as
// to whether it concerns us, and by our programs, like any other packet.
func (a *AgentEndpoint) relayed(p *edgePeer, h Header, packet []byte) Event {
	if h.Session == 0 || h.Session != p.peer || h.Echo != p.own {
		return RefusedSession
	}
	if !p.window.take(h.Counter) {
		return RefusedReplay
	}
	flow, ok := segmentFlow(packet)
	if !ok || h.Flags != 0 {
		return RefusedBody
	}
	if !a.plane.IsLocal(flow.Server.Addr()) {
		return RefusedForeign
	}
	if !a.plane.Serves(flow.Server) {
		return RefusedUnprotected
	}
	s := setup{edge: p.ID, session: p.peer, flow: flow, packet: packet}
	if h.Kind == KindProbe {
		return a.probe(p, &s)
	}
	a.inject(&s, false)
	if a.known(&s) {
		a.confirmTo(p, []Flow{flow})
		return HeardSetup
	}
	a.lookLater(s)
	return HeardSetup
}

// probe confirms a connection that the edge does not know.
func (a *AgentEndpoint) probe(p *edgePeer, s *setup) Event {
	if !a.known(s) {
		return UnknownProbe
	}
	a.inject(s, true)
	a.confirmTo(p, []Flow{s.flow})
	return HeardProbe
}

func (a *AgentEndpoint) inject(s *setup, onlyKnown bool) {
	if err := a.plane.Inject(s.flow, s.packet, onlyKnown); err != nil {
		a.Log.Error(err.Error())
	}
}

func (a *AgentEndpoint) known(s *setup) bool {
	known, err := a.plane.Known(s.flow, s.packet)
	if err != nil {
		a.Log.Error(err.Error())
	}
	return known
}

// confirmTo tells an edge of connections.
func (a *AgentEndpoint) confirmTo(p *edgePeer, flows []Flow) {
	packed := newPacker()
	for _, f := range flows {
		packed.add(f)
	}
	packed.flush()
	for _, b := range packed.done {
		a.transmit(p, &p.association, KindConfirm, 0, b.body[flowsBytes:], SentConfirm)
		a.add(Confirmed, uint64(b.flows))
	}
}

// lookLater is for a connection that the kernel makes a moment later, on
// another CPU. Where there are too many, the client's next packet asks again.
func (a *AgentEndpoint) lookLater(s setup) {
	if len(a.unconfirmed) >= unconfirmedMost {
		a.add(UnconfirmedSetup, 1)
		return
	}
	s.packet = bytes.Clone(s.packet) // the buffer is the next message's
	a.unconfirmed = append(a.unconfirmed, s)
	select {
	case a.again <- struct{}{}:
	default: // somebody will look anyway
	}
}

// Unconfirmed tells that Reconfirm has something to do.
func (a *AgentEndpoint) Unconfirmed() <-chan struct{} { return a.again }

// Reconfirm looks again until each connection was found or given up.
func (a *AgentEndpoint) Reconfirm() {
	for a.lookAgain() {
		a.pause(lookEvery)
	}
}

// lookAgain says whether any is left.
func (a *AgentEndpoint) lookAgain() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := make(map[*edgePeer][]Flow)
	left := a.unconfirmed[:0]
	for _, s := range a.unconfirmed {
		p := a.edges[s.edge]
		switch s.looks++; {
		case p.peer != s.session: // the edge has begun anew and forgotten it
			a.add(UnconfirmedSetup, 1)
		case a.known(&s):
			found[p] = append(found[p], s.flow)
		case s.looks >= looksMost:
			a.add(UnconfirmedSetup, 1)
		default:
			left = append(left, s)
		}
	}
	clear(a.unconfirmed[len(left):])
	a.unconfirmed = left
	for p, flows := range found {
		a.confirmTo(p, flows)
	}
	return len(left) > 0
}
