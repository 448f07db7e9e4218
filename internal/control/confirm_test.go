package control

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"smartcookie/internal/keys"
	frames "smartcookie/test/wire"
)

var (
	caller4 = netip.MustParseAddrPort("192.0.2.50:5000")
	caller6 = netip.MustParseAddrPort("[2001:db8:9::50]:5000")
)

// ipPacket is a client's packet from its IP header on.
func ipPacket(f Flow, flags frames.Flags, payload int) []byte {
	return frames.Packet{Source: f.Client, To: f.Server, Flags: flags, Payload: make([]byte, payload)}.Frame()[14:]
}

func callers() []Flow { return []Flow{{caller4, web4}, {caller6, web6}} }

func (p *pair) wantCounts(what string, c *Counters, want map[Event]uint64) {
	p.t.Helper()
	for e, n := range want {
		if got := c[e].Load(); got != n {
			p.t.Errorf("%s: %s is %d, want %d", what, e, got, n)
		}
	}
}

func TestSetupIsInjectedAndConfirmed(t *testing.T) {
	p, _ := heard(t)
	for _, f := range callers() {
		p.edge.Relay(KindSetup, ipPacket(f, frames.ACK|frames.PSH, 100))
		p.settle()
		if !slices.Contains(p.agentPlane.injected, f) || !p.edgePlane.filter[f] {
			t.Errorf("%v: injected %v, filter %v", f, p.agentPlane.injected, p.edgePlane.filter)
		}
	}
	p.wantCounts("edge", &p.edge.Counters, map[Event]uint64{SentSetup: 2, HeardConfirm: 2, RefusedUnasked: 0})
	p.wantCounts("agent", &p.agent.Counters, map[Event]uint64{HeardSetup: 2, SentConfirm: 2, Confirmed: 2})
}

func TestSetupWithoutAConnectionIsNotConfirmed(t *testing.T) {
	p, _ := heard(t)
	p.agentPlane.sets = func(Flow) bool { return false }
	p.edge.Relay(KindSetup, ipPacket(callers()[0], frames.ACK, 0))
	p.settle()
	p.agent.Reconfirm()
	p.settle()
	p.nothing("a packet that made no connection")
	p.wantCounts("agent", &p.agent.Counters, map[Event]uint64{HeardSetup: 1, UnconfirmedSetup: 1, SentConfirm: 0})
	if len(p.agent.unconfirmed) > 0 {
		t.Error("it is looked for for ever")
	}
}

func TestConnectionThatComesLateIsConfirmed(t *testing.T) {
	p, _ := heard(t)
	p.agentPlane.sets = func(Flow) bool { return false }
	for _, f := range callers() {
		p.edge.Relay(KindSetup, ipPacket(f, frames.ACK, 0))
	}
	p.settle()
	looks := 0
	p.agent.pause = func(d time.Duration) {
		p.now += d
		if looks++; looks == 3 {
			for _, f := range callers() {
				p.agentPlane.connections[f] = true
			}
		}
	}
	p.agent.Reconfirm()
	p.settle()
	if len(p.edgePlane.filter) != 2 {
		t.Errorf("%d of 2 flows are confirmed", len(p.edgePlane.filter))
	}
	p.wantCounts("agent", &p.agent.Counters, map[Event]uint64{SentConfirm: 1, Confirmed: 2, UnconfirmedSetup: 0})
}

func TestUnconfirmedSetupsAreBounded(t *testing.T) {
	p, _ := heard(t)
	p.agentPlane.sets = func(Flow) bool { return false }
	for i := range 2 * unconfirmedMost {
		p.edge.Relay(KindSetup, ipPacket(numbered(3*i+1, 1), frames.ACK, 0)) // no service: refused
		p.edge.Relay(KindSetup, ipPacket(Flow{netip.AddrPortFrom(caller4.Addr(), uint16(i+1)), web4}, frames.ACK, 0))
	}
	p.settle()
	if n := len(p.agent.unconfirmed); n != unconfirmedMost {
		t.Errorf("%d are kept, want %d", n, unconfirmedMost)
	}
	p.wantCounts("agent", &p.agent.Counters, map[Event]uint64{UnconfirmedSetup: unconfirmedMost, RefusedUnprotected: 2 * unconfirmedMost})
}

