package control

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"smartcookie/internal/keys"
)

// nothing wants that no message of a kind has entered the filter.
func (p *pair) nothing(what string) {
	p.t.Helper()
	if len(p.edgePlane.filter) > 0 {
		p.t.Errorf("%s: %d flows have entered the filter", what, len(p.edgePlane.filter))
	}
}

// heard returns a pair that knows each other, with an empty filter, and the
// messages that made it so.
func heard(t testing.TB) (p *pair, past []packet) {
	p = newPair(t)
	p.seconds(3)
	if len(p.edgePlane.filter) == 0 {
		t.Fatal("nothing was learnt")
	}
	p.edgePlane.filter = map[Flow]bool{}
	return p, slices.Clone(p.wire.past)
}

func refusals(c *Counters) (n uint64) {
	for e := range eventCount {
		if e.refuses() {
			n += c[e].Load()
		}
	}
	return n
}

func (e Event) refuses() bool { return strings.HasPrefix(e.String(), "refused_") }

func TestMillionForgedMessagesTeachNothing(t *testing.T) {
	const forged = 1_000_000
	p, past := heard(t)
	past = slices.DeleteFunc(past, func(m packet) bool { return m.to != edgeAt })
	random := newRandom(t)
	before := refusals(&p.edge.Counters)
	var m [messageBytes + 8]byte
	for i := range forged {
		size := int(random.Uint64() % uint64(len(m)))
		if i%2 == 0 { // half of them as right as one can guess
			size = copy(m[:], past[i/2%len(past)].bytes)
			binary.BigEndian.PutUint64(m[32:], 1<<40+uint64(i))
		}
		_, _ = random.Read(m[max(size-tagBytes, 0):size])
		if i%2 != 0 {
			_, _ = random.Read(m[:min(size, headerBytes)])
		}
		p.deliver(packet{agentAt, edgeAt, m[:size]})
	}
	p.nothing("forged messages")
	if n := refusals(&p.edge.Counters) - before; n != forged {
		t.Errorf("%d of %d forged messages are counted", n, forged)
	}
	if n := p.edge.Read()[RefusedTag]; n < forged/10 {
		t.Errorf("only %d forged messages were good enough to need their tag checked", n)
	}
}

func TestEveryTruncationAndChangeIsRefused(t *testing.T) {
	p, past := heard(t)
	tried := uint64(0)
	before := refusals(&p.edge.Counters) + refusals(&p.agent.Counters)
	for _, m := range past {
		for n := range len(m.bytes) {
			p.deliver(packet{m.from, m.to, m.bytes[:n]})
			changed := slices.Clone(m.bytes)
			changed[n] ^= 1 << (n % 8)
			p.deliver(packet{m.from, m.to, changed})
			tried += 2
		}
	}
	p.nothing("truncated and changed messages")
	if n := refusals(&p.edge.Counters) + refusals(&p.agent.Counters) - before; n != tried {
		t.Errorf("%d of %d are counted", n, tried)
	}
}

func TestReplaysTeachNothing(t *testing.T) {
	p, past := heard(t)
	replay := func(what string) {
		t.Helper()
		for _, m := range past {
			if e := p.deliver(m); !e.refuses() && e != UnconfirmedHello {
				t.Errorf("%s: a replayed message of kind %d counts as %s", what, m.bytes[1], e)
			}
		}
		p.wire.queue = nil
		p.nothing(what)
	}
	replay("in the same period")
	p.wire.lose = func(m packet) bool { return Kind(m.bytes[1]) == KindFlows }
	p.startEdge()
	replay("to an edge that has begun anew")
	p.seconds(2)
	replay("to an edge that is heard again")
	p.startAgent()
	replay("from an agent that has begun anew")
	p.seconds(2)
	replay("when both are")
	if p.agent.edges[edgeID].peer == 0 || p.edge.agents[agentID].peer != p.agent.edges[edgeID].own {
		t.Error("replays have parted the halves")
	}
	p.wire.lose = func(packet) bool { return true }
	p.seconds(4 * keys.ControlPeriodSeconds)
	for _, m := range past {
		p.wantEvent("of an old period", p.deliver(m), RefusedPeriod)
	}
	p.nothing("of an old period")
}

// An attacker who replays all that he has seen, between all that happens, must
// not keep the halves from finding each other.
func TestHalvesFindEachOtherAmongReplays(t *testing.T) {
	p, past := heard(t)
	p.startEdge()
	p.edgePlane.filter = map[Flow]bool{}
	for range 3 {
		for _, m := range past {
			p.deliver(m)
		}
		p.second()
		past = slices.Clone(p.wire.past)
	}
	if len(p.edgePlane.filter) != len(p.flows) {
		t.Errorf("the edge knows %d of %d flows", len(p.edgePlane.filter), len(p.flows))
	}
}

func TestMessageFromElsewhereIsRefused(t *testing.T) {
	p, _ := heard(t)
	p.wire.lose = func(packet) bool { return true }
	p.wire.past = nil
	p.seconds(40)
	for _, m := range p.wire.past {
		for _, from := range []string{"203.0.113.5:4789", "10.0.0.2:4790"} {
			p.wantEvent("from "+from, p.deliver(packet{netip.MustParseAddrPort(from), m.to, m.bytes}), RefusedSender)
		}
	}
	p.nothing("messages from elsewhere")
}

