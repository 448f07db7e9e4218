package dataplane

import (
	"bytes"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"smartcookie/internal/cookie"
	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// proxied are the tests' services with web's clients and servers apart.
func proxied() []policy.Service {
	all := slices.Clone(services)
	all[web-1].Strategy, all[web-1].Setup, all[web-1].Window = policy.Proxy, policy.Tenant, 0
	return all
}

func newProxyEdge(t *testing.T) edgeAgent {
	t.Helper()
	return newEdge(t, func(c *EdgeConfig) { c.Services, c.Proxied = proxied(), 100 })
}

type proxyAgent struct {
	serverAgent
	proxy *Proxy
}

// newProxy is a router's translator, beside an edge whose tables it shares.
func newProxy(t *testing.T) proxyAgent {
	t.Helper()
	e := newProxyEdge(t)
	lo := []Interface{{Name: "lo", Index: 1}}
	edge := &Edge{tables: *e.tables, objects: *e.edgeObjects, config: EdgeConfig{
		Services: proxied(), Domains: domains, Epochs: 100, Outside: lo, Inside: lo, Forward: Route,
	}}
	p, err := LoadProxy(nil, edge, 1000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return proxyAgent{serverAgent{agent{&p.server.tables, t}, &p.server.objects}, p}
}

func (s proxyAgent) toServer(frame []byte) outcome {
	s.t.Helper()
	return s.run(s.ProxyEgress, frame)
}

func (s proxyAgent) fromServer(frame []byte) outcome {
	s.t.Helper()
	return s.run(s.ProxyIngress, frame)
}

// stampNow is the TSval of a SYN-ACK to a client with SACK and a scale of 7.
func (s proxyAgent) stampNow() uint32 { return uint32(s.clockNow()>>20)&^0x3f | 0x10 | 7 }

// firstOf is the packet with which a client answers the SYN-ACK, and what he has
// said of himself: a scale of 7, SACK. He echoes the SYN-ACK's TSval, 0: he has no
// timestamps.
func firstOf(syn wire.Packet, tsval uint32) wire.Packet {
	f, code := cookie.Flow{Source: syn.Source, Destination: syn.To}, uint8(5<<2|3) // scale 7, the largest MSS
	first := syn
	first.Options = nil
	if tsval != 0 {
		code = map[bool]uint8{true: 25, false: 23}[syn.Source.Addr().Is4()]
		first.Options = octets(nopStamps, 77, tsval)
	}
	first.Flags, first.Seq, first.Ack, first.Window = wire.ACK, syn.Seq+1, cookie.Make(mainSlot, f, syn.Seq, code)+1, 502
	return first
}

func firstMSS(p wire.Packet) uint32 {
	if p.Source.Addr().Is4() {
		return 1460
	}
	return 1440
}

func icmpUnreachable(p wire.Packet) uint8 {
	if p.Source.Addr().Is4() {
		return 3
	}
	return 1
}

func portAfter(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), a.Port()+1) }