func TestProbeFindsAConnectionAndMakesNone(t *testing.T) {
	p, _ := heard(t)
	f := callers()
	p.agentPlane.connections[f[0]] = true
	for _, flow := range f {
		p.edge.Relay(KindProbe, ipPacket(flow, frames.ACK, 10))
	}
	p.settle()
	if !p.edgePlane.filter[f[0]] || p.edgePlane.filter[f[1]] || !slices.Equal(p.agentPlane.injected, f[:1]) {
		t.Errorf("filter %v, injected %v", p.edgePlane.filter, p.agentPlane.injected)
	}
	p.wantCounts("agent", &p.agent.Counters, map[Event]uint64{HeardProbe: 1, UnknownProbe: 1, SentConfirm: 1})
	p.wantCounts("edge", &p.edge.Counters, map[Event]uint64{SentProbe: 2, HeardConfirm: 1})
}

func TestPacketOfNobodyOrOfASilentAgentIsNotSent(t *testing.T) {
	p, _ := heard(t)
	p.edge.Relay(KindSetup, ipPacket(Flow{caller4, netip.MustParseAddrPort("198.51.100.1:443")}, frames.ACK, 0))
	p.edge.Relay(KindSetup, []byte("no packet"))
	p.wantCounts("edge", &p.edge.Counters, map[Event]uint64{Unsent: 2, SentSetup: 0})
	p.now += 2 * Silence
	p.edge.Relay(KindSetup, ipPacket(callers()[0], frames.ACK, 0))
	p.wantCounts("edge", &p.edge.Counters, map[Event]uint64{Unsent: 3, SentSetup: 0})
	p.startEdge()
	p.edge.Relay(KindSetup, ipPacket(callers()[0], frames.ACK, 0))
	if n := p.edge.Read()[Unsent]; n != 1 {
		t.Errorf("%d unsent by an edge that knows no agent, want 1", n)
	}
	if len(p.wire.queue) > 0 {
		t.Errorf("%d messages are sent", len(p.wire.queue))
	}
}

// relayed makes an authentic message of the edge.
func (p *pair) relayed(kind Kind, flags uint16, body []byte) packet {
	p.t.Helper()
	p.wire.queue = nil
	p.edge.transmit(p.edge.agents[agentID], kind, flags, body, SentSetup)
	m := p.wire.queue[0]
	p.wire.queue = nil
	return m
}

// uninjected wants that no packet has come in, and none has made a connection.
func (p *pair) uninjected(what string) {
	p.t.Helper()
	if n := len(p.agentPlane.injected); n > 0 {
		p.t.Errorf("%s: %d packets have come in", what, n)
	}
	p.nothing(what)
}

func TestCarriedPacketsThatAreNotTheAgentsAreRefused(t *testing.T) {
	p, _ := heard(t)
	elsewhere := func(server string) Flow { return Flow{caller4, netip.MustParseAddrPort(server)} }
	fragment := frames.Packet{Source: caller4, To: web4, Flags: frames.ACK, More: true}.Frame()[14:]
	udp := frames.Packet{Source: caller4, To: web4, Flags: frames.ACK, Protocol: 17}.Frame()[14:]
	extended := frames.Packet{Source: caller6, To: web6, Flags: frames.ACK, Extensions: []frames.Extension{frames.Padded(0, 8)}}.Frame()[14:]
	for name, c := range map[string]struct {
		body []byte
		want Event
	}{
		"another agent's address": {ipPacket(elsewhere("203.0.113.11:443"), frames.ACK, 0), RefusedForeign},
		"an address outside":      {ipPacket(elsewhere("198.51.100.1:443"), frames.ACK, 0), RefusedForeign},
		"a port of no service":    {ipPacket(elsewhere("203.0.113.10:22"), frames.ACK, 0), RefusedUnprotected},
		"a SYN":                   {ipPacket(callers()[0], frames.SYN, 0), RefusedBody},
		"a SYN-ACK":               {ipPacket(callers()[0], frames.SYN|frames.ACK, 0), RefusedBody},
		"a RST":                   {ipPacket(callers()[1], frames.RST|frames.ACK, 0), RefusedBody},
		"no ACK":                  {ipPacket(callers()[0], frames.FIN, 0), RefusedBody},
		"a fragment":              {fragment, RefusedBody},
		"UDP":                     {udp, RefusedBody},
		"an extension header":     {extended, RefusedBody},
		"nothing":                 {nil, RefusedBody},
		"bytes behind the packet": {append(ipPacket(callers()[0], frames.ACK, 0), 0), RefusedBody},
	} {
		for _, kind := range []Kind{KindSetup, KindProbe} {
			p.wantEvent(name, p.deliver(p.relayed(kind, 0, c.body)), c.want)
		}
	}
	for _, f := range callers() {
		whole := ipPacket(f, frames.ACK, 10)
		for n := range whole {
			p.wantEvent(fmt.Sprintf("%d bytes of %d", n, len(whole)), p.deliver(p.relayed(KindSetup, 0, whole[:n])), RefusedBody)
		}
		p.wantEvent("an unknown flag", p.deliver(p.relayed(KindSetup, 1, whole)), RefusedBody)
	}
	knows := &p.edge.agents[agentID].association
	for _, session := range []*uint64{&knows.own, &knows.peer} { // of another life of either end
		*session ^= 2
		p.wantEvent("another session", p.deliver(p.relayed(KindSetup, 0, ipPacket(callers()[0], frames.ACK, 0))), RefusedSession)
		*session ^= 2
	}
	p.uninjected("packets that are not the agent's")
}