// own makes an authentic message of the agent.
func (p *pair) own(kind Kind, flags uint16, body []byte) packet {
	p.t.Helper()
	edge := p.agent.edges[edgeID]
	p.wire.queue = nil
	p.agent.transmit(edge, &edge.association, kind, flags, body, SentFlows)
	m := p.wire.queue[0]
	p.wire.queue = nil
	return m
}

func TestAgentSpeaksForItsOwnAddressesAlone(t *testing.T) {
	p, _ := heard(t)
	for _, server := range []string{"198.51.100.1:443", "[2001:db8:2::1]:443", "[::ffff:203.0.113.10]:443"} {
		packed := newPacker()
		packed.add(Flow{netip.MustParseAddrPort("192.0.2.9:1"), web4})
		foreign := netip.MustParseAddrPort(server)
		packed.add(Flow{netip.AddrPortFrom(foreign.Addr(), 9), foreign})
		packed.flush()
		for _, b := range packed.done {
			p.wantEvent(server, p.deliver(p.own(KindFlows, 0, b.body)), RefusedForeign)
		}
	}
	p.nothing("flows of another's address")
}

func TestAuthenticAndMalformedIsRefused(t *testing.T) {
	p, _ := heard(t)
	flow := append(make([]byte, flowsBytes), 4, 1, 0, 80, 203, 0, 113, 10, 192, 0, 2, 1, 0, 99)
	for name, m := range map[string]packet{
		"flows without a header":   p.own(KindFlows, 0, flow[:5]),
		"half a flow":              p.own(KindFlows, 0, flow[:len(flow)-1]),
		"a byte too many":          p.own(KindFlows, 0, append(slices.Clone(flow), 4)),
		"an unknown flag":          p.own(KindFlows, 2, flow),
		"no flow in a group":       p.own(KindFlows, 0, append(make([]byte, flowsBytes), 4, 0, 0, 80, 203, 0, 113, 10)),
		"an unknown family":        p.own(KindFlows, 0, append(make([]byte, flowsBytes), flow[flowsBytes+1:]...)),
		"a state of no length":     p.own(KindState, 0, nil),
		"a state with a list less": p.own(KindState, 0, append(make([]byte, stateBytes-1), 1)),
	} {
		p.wantEvent(name, p.deliver(m), RefusedBody)
	}
	for _, kind := range []Kind{0, KindHello, KindSetup, KindProbe, 7, 255} {
		p.wantEvent("kind", p.deliver(p.own(kind, 0, nil)), RefusedKind)
	}
	p.nothing("malformed messages")
	p.wantEvent("the flow itself", p.deliver(p.own(KindFlows, 0, flow)), HeardFlows)
	if len(p.edgePlane.filter) != 1 {
		t.Error("a good message teaches nothing")
	}
}

func TestGreetingsMakeNoFloodOfAnswers(t *testing.T) {
	p := newPair(t)
	p.edge.Tick()
	hello := p.wire.take()[0]
	for range 1000 {
		p.deliver(hello)
	}
	if n := len(p.wire.queue); n > answersPerSecond {
		t.Errorf("%d answers to a replayed greeting", n)
	}
}

func FuzzMessages(f *testing.F) {
	p, past := heard(f)
	for _, m := range past {
		f.Add(m.bytes[1], binary.BigEndian.Uint16(m.bytes[2:]), m.bytes[headerBytes:len(m.bytes)-tagBytes])
	}
	for _, m := range p.carried() {
		f.Add(m.bytes[1], uint16(0), m.bytes[headerBytes:len(m.bytes)-tagBytes])
	}
	p.edge.asked = asked{}
	f.Fuzz(func(t *testing.T, kind byte, flags uint16, body []byte) {
		p.t = t
		if len(body) > bodyBytes {
			return
		}
		p.edgePlane.filter = map[Flow]bool{}
		e := p.deliver(p.own(Kind(kind), flags, body))
		for flow := range p.edgePlane.filter {
			if e != HeardFlows || !p.edge.agents[agentID].owns(flow.Server.Addr()) {
				t.Errorf("%v entered the filter by %s", flow, e)
			}
		}
		p.agentPlane.injected = nil
		p.deliver(p.relayed(Kind(kind), flags, body))
		for _, flow := range p.agentPlane.injected {
			if !p.agentPlane.IsLocal(flow.Server.Addr()) || !p.agentPlane.Serves(flow.Server) {
				t.Errorf("a packet of %v has come in", flow)
			}
		}
		p.wire.queue = nil
		p.edge.receive(body, agentAt)
		p.agent.receive(body, edgeAt)
	})
}

func TestGreetingsOfLongPastSessionsAreNotBelieved(t *testing.T) {
	p, past := heard(t)
	for range 2 * retiredSessions {
		p.startEdge()
		p.second()
	}
	session := p.agent.edges[edgeID].peer
	for _, m := range past {
		if e := p.deliver(m); e == HeardHello {
			t.Error("it is believed")
		}
	}
	if p.agent.edges[edgeID].peer != session {
		t.Error("the agent has gone over to an old session")
	}
}
