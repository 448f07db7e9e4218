package control

import (
	"encoding/base64"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/keys"
)

// testKeys are those of a key file at a time that the test chooses.
type testKeys struct {
	file *keys.File
	now  *time.Duration
	skew time.Duration
}

const begin = uint64(1_700_000_000) * 1e9

func (k testKeys) NowNS() uint64 { return begin + uint64(*k.now+k.skew) }

func (k testKeys) Key(domain string, to keys.Direction, edge, agent uint32, period uint64) ([16]byte, bool) {
	return k.file.ControlKey(domain, to, edge, agent, period)
}

func (k testKeys) Agreement(domain string, period uint64) Agreement {
	e, _ := k.file.EntryAt(domain, period*keys.ControlPeriodSeconds/uint64(k.file.EpochSeconds))
	return Agreement{k.file.Fingerprint(domain, period), uint8(k.file.EpochSeconds), e.WindowScale}
}

func newKeys(t testing.TB, epochSeconds uint32, seed byte) *keys.File {
	t.Helper()
	f, err := keys.New(epochSeconds)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.AddDomain("web", cookie.SipHash, 7, rand.NewChaCha8([32]byte{seed})); err != nil {
		t.Fatal(err)
	}
	return f
}

// packet is a message on its way.
type packet struct {
	from, to netip.AddrPort
	bytes    []byte
}

// wire carries messages when the test says so, and remembers them all.
type wire struct {
	queue, past []packet
	lose        func(packet) bool
}

type end struct {
	wire *wire
	at   netip.AddrPort
}

func (e end) ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error) {
	return 0, netip.AddrPort{}, net.ErrClosed
}

func (e end) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	e.wire.queue = append(e.wire.queue, packet{e.at, to, slices.Clone(b)})
	return len(b), nil
}

// plane is the data plane of either half.
type plane struct {
	filter    map[Flow]bool
	peers     map[uint32]Peer
	listeners []netip.AddrPort
	enforced  time.Duration

	// Of an agent: what its kernel has, and what came in of messages.
	connections map[Flow]bool
	injected    []Flow
	sets        func(Flow) bool // whether a packet makes a connection
}

func newPlane() *plane {
	return &plane{
		filter: map[Flow]bool{}, peers: map[uint32]Peer{}, connections: map[Flow]bool{},
		sets: func(Flow) bool { return true },
	}
}

func (p *plane) Learn(flows []Flow) (int, error) {
	n := 0
	for _, f := range flows {
		if f.Server.Port() != 9 { // no service is there
			p.filter[f] = true
			n++
		}
	}
	return n, nil
}
func (p *plane) SetPeer(id uint32, peer Peer) error { p.peers[id] = peer; return nil }
func (p *plane) GetPeer(id uint32) (Peer, bool)     { peer, ok := p.peers[id]; return peer, ok }
func (p *plane) SetListeners(_ uint32, l []netip.AddrPort) error {
	p.listeners = slices.Clone(l)
	return nil
}
func (p *plane) SetEnforced(until time.Duration) error { p.enforced = until; return nil }
func (p *plane) Serves(at netip.AddrPort) bool         { return at.Port() == web4.Port() }
func (p *plane) IsLocal(a netip.Addr) bool             { return a == web4.Addr() || a == web6.Addr() }
func (p *plane) Inject(f Flow, _ []byte, onlyKnown bool) error {
	if !onlyKnown || p.connections[f] {
		p.injected = append(p.injected, f)
	}
	if p.sets(f) && !onlyKnown {
		p.connections[f] = true
	}
	return nil
}
func (p *plane) Known(f Flow, _ []byte) (bool, error) { return p.connections[f], nil }

// table is a source of flows.
type table []Flow

func (s *table) Walk(each func(Flow)) error {
	for _, f := range *s {
		each(f)
	}
	return nil
}

const (
	edgeID  = 7
	agentID = 21
)

var (
	edgeAt  = netip.MustParseAddrPort("10.0.0.1:4789")
	agentAt = netip.MustParseAddrPort("10.0.0.2:4789")
	web4    = netip.MustParseAddrPort("203.0.113.10:443")
	web6    = netip.MustParseAddrPort("[2001:db8:1::10]:443")
)