func TestConfirmationOfWhatWasNotAskedTeachesNothing(t *testing.T) {
	p, _ := heard(t)
	confirm := func(flows ...Flow) []byte {
		packed := newPacker()
		for _, f := range flows {
			packed.add(f)
		}
		packed.flush()
		return packed.done[0].body[flowsBytes:]
	}
	f := callers()[0]
	p.wantEvent("unasked", p.deliver(p.own(KindConfirm, 0, confirm(f))), HeardConfirm)
	p.nothing("a flow that was not asked about")
	p.wantCounts("edge", &p.edge.Counters, map[Event]uint64{RefusedUnasked: 1})
	ask := func() {
		p.edge.Relay(KindSetup, ipPacket(f, frames.ACK, 0))
		p.wire.queue = nil
	}
	ask()
	foreign := Flow{caller4, netip.MustParseAddrPort("198.51.100.1:443")}
	p.wantEvent("another's address", p.deliver(p.own(KindConfirm, 0, confirm(foreign))), RefusedForeign)
	for name, m := range map[string]packet{
		"no group": p.own(KindConfirm, 0, nil), "a flag": p.own(KindConfirm, 1, confirm(f)),
		"half a flow": p.own(KindConfirm, 0, confirm(f)[:10]),
	} {
		p.wantEvent(name, p.deliver(m), RefusedBody)
	}
	p.now += 2 * askedFor
	p.wantEvent("too late", p.deliver(p.own(KindConfirm, 0, confirm(f))), HeardConfirm)
	p.nothing("what was asked long ago, or not at all")
	ask()
	p.wantEvent("asked", p.deliver(p.own(KindConfirm, 0, confirm(f))), HeardConfirm)
	if !p.edgePlane.filter[f] {
		t.Error("what was asked about is not believed")
	}
}

func TestQuestionsAreBoundedAndForgotten(t *testing.T) {
	var a asked
	flow := func(i int) Flow {
		return Flow{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1), web4}
	}
	for i := range 5 * askedMost {
		a.add(flow(i), agentID, time.Second)
		if len(a.current)+len(a.before) > 2*askedMost {
			t.Fatal("it grows without end")
		}
	}
	last := flow(5*askedMost - 1)
	if !a.has(last, agentID, time.Second) || a.has(last, agentID+1, time.Second) {
		t.Error("the last question is forgotten, or another agent may answer it")
	}
	if a.has(flow(0), agentID, time.Second) {
		t.Error("the first of many questions is kept")
	}
	if a.has(last, agentID, time.Second+2*askedFor) {
		t.Error("an old question is kept")
	}
}

// carried are authentic messages of the three kinds, which have not arrived.
func (p *pair) carried() (all []packet) {
	for _, f := range callers() {
		all = append(all, p.relayed(KindSetup, 0, ipPacket(f, frames.ACK, 100)), p.relayed(KindProbe, 0, ipPacket(f, frames.ACK, 20)))
		p.edge.asked.add(f, agentID, p.now)
		packed := newPacker()
		packed.add(f)
		packed.flush()
		all = append(all, p.own(KindConfirm, 0, packed.done[0].body[flowsBytes:]))
	}
	return all
}