// What is proxied goes to the kernel's path, everything else as it goes without.
func TestProxiedPacketsTakeTheKernelsPath(t *testing.T) {
	e, split := newProxyEdge(t), newEdge(t)
	for _, syn := range []wire.Packet{syn4(windowsOptions), syn6(windowsOptions)} {
		e.forget()
		split.forget()
		frame := syn.Frame()
		model := answerer(web)
		model.Window = 0
		if got := e.outside(frame); got.verdict != "answer_syn" || !bytes.Equal(got.out, model.Answer(frame, wire.Read(frame), 0)) {
			t.Errorf("%s: %s with %x", syn.Source, got.verdict, got.out)
		}
		first := firstOf(syn, 0)
		question, other := first, with(first, func(p *wire.Packet) { p.Source = portAfter(p.Source) })
		question.Seq--
		other.Seq--
		for _, c := range []struct {
			name    string
			at      func([]byte) outcome
			in      []byte
			verdict string
			action  uint32
		}{
			{"question for the window, of a split service", split.outside, question.Frame(), "drop_bad_cookie", xdpDrop},
			{"another's cookie", e.outside, other.Frame(), "drop_bad_cookie", xdpDrop},
			{"question for the window", e.outside, question.Frame(), "pass_cookie", xdpPass},
			{"verified", e.outside, first.Frame(), "pass_verified", xdpPass},
			{"RST", e.outside, flagged(first, wire.RST).Frame(), "pass_verified", xdpPass},
			{"from the server", e.inside, reversed(first).Frame(), "pass_inside", xdpPass},
			{"from elsewhere", e.inside, first.Frame(), "pass_inside", xdpRedirect},
			{"first packet, of a split service", split.outside, first.Frame(), "pass_cookie", xdpRedirect},
			{"its next", split.outside, first.Frame(), "pass_verified", xdpRedirect},
			{"error about it", e.outside, quoteIn(reversed(first), icmpUnreachable(syn), 4).Frame(), "pass_other", xdpPass},
			{"error, nothing proxied", split.outside, quoteIn(reversed(first), icmpUnreachable(syn), 4).Frame(), "pass_other", xdpRedirect},
		} {
			if got := c.at(c.in); got.verdict != c.verdict || got.action != c.action || !bytes.Equal(got.out, c.in) {
				t.Errorf("%s, %s: %s, action %d; want %s, %d", syn.Source, c.name, got.verdict, got.action, c.verdict, c.action)
			}
		}
	}
}

// A connection that was idle for long is in no filter, but it is the translator's.
func TestIdleProxiedConnectionIsKnown(t *testing.T) {
	e := newProxyEdge(t)
	for _, client := range bothFamilies() {
		other := client
		other.Source = portAfter(other.Source)
		for _, c := range []struct {
			state   string
			expires uint64
			in      wire.Packet
			verdict string
		}{
			{"idle", monotonic(t) + uint64(time.Hour), client, "pass_proxied"},
			{"idle, its RST", monotonic(t) + uint64(time.Hour), flagged(client, wire.RST), "drop_unverified_rst"},
			{"another's", monotonic(t) + uint64(time.Hour), other, "drop_bad_cookie"},
			{"over", 1, client, "drop_bad_cookie"},
		} {
			e.forget()
			v := usualTranslation
			v.ExpiresNs = c.expires
			if err := e.Flows.Put(endpointsOf(client), v); err != nil {
				t.Fatal(err)
			}
			if got := e.outside(c.in.Frame()); got.verdict != c.verdict || (got.action == xdpPass) != (c.verdict == "pass_proxied") {
				t.Errorf("%s, %s: %s, action %d", client.Source, c.state, got.verdict, got.action)
			}
			if c.verdict == "pass_proxied" && c.in.Flags&wire.RST == 0 {
				if got := e.outside(c.in.Frame()); got.verdict != "pass_verified" {
					t.Errorf("%s, %s, its next packet: %s", client.Source, c.state, got.verdict)
				}
			}
		}
	}
}

// Connections that nobody translates come by, too, and their numbers may be a valid
// cookie's by chance. What their servers' timestamps rule out is left alone.
func TestEchoOfAnotherClockBeginsNoProxiedConnection(t *testing.T) {
	s := newProxy(t)
	s.setEpoch(mainSlot.Epoch, shortEpoch)
	const epoch int32 = shortEpoch >> 20
	for _, syn := range []wire.Packet{syn4(""), syn6("")} {
		for _, c := range []struct {
			age     int32 // of the TSval, in its ticks
			verdict string
		}{
			{5 * epoch, "pass_unproven"}, {math.MinInt32, "pass_unproven"}, {-3 * epoch, "pass_unproven"},
			{-epoch, "setup_translated"}, {3 * epoch, "setup_translated"},
		} {
			first := firstOf(syn, s.stampNow()-uint32(c.age))
			got := s.toServer(first.Frame())
			if got.verdict != c.verdict || c.verdict == "pass_unproven" && !bytes.Equal(got.out, first.Frame()) {
				t.Errorf("%s, %d ticks old: %s, want %s", syn.Source, c.age, got.verdict, c.verdict)
			}
			syn.Source = portAfter(syn.Source)
		}
	}
}

