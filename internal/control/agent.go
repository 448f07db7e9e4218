package control

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/keys"
)

// EdgePeer is an edge to which an agent speaks.
type EdgePeer struct {
	ID      uint32
	Address netip.AddrPort
}

// AgentConfig is what an agent's endpoint needs to know.
type AgentConfig struct {
	ID     uint32
	Domain string
	Edges  []EdgePeer
}

// AgentPlane is the data plane of an agent.
type AgentPlane interface {
	// SetEnforced makes the agent strict until a monotonic time, if an edge
	// enforces; 0: not at all.
	SetEnforced(until time.Duration) error
	// SetPeer shows what the agent knows of an edge.
	SetPeer(edge uint32, p Peer) error
	// Serves says whether a service of ours is at an address and port.
	Serves(at netip.AddrPort) bool
	// IsLocal says whether an address is this host's own.
	IsLocal(a netip.Addr) bool
	// Inject lets a packet come in as if it came from the wire; with onlyKnown
	// nothing but a packet of a connection that the kernel has.
	Inject(f Flow, packet []byte, onlyKnown bool) error
	// Known says whether the kernel has the connection of a packet. One
	// goroutine at a time calls it or Inject.
	Known(f Flow, packet []byte) (bool, error)
}

// Local is what an agent knows of its own host.
type Local struct {
	MTU    uint16
	Strict bool
	Off    bool

	AnyListens bool // where it listens is not known
	Listeners  []netip.AddrPort
}

// AgentEndpoint is the endpoint of a server agent.
type AgentEndpoint struct {
	World
	Counters
	config AgentConfig
	plane  AgentPlane
	source Source
	wake   chan struct{}
	again  chan struct{}
	secret [16]byte // of the sessions that it proposes

	mu           sync.Mutex
	edges        map[uint32]*edgePeer
	local        Local
	announcement uint32
	unconfirmed  []setup

	sending sync.WaitGroup
	pause   func(time.Duration)
}

// retiredSessions are remembered to tell the replay of an old greeting.
const retiredSessions = 8

// edgePeer is an edge as the agent knows it.
type edgePeer struct {
	EdgePeer
	association
	ring keyring

	promotions uint64
	retired    [retiredSessions]uint64
	answers    int // to greetings of sessions that are not confirmed, this second

	hello     Hello
	heardAt   time.Duration
	skew      time.Duration // its clock less ours, then
	differs   Disagreement
	announced bool          // in this association
	begunAt   time.Duration // the last announcement
	sending   bool
}

const answersPerSecond = 10

// NewAgent makes an endpoint.
func NewAgent(c AgentConfig, w World, plane AgentPlane, source Source) *AgentEndpoint {
	a := &AgentEndpoint{
		World: w, config: c, plane: plane, source: source, wake: make(chan struct{}, 1), again: make(chan struct{}, 1),
		edges: make(map[uint32]*edgePeer), pause: pause,
	}
	binary.LittleEndian.PutUint64(a.secret[:8], w.Random())
	binary.LittleEndian.PutUint64(a.secret[8:], w.Random())
	a.announcement = uint32(w.Random())
	for _, e := range c.Edges {
		a.edges[e.ID] = &edgePeer{EdgePeer: e, ring: keyring{w.Keys, c.Domain, e.ID, c.ID}}
	}
	return a
}

// Serve receives until the socket is closed.
func (a *AgentEndpoint) Serve() error { return a.serve(&a.Counters, a.receive) }

// Wake tells that an announcement is due.
func (a *AgentEndpoint) Wake() <-chan struct{} { return a.wake }

// Skews returns how far the clocks of edges that are heard are before ours, by their
// ids. The time of their messages on the way is in it.
func (a *AgentEndpoint) Skews() map[uint32]time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make(map[uint32]time.Duration)
	for id, p := range a.edges {
		if p.peer != 0 && a.Monotonic()-p.heardAt <= Silence {
			all[id] = p.skew
		}
	}
	return all
}

// Tick sends the heartbeat; it is called once a second.
func (a *AgentEndpoint) Tick(local Local) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.local = local
	for _, p := range a.edges {
		p.answers = 0
		if p.peer != 0 {
			a.state(p, &p.association)
		}
		if a.due(p) {
			a.wakeUp()
		}
	}
	a.enforce()
}

// Leave tells every edge that this agent sets nothing up any more: it is off.
func (a *AgentEndpoint) Leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.local.Off = true
	for _, p := range a.edges {
		if p.peer != 0 {
			a.state(p, &p.association)
		}
	}
}

func (a *AgentEndpoint) wakeUp() {
	select {
	case a.wake <- struct{}{}:
	default: // somebody will come anyway
	}
}