func TestMillionForgedSetupsConfirmsAndProbesDoNothing(t *testing.T) {
	const forged = 1_000_000
	p, _ := heard(t)
	all, random := p.carried(), newRandom(t)
	before := refusals(&p.edge.Counters) + refusals(&p.agent.Counters)
	var m [messageBytes + 8]byte
	for i := range forged {
		like := all[i/2%len(all)]
		size := copy(m[:], like.bytes)
		if i%2 == 0 { // half of them as right as one can guess
			binary.BigEndian.PutUint64(m[32:], 1<<40+uint64(i))
			_, _ = random.Read(m[size-tagBytes : size])
		} else {
			size = forge(m[:], random)
		}
		p.deliver(packet{like.from, like.to, m[:size]})
	}
	p.uninjected("forged messages")
	if n := refusals(&p.edge.Counters) + refusals(&p.agent.Counters) - before; n != forged {
		t.Errorf("%d of %d forged messages are counted", n, forged)
	}
	if n := p.agent.Read()[RefusedTag] + p.edge.Read()[RefusedTag]; n < forged/2 {
		t.Errorf("only %d forged messages were good enough to need their tag checked", n)
	}
}

// forge writes a random message with the beginning of a real one.
func forge(m []byte, random *rand.ChaCha8) int {
	size := int(random.Uint64() % uint64(len(m)))
	_, _ = random.Read(m[:size])
	if size > 1 {
		m[0], m[1] = version, byte(KindSetup)+byte(random.Uint64()%3)
	}
	return size
}

func TestTruncatedAndChangedSetupsConfirmsAndProbesDoNothing(t *testing.T) {
	p, _ := heard(t)
	tried, before := uint64(0), refusals(&p.edge.Counters)+refusals(&p.agent.Counters)
	for _, m := range p.carried() {
		for n := range m.bytes {
			changed := slices.Clone(m.bytes)
			changed[n] ^= 1 << (n % 8)
			p.deliver(packet{m.from, m.to, m.bytes[:n]})
			p.deliver(packet{m.from, m.to, changed})
			tried += 2
		}
	}
	p.uninjected("truncated and changed messages")
	if n := refusals(&p.edge.Counters) + refusals(&p.agent.Counters) - before; n != tried {
		t.Errorf("%d of %d are counted", n, tried)
	}
}

func TestReplayedSetupsConfirmsAndProbesDoNothing(t *testing.T) {
	p, _ := heard(t)
	all := p.carried()
	for _, m := range all { // once they count
		if e := p.deliver(m); e.refuses() {
			t.Fatalf("a message of kind %d: %s", m.bytes[1], e)
		}
	}
	if len(p.agentPlane.injected) != 4 || len(p.edgePlane.filter) != 2 {
		t.Fatalf("%d injected, %d flows", len(p.agentPlane.injected), len(p.edgePlane.filter))
	}
	p.wire.queue = nil
	replay := func(what string, want Event) {
		t.Helper()
		p.agentPlane.injected, p.edgePlane.filter = nil, map[Flow]bool{}
		for _, m := range all {
			p.wantEvent(what, p.deliver(m), want)
			p.wantEvent(what+", from elsewhere", p.deliver(packet{caller4, m.to, m.bytes}), RefusedSender)
		}
		p.uninjected(what)
	}
	replay("in the same period", RefusedReplay)
	p.flows = nil // nothing is announced meanwhile
	p.startEdge()
	p.startAgent()
	p.seconds(2)
	replay("in other sessions", RefusedSession)
	p.seconds(4 * keys.ControlPeriodSeconds)
	replay("of an old period", RefusedPeriod)
}

func TestAgentWhosePathFragmentsMessagesIsNamed(t *testing.T) {
	p := newPair(t)
	p.edge.agents[agentID].Relays = true
	p.edge.agents[agentID].MSS = MSS4
	p.seconds(2)
	if d := p.edge.agents[agentID].differs; d != 0 {
		t.Errorf("at an MTU of 1500 they disagree on %v", d.Names())
	}
	p.local.MTU = uint16(relayMTU(agentAt.Addr()) - 1)
	p.seconds(2)
	if d := p.edge.agents[agentID].differs; d != DisagreeMSS {
		t.Errorf("at a smaller MTU they disagree on %v", d.Names())
	}
}