// The first packet becomes the SYN that its client has sent; what the server
// answers becomes the window update, also when it answers again.
func TestProxyMakesAHandshakeOfTheFirstPacket(t *testing.T) {
	for _, stamps := range []bool{false, true} {
		s := newProxy(t)
		for _, syn := range []wire.Packet{syn4(""), syn6("")} {
			var tsval uint32
			if stamps {
				tsval = s.stampNow()
			}
			first := firstOf(syn, tsval)
			first.Payload = []byte("comes again")
			want := first
			want.Flags, want.Seq, want.Ack, want.Window, want.Payload = wire.SYN, syn.Seq, 0, 0xffff, nil
			want.Options = octets(0x02040000|firstMSS(syn), 0x01010402, 0x01030307)
			answer := reversed(want)
			answer.Flags, answer.Seq, answer.Ack, answer.Window = wire.SYN|wire.ACK, 0xfffffffe, syn.Seq+1, 64240
			answer.Options = octets(0x020405b4, 0x01010402, 0x01030309)
			update := reversed(first)
			update.Flags, update.Seq, update.Ack, update.Window, update.Payload = wire.ACK, first.Ack, first.Seq, 64240>>9, nil
			if stamps {
				want.Options = octets(0x02040000|firstMSS(syn), 0x0402080a, 77, 0, 0x01030307)
				answer.Options = octets(0x020405b4, 0x0402080a, 900, 77, 0x01030309)
				update.Options = octets(nopStamps, tsval, 77)
			}
			if got := s.toServer(first.Frame()); got.verdict != "setup_translated" || !bytes.Equal(got.out, want.Frame()) {
				t.Fatalf("%s, timestamps %t: %s\ngot  %x\nwant %x", syn.Source, stamps, got.verdict, got.out, want.Frame())
			}
			if got := s.toServer(first.Frame()); got.verdict != "drop_early" {
				t.Errorf("%s, at once again: %s", syn.Source, got.verdict)
			}
			for range 2 {
				if got := s.fromServer(answer.Frame()); got.verdict != "pass_opened" || got.action != tcNext || !bytes.Equal(got.out, update.Frame()) {
					t.Errorf("%s, timestamps %t: %s\ngot  %x\nwant %x", syn.Source, stamps, got.verdict, got.out, update.Frame())
				}
			}
			if v := s.translation(endpointsOf(first)); v.State != uint8(serverTranslationStateTRANSLATION_ESTABLISHED) || v.Delta != answer.Seq+1-first.Ack || v.AckedHigh != 0 {
				t.Errorf("%s: %+v", syn.Source, v)
			}
		}
	}
}

// raiseLoopback lets packets be sent by the device of the tests.
func raiseLoopback(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkSetDown(lo); err != nil {
			t.Error(err)
		}
	})
}

// Who is refused gets the RST at the number that he waits for; who has the place
// yields to one, once.
func TestProxyTellsAnOldConnectionFromARefusal(t *testing.T) {
	s := newProxy(t)
	raiseLoopback(t)
	for _, syn := range []wire.Packet{syn4(""), syn6("")} {
		first := firstOf(syn, 0)
		s.toServer(first.Frame())
		stale := reversed(first)
		stale.Flags, stale.Seq, stale.Ack = wire.ACK, 4000, 5000
		if got := s.fromServer(stale.Frame()); got.verdict != "requeue_stale" || got.action != tcDrop {
			t.Errorf("%s, an old connection: %s", syn.Source, got.verdict)
		}
		if got := s.fromServer(stale.Frame()); got.verdict != "drop_stubborn_socket" {
			t.Errorf("%s, an old connection that stays: %s", syn.Source, got.verdict)
		}
		refusal := reversed(first)
		refusal.Flags, refusal.Seq, refusal.Ack, refusal.Window = wire.RST|wire.ACK, 0, syn.Seq+1, 0
		want := refusal
		want.Seq = first.Ack
		if got := s.fromServer(refusal.Frame()); got.verdict != "pass_translated" || !bytes.Equal(got.out, want.Frame()) {
			t.Errorf("%s, refused: %s\ngot  %x\nwant %x", syn.Source, got.verdict, got.out, want.Frame())
		}
	}
}