func (a *AgentEndpoint) state(p *edgePeer, as *association) {
	agreement := a.Keys.Agreement(a.config.Domain, periodOf(a.Keys.NowNS()))
	s := State{
		ClockNS: a.Keys.NowNS(), Fingerprint: agreement.Fingerprint, EpochSeconds: agreement.EpochSeconds,
		Scale: agreement.Scale, MTU: a.local.MTU, Strict: a.local.Strict, Off: a.local.Off,
		AnyListens: a.local.AnyListens, Listeners: a.local.Listeners,
	}
	flags, body := s.encode()
	a.transmit(p, as, KindState, flags, body, SentState)
}

func (a *AgentEndpoint) transmit(p *edgePeer, as *association, kind Kind, flags uint16, body []byte, event Event) {
	if n := a.send(&p.ring, keys.ToEdge, a.config.ID, as, p.Address, kind, flags, body); n > 0 {
		a.add(event, 1)
		a.add(SentBytes, uint64(n))
	}
}

func (a *AgentEndpoint) receive(m []byte, from netip.AddrPort) Event {
	h, body, refusal := open(m)
	if refusal != accepted {
		return refusal
	}
	if h.Kind != KindHello && h.Kind != KindSetup && h.Kind != KindProbe {
		return RefusedKind
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.edges[h.Sender]
	if p == nil || p.Address != from {
		return RefusedSender
	}
	if refusal := a.check(&p.ring, keys.ToAgent, h, m); refusal != accepted {
		if a.Monotonic()-p.heardAt > Silence || p.peer == 0 {
			a.disagree("edge", p.ID, &p.differs, p.differs|likely(refusal))
		}
		return refusal
	}
	if h.Kind != KindHello {
		return a.relayed(p, h, body)
	}
	hello, ok := decodeHello(h.Flags, body)
	if !ok {
		return RefusedBody
	}
	if event := a.confirm(p, h); event != accepted {
		return event
	}
	a.greeted(p, h, hello)
	return HeardHello
}

// confirm wants a greeting that knows the session that we have proposed for
// the edge's. A greeting that does not is answered by a proposal; nothing is
// kept for it. What we propose changes with every session that is confirmed,
// so that greetings of an older session never fit again.
func (a *AgentEndpoint) confirm(p *edgePeer, h Header) Event {
	if h.Session == 0 || slices.Contains(p.retired[:], h.Session) {
		return RefusedSession
	}
	if h.Session == p.peer {
		if !p.window.take(h.Counter) {
			return RefusedReplay
		}
		if h.Echo != p.own {
			return RefusedSession
		}
		return accepted
	}
	proposal := association{own: a.proposal(p, h.Session), peer: h.Session}
	if h.Echo != proposal.own {
		if p.answers >= answersPerSecond {
			return RefusedSession
		}
		p.answers++
		a.state(p, &proposal)
		return UnconfirmedHello
	}
	p.retired[p.promotions%retiredSessions] = p.peer
	p.promotions++
	proposal.counter = 1 << 32 // beyond all that was sent with the proposal
	p.association = proposal
	p.window.only(h.Counter)
	p.announced = false
	return accepted
}

func (a *AgentEndpoint) proposal(p *edgePeer, session uint64) uint64 {
	var m [24]byte
	binary.LittleEndian.PutUint64(m[:], uint64(p.ID))
	binary.LittleEndian.PutUint64(m[8:], session)
	binary.LittleEndian.PutUint64(m[16:], p.promotions)
	return cookie.SipHash24(a.secret, m[:]) | 1 // 0 is no session
}

func (a *AgentEndpoint) greeted(p *edgePeer, h Header, hello Hello) {
	p.hello, p.heardAt = hello, a.Monotonic()
	clock := a.Keys.NowNS()
	p.skew = time.Duration(hello.ClockNS - clock)
	d := differences(a.Keys.Agreement(a.config.Domain, h.Period),
		Agreement{hello.Fingerprint, hello.EpochSeconds, hello.Scale}, clock, hello.ClockNS)
	if int(hello.MSS)+ip4Headers > int(a.local.MTU) && a.local.MTU > 0 {
		d |= DisagreeMSS
	}
	a.disagree("edge", p.ID, &p.differs, d)
	if err := a.plane.SetPeer(p.ID, Peer{Disagreements: d, Heard: p.heardAt}); err != nil {
		a.Log.Error(err.Error())
	}
	if a.due(p) {
		a.wakeUp()
	}
	a.enforce()
}

// enforce is strict only while an edge says that it enforces, and none that is
// heard says that it does not: through that one SYNs come unanswered.
func (a *AgentEndpoint) enforce() {
	var until time.Duration
	now := a.Monotonic()
	for _, p := range a.edges {
		if p.peer == 0 || now-p.heardAt > Silence {
			continue
		}
		if !p.hello.Enforces {
			until = 0
			break
		}
		until = max(until, p.heardAt+Silence)
	}
	if err := a.plane.SetEnforced(until); err != nil {
		a.Log.Error(err.Error())
	}
}