// pair is an edge and an agent and what is between them.
type pair struct {
	t      testing.TB
	now    time.Duration
	random *rand.ChaCha8
	wire   wire
	flows  table
	local  Local

	someOff, allOff bool // of the edge's services

	edge       *Edge
	edgePlane  *plane
	edgeKeys   testKeys
	agent      *AgentEndpoint
	agentPlane *plane
	agentKeys  testKeys
}

func newPair(t testing.TB) *pair {
	file := newKeys(t, 8, 1)
	p := &pair{t: t, now: time.Hour, random: rand.NewChaCha8([32]byte{2}), edgePlane: newPlane(), agentPlane: newPlane()}
	p.edgeKeys, p.agentKeys = testKeys{file, &p.now, 0}, testKeys{file, &p.now, 0}
	p.local = Local{MTU: 1500, Listeners: []netip.AddrPort{web4, web6}}
	p.flows = table{{netip.MustParseAddrPort("192.0.2.1:1000"), web4}, {netip.MustParseAddrPort("[2001:db8:9::1]:1000"), web6}}
	p.startEdge()
	p.startAgent()
	return p
}

func (p *pair) world(at netip.AddrPort, k testKeys) World {
	return World{
		Conn: end{&p.wire, at}, Keys: k, Monotonic: func() time.Duration { return p.now },
		Random: p.random.Uint64, Log: slog.New(slog.DiscardHandler),
	}
}

func (p *pair) startEdge() {
	p.edge = NewEdge(EdgeConfig{
		ID: edgeID, Generation: time.Minute, Learn: 2 * time.Minute,
		Agents: []Agent{{
			ID: agentID, Address: agentAt, Domain: "web", MSS: 1460, SomeOff: p.someOff, Off: p.allOff,
			Protects: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:1::/48")},
		}},
	}, p.world(edgeAt, p.edgeKeys), p.edgePlane)
}

func (p *pair) startAgent() {
	p.agent = NewAgent(AgentConfig{ID: agentID, Domain: "web", Edges: []EdgePeer{{edgeID, edgeAt}}},
		p.world(agentAt, p.agentKeys), p.agentPlane, &p.flows)
	p.agent.pause = func(d time.Duration) { p.now += d }
	p.agent.Tick(p.local)
}

// second lets a second pass, with all that it brings.
func (p *pair) second() {
	p.now += time.Second
	p.edge.Tick()
	p.agent.Tick(p.local)
	p.settle()
}

func (p *pair) seconds(n int) {
	for range n {
		p.second()
	}
}

// settle delivers until there is nothing to deliver.
func (p *pair) settle() {
	for round := 0; ; round++ {
		if round > 100 {
			p.t.Fatal("messages without end")
		}
		if err := p.agent.Announce(); err != nil {
			p.t.Fatal(err)
		}
		p.agent.sending.Wait()
		if len(p.wire.queue) == 0 {
			return
		}
		for _, m := range p.wire.take() {
			p.deliver(m)
		}
	}
}

func (w *wire) take() (all []packet) {
	all, w.queue = w.queue, nil
	w.past = append(w.past, all...)
	if w.lose != nil {
		all = slices.DeleteFunc(slices.Clone(all), w.lose)
	}
	return all
}

func (p *pair) deliver(m packet) Event {
	if m.to == edgeAt {
		e := p.edge.receive(m.bytes, m.from)
		p.edge.add(e, 1)
		return e
	}
	e := p.agent.receive(m.bytes, m.from)
	p.agent.add(e, 1)
	return e
}

func (p *pair) phase() Phase { return p.edge.agents[agentID].phase }

func (p *pair) wantPhase(want Phase) {
	p.t.Helper()
	if got := p.phase(); got != want {
		p.t.Errorf("the edge is in phase %s, want %s", got, want)
	}
}

func (p *pair) wantEvent(what string, got, want Event) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// newRandom returns a random source; SMARTCOOKIE_SEED repeats a run.
func newRandom(t testing.TB) *rand.ChaCha8 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SMARTCOOKIE_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = given
	}
	t.Logf("SMARTCOOKIE_SEED=%d", seed)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}

func contractHeader(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("../../contract/contract.h")
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\\\n", " ")
}

// keyFile is a key file with one secret, in force from the beginning.
func keyFile(secret []byte) string {
	return "format: 1\nepoch_seconds: 8\ndomains:\n  \"web\":\n    - id: 1\n      from_epoch: 0\n" +
		"      hash: siphash-2-4\n      window_scale: 7\n      key: " + base64.StdEncoding.EncodeToString(secret) + "\n"
}
