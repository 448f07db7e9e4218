package control

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"smartcookie/internal/keys"
)

// grace is for handshakes that were under way when an edge began to enforce.
const grace = 3 * time.Second

// Agent is an agent that an edge believes.
type Agent struct {
	ID       uint32
	Address  netip.AddrPort
	Domain   string
	Protects []netip.Prefix // its addresses: it may speak for no others
	MSS      uint16         // the largest that the edge answers with there
	Relays   bool           // packets go there in messages

	// SomeOff says that SYNs of a service there pass unanswered, Off that all
	// services there are off. Modes change while the edge runs: see SetOff.
	SomeOff, Off bool
}

// EdgeConfig is what an edge's endpoint needs to know.
type EdgeConfig struct {
	ID         uint32
	Agents     []Agent
	Generation time.Duration
	Learn      time.Duration // after which it enforces without an announcement
}

// EdgePlane is the data plane of an edge.
type EdgePlane interface {
	// Learn puts flows into the filter, those of protected services, and
	// returns how many.
	Learn(flows []Flow) (int, error)
	// SetPeer shows how the edge stands to an agent.
	SetPeer(agent uint32, p Peer) error
	// GetPeer returns what an earlier daemon left.
	GetPeer(agent uint32) (Peer, bool)
	// SetListeners replaces the ports on which an agent listens.
	SetListeners(agent uint32, listeners []netip.AddrPort) error
}

// Edge is the endpoint of an edge.
type Edge struct {
	World
	Counters
	config EdgeConfig
	plane  EdgePlane

	mu     sync.Mutex
	agents map[uint32]*agentPeer
	flows  []Flow // of the message at hand
	asked  asked
}

// agentPeer is an agent as the edge knows it.
type agentPeer struct {
	Agent
	association
	ring keyring

	phase      Phase
	heard      bool          // since this daemon began
	heardAt    time.Duration // last STATE
	skew       time.Duration // its clock less ours, when it came
	toldAt     time.Duration // when the last whole announcement began
	sinceAt    time.Duration // since when the phase may end
	complete   int           // whole announcements since then
	wantsAll   bool
	differs    Disagreement
	off        bool
	anyListens bool
	listeners  []netip.AddrPort

	// The announcement that is coming in.
	number   uint32
	begun    time.Duration
	received uint64
	total    uint64 // 0: its last message has not come
}

// NewEdge makes an endpoint. Phases that an earlier daemon left go on.
func NewEdge(c EdgeConfig, w World, plane EdgePlane) *Edge {
	e := &Edge{World: w, config: c, plane: plane, agents: make(map[uint32]*agentPeer)}
	for _, a := range c.Agents {
		p := &agentPeer{
			Agent: a, ring: keyring{w.Keys, a.Domain, c.ID, a.ID},
			heardAt: w.Monotonic(), wantsAll: true,
		}
		p.own = w.Random()
		if old, ok := plane.GetPeer(a.ID); ok {
			p.phase, p.anyListens, p.toldAt = old.Phase, old.AnyListens, old.Heard
		}
		if p.Off {
			p.phase = Unheard
		}
		e.agents[a.ID] = p
	}
	return e
}

// Serve receives until the socket is closed.
func (e *Edge) Serve() error { return e.serve(&e.Counters, e.receive) }

// SetOff says anew of an agent what its services' modes make of it.
func (e *Edge) SetOff(agent uint32, someOff, off bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.agents[agent]; p != nil {
		p.SomeOff, p.Off = someOff, off
	}
}

// Skews returns how far the clocks of agents that are heard are before ours, by their
// ids. The time of their messages on the way is in it.
func (e *Edge) Skews() map[uint32]time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[uint32]time.Duration)
	for id, p := range e.agents {
		if p.heard && e.Monotonic()-p.heardAt <= Silence {
			all[id] = p.skew
		}
	}
	return all
}

// Tick greets every agent; it is called once a second.
func (e *Edge) Tick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.agents {
		e.advance(p)
		e.hello(p)
	}
}

// Leave tells every agent that this edge no longer enforces: it is off.
func (e *Edge) Leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.agents {
		p.phase = Unheard
		e.hello(p)
	}
}