// Without room newcomers wait, and what is established stays.
func TestProxyHasRoomForSoMany(t *testing.T) {
	s := newProxy(t)
	syn := syn4("")
	for i := range 100 {
		p := syn
		p.Source = portAfter(p.Source)
		p.Seq = uint32(i)
		key := endpointsOf(p)
		key.ClientBe[3] = uint32(i)
		if err := s.Flows.Put(key, usualTranslation); err != nil {
			t.Fatal(err)
		}
	}
	first := firstOf(syn, 0)
	s.toServer(first.Frame())
	answer := reversed(first)
	answer.Flags, answer.Seq, answer.Ack = wire.SYN|wire.ACK, 1, syn.Seq+1
	if got := s.fromServer(answer.Frame()); got.verdict != "drop_flows_full" || got.action != tcDrop {
		t.Errorf("one too many: %s", got.verdict)
	}
	var key serverEndpoints
	if err := s.Flows.NextKey(nil, &key); err != nil {
		t.Fatal(err)
	}
	if err := s.Flows.Delete(key); err != nil {
		t.Fatal(err)
	}
	if got := s.fromServer(answer.Frame()); got.verdict != "pass_opened" {
		t.Errorf("with room: %s", got.verdict)
	}
}

func TestSYNsAreSentAgainAndAtLastGivenUp(t *testing.T) {
	for _, c := range []struct {
		age        time.Duration
		sent       int
		syn, reset bool
	}{
		{0, 0, false, false},
		{999 * time.Millisecond, 0, false, false},
		{time.Second, 0, true, false},
		{2 * time.Second, 1, false, false},
		{3 * time.Second, 1, true, false},
		{7 * time.Second, 2, true, false},
		{14 * time.Second, 3, false, false},
		{14 * time.Second, 0, true, false},
		{15 * time.Second, 3, false, true},
		{15 * time.Second, 0, false, true},
	} {
		if syn, reset := due(c.age, c.sent); syn != c.syn || reset != c.reset {
			t.Errorf("after %s and %d: SYN %t, RST %t", c.age, c.sent, syn, reset)
		}
	}
}

// The RST that stands for a silent server is one that the translator takes for the
// server's refusal.
func TestResetOfASilentServerIsARefusal(t *testing.T) {
	s := newProxy(t)
	for _, syn := range []wire.Packet{syn4(""), syn6("")} {
		first := firstOf(syn, s.stampNow())
		s.toServer(first.Frame())
		var kept serverSynKept
		if err := s.Syns.Lookup(endpointsOf(first), &kept); err != nil {
			t.Fatal(err)
		}
		want := reversed(first)
		want.Flags, want.Seq, want.Ack, want.Window, want.Options = wire.RST|wire.ACK, 0, syn.Seq+1, 0, nil
		got := resetFrame(&kept, &serverTranslation{ClientIsn: syn.Seq})
		if !bytes.Equal(got[12:], want.Frame()[12:]) || !bytes.Equal(got[:6], kept.Frame[6:12]) {
			t.Fatalf("%s\ngot  %x\nwant %x", syn.Source, got, want.Frame())
		}
		if o := s.fromServer(got); o.verdict != "pass_translated" || binary.BigEndian.Uint32(o.out[int(kept.Transport)+4:]) != first.Ack {
			t.Errorf("%s: %s %x", syn.Source, o.verdict, o.out)
		}
	}
}

// What has to wait for the next round keeps its count, or it would begin anew.
func TestSYNsThatWaitForARoundKeepTheirCount(t *testing.T) {
	s := newProxy(t)
	first := firstOf(syn4(""), 0)
	s.toServer(first.Frame())
	key := endpointsOf(first)
	s.proxy.sent[key] = 2
	if err := s.proxy.remindSome(0); err != nil {
		t.Fatal(err)
	}
	if got := s.proxy.sent[key]; got != 2 {
		t.Errorf("after a full round: %d were sent, want 2", got)
	}
}