func (e *Edge) hello(p *agentPeer) {
	agreement := e.Keys.Agreement(p.Domain, periodOf(e.Keys.NowNS()))
	h := Hello{
		ClockNS: e.Keys.NowNS(), Fingerprint: agreement.Fingerprint, GenerationMS: uint32(e.config.Generation.Milliseconds()),
		EpochSeconds: agreement.EpochSeconds, Scale: agreement.Scale, MSS: p.MSS,
		WantsAll: p.wantsAll, Enforces: p.phase == Enforced && !p.SomeOff,
	}
	flags, body := h.encode()
	e.transmit(p, KindHello, flags, body, SentHello)
}

func (e *Edge) transmit(p *agentPeer, kind Kind, flags uint16, body []byte, event Event) (sent bool) {
	n := e.send(&p.ring, keys.ToAgent, e.config.ID, &p.association, p.Address, kind, flags, body)
	if n <= 0 {
		return false
	}
	e.add(event, 1)
	e.add(SentBytes, uint64(n))
	return true
}

func (e *Edge) receive(m []byte, from netip.AddrPort) Event {
	h, body, refusal := open(m)
	if refusal != accepted {
		return refusal
	}
	if h.Kind != KindState && h.Kind != KindFlows && h.Kind != KindConfirm {
		return RefusedKind
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.agents[h.Sender]
	if p == nil || p.Address != from {
		return RefusedSender
	}
	if refusal := e.check(&p.ring, keys.ToEdge, h, m); refusal != accepted {
		e.unheard(p, refusal)
		return refusal
	}
	if refusal := e.associate(p, h); refusal != accepted {
		return refusal
	}
	switch h.Kind {
	case KindState:
		return e.state(p, h, body)
	case KindConfirm:
		return e.confirmed(p, h, body)
	}
	return e.learn(p, h, body)
}

// associate wants a message that was made for this session of ours, by the
// session of the agent that answered to it first.
func (e *Edge) associate(p *agentPeer, h Header) Event {
	if h.Echo != p.own || h.Session == 0 {
		return RefusedSession
	}
	if p.peer == 0 && h.Kind == KindState {
		p.peer, p.window = h.Session, window{}
		p.wantsAll, p.number, p.total = true, 0, 0
		if p.phase == Enforced && e.Monotonic()-p.toldAt > e.config.Generation {
			e.enter(p, Grace) // one of us was away for so long that flows are forgotten
		}
		defer e.hello(p) // at once: the agent waits for its session to come back
	}
	if h.Session != p.peer {
		if p.peer != 0 { // it has begun anew, and so do we: nothing old fits any more
			p.own, p.peer = e.Random(), 0
			e.hello(p)
		}
		return RefusedSession
	}
	if !p.window.take(h.Counter) {
		return RefusedReplay
	}
	return accepted
}

func (e *Edge) state(p *agentPeer, h Header, body []byte) Event {
	s, ok := decodeState(h.Flags, body)
	if !ok {
		return RefusedBody
	}
	now := e.Monotonic()
	if !p.heard {
		p.sinceAt = now
	}
	p.heard, p.heardAt, p.off = true, now, s.Off || p.Off
	clock := e.Keys.NowNS()
	p.skew = time.Duration(s.ClockNS - clock)
	d := differences(e.Keys.Agreement(p.Domain, h.Period), Agreement{s.Fingerprint, s.EpochSeconds, s.Scale}, clock, s.ClockNS)
	if int(p.MSS)+ip4Headers > int(s.MTU) || p.Relays && int(s.MTU) < relayMTU(p.Address.Addr()) {
		d |= DisagreeMSS
	}
	if s.Off != p.Off {
		d |= DisagreeMode
	}
	if d != p.differs {
		e.disagree("agent", p.ID, &p.differs, d)
		e.show(p)
	}
	e.listen(p, &s)
	if p.phase == Silent {
		e.enter(p, Grace)
	}
	e.advance(p)
	return HeardState
}

const ip4Headers = 40 // of IPv4 and TCP, which an MSS leaves room for

// listen takes over where the agent listens, at its own addresses.
func (e *Edge) listen(p *agentPeer, s *State) {
	own := slices.DeleteFunc(s.Listeners, func(l netip.AddrPort) bool {
		foreign := !l.Addr().IsUnspecified() && !p.owns(l.Addr())
		if foreign {
			e.add(RefusedForeign, 1)
		}
		return foreign
	})
	slices.SortFunc(own, netip.AddrPort.Compare)
	own = slices.Compact(own)
	if slices.Equal(own, p.listeners) && p.anyListens == s.AnyListens && p.listeners != nil {
		return
	}
	if err := e.plane.SetListeners(p.ID, own); err != nil {
		e.Log.Error(err.Error())
		return
	}
	p.listeners, p.anyListens = append([]netip.AddrPort{}, own...), s.AnyListens
	e.show(p)
}

func (p *agentPeer) owns(a netip.Addr) bool {
	return slices.ContainsFunc(p.Protects, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

func (e *Edge) learn(p *agentPeer, h Header, body []byte) Event {
	a, ok := decodeFlows(h.Flags, body, e.flows[:0])
	if !ok {
		return RefusedBody
	}
	e.flows = a.flows
	for i := range a.flows {
		if !p.owns(a.flows[i].Server.Addr()) {
			return RefusedForeign // nothing of such a message is believed
		}
	}
	n, err := e.plane.Learn(a.flows)
	if err != nil {
		e.Log.Error(err.Error())
	}
	e.add(Learned, uint64(n))
	e.add(RefusedUnprotected, uint64(len(a.flows)-n))
	p.progress(&a, e.Monotonic())
	if p.total > 0 && p.received == p.total {
		e.announced(p)
	}
	return HeardFlows
}

// progress counts the messages of an announcement; none comes twice.
func (p *agentPeer) progress(a *announced, now time.Duration) {
	if p.number != a.announcement {
		p.number, p.begun, p.received, p.total = a.announcement, now, 0, 0
	}
	p.received++
	if a.last {
		p.total = uint64(a.index) + 1
	}
}

// announced: the edge has all of the agent's flows.
func (e *Edge) announced(p *agentPeer) {
	p.wantsAll, p.toldAt = false, p.begun
	e.show(p)
	if p.phase != Grace || p.begun >= p.sinceAt+grace {
		p.complete++
	}
	e.advance(p)
}

// advance moves an agent on to the phase that is due.
func (e *Edge) advance(p *agentPeer) {
	now := e.Monotonic()
	switch {
	case p.phase != Unheard && p.heard && p.off:
		e.enter(p, Unheard)
	case now-p.heardAt > Silence && (p.phase == Grace || p.phase == Enforced):
		e.enter(p, Silent)
	case p.phase == Unheard && p.heard && !p.off && (p.complete > 0 || now-p.sinceAt >= e.config.Learn):
		e.enter(p, Grace)
	case p.phase == Grace && p.heard && (p.complete > 0 || now-p.sinceAt >= max(2*e.config.Generation, grace)):
		e.enter(p, Enforced)
	}
}

func (e *Edge) enter(p *agentPeer, phase Phase) {
	e.Log.Info("agent", "id", p.ID, "phase", phase.String(), "was", p.phase.String())
	p.phase, p.sinceAt, p.complete = phase, e.Monotonic(), 0
	e.show(p)
}

func (e *Edge) show(p *agentPeer) {
	if err := e.plane.SetPeer(p.ID, Peer{p.phase, p.differs, p.anyListens, p.toldAt}); err != nil {
		e.Log.Error(err.Error())
	}
}

// unheard names the likely cause why a configured peer is not heard. What its
// messages say is not believed; while others of it are, these are forged.
func (e *Edge) unheard(p *agentPeer, refusal Event) {
	if p.heard && e.Monotonic()-p.heardAt <= Silence {
		return
	}
	if d := p.differs | likely(refusal); d != p.differs {
		e.disagree("agent", p.ID, &p.differs, d)
		e.show(p)
	}
}

func likely(refusal Event) Disagreement {
	switch refusal {
	case RefusedPeriod:
		return UnheardClock
	case RefusedTag, RefusedKey:
		return UnheardKey
	}
	return 0
}
