package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"smartcookie/test/wire"
)

// The translation of these tests: the server's kernel means a scale of 9 and
// the client applies 7.
var usualTranslation = serverTranslation{
	ClientIsn: 1000, Cookie: 0xfffffff0, Delta: 0x12345678, StampDelta: 0x00ff00ff,
	State: uint8(serverTranslationStateTRANSLATION_ESTABLISHED), Options: translationOptions(5, 7, 9, true),
}

func newTranslator(t *testing.T) serverAgent {
	t.Helper()
	return newServer(t, func(c *ServerConfig) { c.Translated = 100 })
}

// translated makes the packet's connection a translated one.
func (s serverAgent) translated(p wire.Packet, change func(*serverTranslation)) serverEndpoints {
	s.t.Helper()
	key, value := endpointsOf(p), usualTranslation
	if change != nil {
		change(&value)
	}
	if err := s.Translating.Set(true); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Flows.Put(key, value); err != nil {
		s.t.Fatal(err)
	}
	return key
}

// endpointsOf is the key of a client's packet.
func endpointsOf(p wire.Packet) serverEndpoints {
	var key serverEndpoints
	client, server := p.Source.Addr().As16(), p.To.Addr().As16()
	for i := range key.ClientBe {
		key.ClientBe[i] = binary.NativeEndian.Uint32(client[4*i:])
		key.ServerBe[i] = binary.NativeEndian.Uint32(server[4*i:])
	}
	key.ClientPortBe = p.Source.Port()<<8 | p.Source.Port()>>8
	key.ServerPortBe = p.To.Port()<<8 | p.To.Port()>>8
	return key
}

func (s serverAgent) egress(frame []byte) outcome {
	s.t.Helper()
	return s.run(s.ServerEgress, frame)
}

func octets(all ...uint32) (b []byte) {
	for _, w := range all {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

const nopStamps = 0x0101080a // NOP NOP timestamps

func bothFamilies() []wire.Packet {
	p := wire.Packet{Seq: 5000, Ack: 7000, Window: 4000, Flags: wire.ACK | wire.PSH, Payload: []byte("odd")}
	p4, p6 := p, p
	p4.Source, p4.To = netip.MustParseAddrPort("192.0.2.7:40000"), netip.MustParseAddrPort("203.0.113.9:443")
	p6.Source, p6.To = netip.MustParseAddrPort("[2001:db8:c::7]:40001"), netip.MustParseAddrPort("[2001:db8:1::9]:443")
	return []wire.Packet{p4, p6}
}

func reversed(p wire.Packet) wire.Packet {
	p.Source, p.To = p.To, p.Source
	return p
}

// inbound are options as clients send them, and as the kernel must see them.
func inbound() map[string][2][]byte {
	d, ts := usualTranslation.Delta, usualTranslation.StampDelta
	odd := func(tsecr uint32, edges ...uint32) []byte {
		b := slices.Concat([]byte{1, 8, 10}, octets(1, tsecr), []byte{5, byte(2 + 4*len(edges))}, octets(edges...))
		return append(b, make([]byte, (4-len(b)%4)%4)...)
	}
	return map[string][2][]byte{
		"none":       {},
		"timestamps": {octets(nopStamps, 1, 0xffffffff), octets(nopStamps, 1, 0xffffffff+ts)},
		"SACK": {
			octets(0x01010000|5<<8|18, 1, 2, 0xfffffffe, 4), octets(0x01010000|5<<8|18, 1+d, 2+d, 0xfffffffe+d, 4+d),
		},
		"timestamps and three blocks": {
			octets(nopStamps, 9, 8, 0x01010000|5<<8|26, 1, 2, 3, 4, 5, 6),
			octets(nopStamps, 9, 8+ts, 0x01010000|5<<8|26, 1+d, 2+d, 3+d, 4+d, 5+d, 6+d),
		},
		"four blocks": {
			octets(0x01010000|5<<8|34, 1, 2, 3, 4, 5, 6, 7, 8), octets(0x01010000|5<<8|34, 1+d, 2+d, 3+d, 4+d, 5+d, 6+d, 7+d, 8+d),
		},
		"at odd places":             {odd(77, 10, 20), odd(77+ts, 10+d, 20+d)},
		"behind the end":            {octets(0x00000000, nopStamps, 1, 2), octets(0x00000000, nopStamps, 1, 2)},
		"that do not fit":           {octets(0x05ff0101, 1), octets(0x05ff0101, 1)},
		"SACK of a crooked length":  {octets(0x01010000|5<<8|12, 1, 2, 0x01010101), octets(0x01010000|5<<8|12, 1+d, 2+d, 0x01010101)},
		"timestamps of length nine": {[]byte{1, 8, 9, 1, 2, 3, 4, 5, 6, 7, 1, 1}, []byte{1, 8, 9, 1, 2, 3, 4, 5, 6, 7, 1, 1}},
	}
}

// Both at a host's own devices and at a tenant's.
func TestPacketsToServersAreTranslated(t *testing.T) {
	toServersAreTranslated(t, newTranslator(t), serverAgent.ingress)
	toServersAreTranslated(t, newTenants(t), serverAgent.toTenant)
}

func toServersAreTranslated(t *testing.T, s serverAgent, arrive func(serverAgent, []byte) outcome) {
	t.Helper()
	for _, p := range bothFamilies() {
		s.translated(p, nil)
		for name, options := range inbound() {
			t.Run(fmt.Sprintf("%s, options: %s", p.Source, name), func(t *testing.T) {
				s := serverAgent{agent{s.tables, t}, s.serverObjects}
				in, want := p, p
				in.Options, want.Options = options[0], options[1]
				want.Ack += usualTranslation.Delta
				got := arrive(s, in.Frame())
				if got.verdict != "pass_connection" || got.action != tcNext || !bytes.Equal(got.out, want.Frame()) {
					t.Errorf("%s, action %d\n%x, want\n%x", got.verdict, got.action, got.out, want.Frame())
				}
			})
		}
	}
}

func TestPacketsOfServersAreTranslated(t *testing.T) {
	ofServersAreTranslated(t, newTranslator(t), serverAgent.egress)
	ofServersAreTranslated(t, newTenants(t), serverAgent.fromTenant)
}

func ofServersAreTranslated(t *testing.T, s serverAgent, leave func(serverAgent, []byte) outcome) {
	t.Helper()
	for _, client := range bothFamilies() {
		p := reversed(client)
		for _, c := range []struct {
			name      string
			flags     wire.Flags
			options   []byte
			want      []byte
			window, w uint16
		}{
			{"data", wire.ACK | wire.PSH, nil, nil, 100, 400},
			{"timestamps", wire.ACK, octets(nopStamps, 5, 6), octets(nopStamps, 5-usualTranslation.StampDelta, 6), 100, 400},
			{"its own SACK", wire.ACK, octets(0x0101050a, 1, 2), octets(0x0101050a, 1, 2), 100, 400},
			{"a large window", wire.ACK, nil, nil, 65535, 65535},
			{"a closed window", wire.ACK, nil, nil, 0, 0},
			{"FIN", wire.ACK | wire.FIN, nil, nil, 1, 4},
			{"RST", wire.RST, nil, nil, 0, 0},
			{"RST and ACK", wire.RST | wire.ACK, nil, nil, 0, 0},
		} {
			t.Run(fmt.Sprintf("%s, %s", p.Source, c.name), func(t *testing.T) {
				s := serverAgent{agent{s.tables, t}, s.serverObjects}
				s.translated(client, nil)
				in := p
				in.Flags, in.Options, in.Window = c.flags, c.options, c.window
				want := in
				want.Seq, want.Options, want.Window = in.Seq-usualTranslation.Delta, c.want, c.w
				if got := leave(s, in.Frame()); got.verdict != "pass_translated" || !bytes.Equal(got.out, want.Frame()) {
					t.Errorf("%s\n%x, want\n%x", got.verdict, got.out, want.Frame())
				}
			})
		}
	}
}

func TestWindowsAreRoundedDownButNotClosed(t *testing.T) {
	s := newTranslator(t)
	client := bothFamilies()[0]
	for _, c := range []struct {
		client, announced, kernel uint16
		window, out               uint16
	}{
		{7, 7, 7, 1234, 1234},
		{7, 7, 3, 1234, 77}, // 9,872 bytes
		{7, 7, 0, 100, 1},   // less than one unit
		{7, 7, 0, 0, 0},
		{7, 0, 7, 10, 1280},
		{7, 0, 7, 1000, 65535}, // 128,000 bytes: clamped
		{7, 7, 15, 65535, 511}, // a kernel that does not scale
		{15, 7, 15, 1234, 1234},
	} {
		s.translated(client, func(v *serverTranslation) {
			v.Options = translationOptions(c.client, c.announced, c.kernel, true)
		})
		p := reversed(client)
		p.Window = c.window
		want := p
		want.Seq, want.Window = p.Seq-usualTranslation.Delta, c.out
		if got := s.egress(p.Frame()); !bytes.Equal(got.out, want.Frame()) {
			t.Errorf("%+v: %x, want %x", c, got.out, want.Frame())
		}
	}
	s.translated(client, func(v *serverTranslation) { v.Options = translationOptions(4, 7, 15, true) })
	for window, want := range map[uint16]uint16{0: 0, 100: 1600, 5000: 65535} {
		in := client
		in.Window = window
		out := in
		out.Ack, out.Window = in.Ack+usualTranslation.Delta, want
		if got := s.ingress(in.Frame()); !bytes.Equal(got.out, out.Frame()) {
			t.Errorf("window %d: %x, want %x", window, got.out, out.Frame())
		}
	}
}

// A packet that was damaged on its way must not come out with a right checksum.
func TestCorruptPacketsStayCorrupt(t *testing.T) {
	s := newTranslator(t)
	for _, client := range bothFamilies() {
		client.Options = octets(nopStamps, 9, 8, 0x0101050a, 1, 2)
		s.translated(client, nil)
		for _, c := range []struct {
			name string
			in   wire.Packet
			run  func([]byte) outcome
		}{{"in", client, s.ingress}, {"out", reversed(client), s.egress}} {
			whole := c.in.Frame()
			right := c.run(whole).out
			for at := len(whole) - 3; at < len(whole); at++ { // the payload
				damaged := slices.Clone(whole)
				damaged[at] ^= 0x40
				want := slices.Clone(right)
				want[at] ^= 0x40
				if got := c.run(damaged).out; !bytes.Equal(got, want) {
					t.Errorf("%s, byte %d: %x, want %x", c.name, at, got, want)
				}
			}
		}
	}
}

// The kernel's SYN-ACK tells the deltas and is not sent.
func TestOwnSYNACKIsSwallowed(t *testing.T) {
	s := newTranslator(t)
	for _, client := range bothFamilies() {
		key, value := endpointsOf(client), usualTranslation
		value.State, value.Delta, value.StampDelta = uint8(serverTranslationStateTRANSLATION_SYN_SENT), 0, 500
		value.Options = translationOptions(5, 7, 15, true)
		if err := s.Translating.Set(true); err != nil {
			t.Fatal(err)
		}
		if err := s.HalfOpen.Put(key, value); err != nil {
			t.Fatal(err)
		}
		p := reversed(client)
		p.Flags, p.Payload, p.Seq, p.Ack = wire.SYN|wire.ACK, nil, 100, 0
		p.Options = octets(0x020405b4, 0x0402080a, 2000, 1, 0x01030309)
		p.Ack = value.ClientIsn + 1
		for range 2 { // the second is a retransmission
			if got := s.egress(p.Frame()); got.verdict != "drop_own_synack" || got.action != tcDrop {
				t.Errorf("SYN-ACK: %s", got.verdict)
			}
		}
		if err := s.HalfOpen.Lookup(key, &value); err != nil {
			t.Fatal(err)
		}
		if value.Delta != 100-usualTranslation.Cookie || value.StampDelta != 1500 || value.Options != usualTranslation.Options {
			t.Errorf("learnt %+v", value)
		}
		p.Seq++ // the kernel has begun anew
		if got := s.egress(p.Frame()); got.verdict != "drop_own_synack" {
			t.Errorf("SYN-ACK with another number: %s", got.verdict)
		}
		if err := s.HalfOpen.Lookup(key, &value); err != nil || value.ExpiresNs != 1 {
			t.Errorf("what is wrong is not forgotten: %+v, %v", value, err)
		}
	}
}

// A handshake of the kernel's own from the same ends, in either direction, is
// the end of the translation.
func TestAnotherHandshakeEndsTheTranslation(t *testing.T) {
	s := newTranslator(t)
	for _, client := range bothFamilies() {
		for _, flags := range []wire.Flags{wire.SYN, wire.SYN | wire.ACK} {
			s.translated(client, nil)
			p := reversed(client)
			p.Flags, p.Ack = flags, usualTranslation.ClientIsn+2
			for _, p.Flags = range []wire.Flags{flags, wire.ACK} {
				frame := p.Frame()
				if got := s.egress(frame); got.verdict != "pass_inside" || !bytes.Equal(got.out, frame) {
					t.Errorf("%s, flags %x: %s", client.Source, p.Flags, got.verdict)
				}
			}
		}
	}
}

// Whom the kernel refuses gets a RST with the number that he waits for.
func TestRefusalReachesTheClient(t *testing.T) {
	s := newTranslator(t)
	for _, client := range bothFamilies() {
		s.translated(client, func(v *serverTranslation) { v.State = uint8(serverTranslationStateTRANSLATION_SYN_SENT) })
		p := reversed(client)
		p.Flags, p.Payload, p.Seq, p.Ack = wire.RST|wire.ACK, nil, 0, 1001
		want := p
		want.Seq = usualTranslation.Cookie + 1
		if got := s.egress(p.Frame()); got.verdict != "pass_translated" || !bytes.Equal(got.out, want.Frame()) {
			t.Errorf("%s: %x, want %x", got.verdict, got.out, want.Frame())
		}
	}
}

func TestOtherConnectionsAreLeftAlone(t *testing.T) {
	s := newTranslator(t)
	for _, client := range bothFamilies() {
		s.translated(client, func(v *serverTranslation) { v.ExpiresNs = 1 })
		frame := reversed(client).Frame()
		if got := s.egress(frame); got.verdict != "pass_inside" || !bytes.Equal(got.out, frame) {
			t.Errorf("expired: %s", got.verdict)
		}
		other := client
		other.Source = netip.AddrPortFrom(client.Source.Addr(), 9)
		frame = reversed(other).Frame()
		if got := s.egress(frame); got.verdict != "pass_inside" || !bytes.Equal(got.out, frame) {
			t.Errorf("another port: %s", got.verdict)
		}
		client.To = netip.AddrPortFrom(client.To.Addr(), 9)
		frame = reversed(client).Frame()
		if got := s.egress(frame); got.verdict != "pass_other" || !bytes.Equal(got.out, frame) {
			t.Errorf("an unprotected port: %s", got.verdict)
		}
	}
}

func TestSweepRemovesWhatHasExpired(t *testing.T) {
	s := newTranslator(t)
	now := monotonic(t)
	live := func(p uint16) bool { return p%3 == 0 }
	for p := range uint16(90) {
		client := bothFamilies()[p%2]
		client.Source = netip.AddrPortFrom(client.Source.Addr(), p)
		s.translated(client, func(v *serverTranslation) {
			v.ExpiresNs = 1
			if live(p) {
				v.ExpiresNs = uint64(p%2) * (now + 1<<40)
			}
		})
	}
	server := &Server{tables: *s.tables, objects: *s.serverObjects}
	if seen, removed, err := server.SweepFlows(); err != nil || seen != 90 || removed != 60 {
		t.Errorf("saw %d, removed %d: %v", seen, removed, err)
	}
	var key serverEndpoints
	var value serverTranslation
	for all := s.Flows.Iterate(); all.Next(&key, &value); {
		if !live(key.ClientPortBe>>8 | key.ClientPortBe<<8) {
			t.Errorf("%+v is still there", key)
		}
	}
}

func TestEstablishedConnectionsAreNotEvicted(t *testing.T) {
	s := newTranslator(t)
	client := bothFamilies()[0]
	for p := range uint16(200) {
		client.Source = netip.AddrPortFrom(client.Source.Addr(), p)
		err := s.Flows.Update(endpointsOf(client), usualTranslation, ebpf.UpdateNoExist)
		if full := p >= 100; full != (err != nil) {
			t.Fatalf("connection %d of 100: %v", p, err)
		}
	}
	value := usualTranslation
	value.State, value.ExpiresNs = uint8(serverTranslationStateTRANSLATION_SYN_RECEIVED), monotonic(t)+64e9
	if err := s.Translating.Set(true); err != nil {
		t.Fatal(err)
	}
	if err := s.HalfOpen.Put(endpointsOf(client), value); err != nil {
		t.Fatal(err)
	}
	if got := s.ingress(client.Frame()); got.verdict != "drop_flows_full" || got.action != tcDrop {
		t.Errorf("one too many: %s", got.verdict)
	}
}

// quoteIn is the ICMP error of a router that quotes a packet of the server.
func quoteIn(quoted wire.Packet, kind, code uint8) wire.Packet {
	router, protocol := netip.MustParseAddrPort("192.0.2.254:0"), uint8(1)
	if quoted.Source.Addr().Is6() {
		router, protocol = netip.MustParseAddrPort("[2001:db8:ffff::1]:0"), wire.ICMP6
	}
	ip := quoted.Frame()[14:]
	icmp := slices.Concat([]byte{kind, code, 0, 0}, octets(1400), ip[:min(len(ip), 68)])
	sum := sumOf(icmp)
	if protocol == wire.ICMP6 { // RFC 4443 2.3
		from, to := router.Addr().As16(), quoted.Source.Addr().As16()
		sum += sumOf(slices.Concat(from[:], to[:], octets(uint32(len(icmp)), wire.ICMP6)))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(icmp[2:], ^uint16(sum))
	return wire.Packet{Source: router, To: quoted.Source, Protocol: protocol, Payload: icmp}
}

func sumOf(b []byte) (sum uint32) {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	return sum
}

func TestErrorsQuoteWhatTheKernelHasSent(t *testing.T) {
	s := newTranslator(t)
	kinds := map[bool][]uint8{true: {3, 11, 12}, false: {1, 2, 3, 4}}
	for _, client := range bothFamilies() {
		s.translated(client, nil)
		sent := reversed(client) // in the client's numbers
		sent.Payload = nil
		kernel := sent
		kernel.Seq += usualTranslation.Delta
		for _, kind := range kinds[client.Source.Addr().Is4()] {
			got, want := s.ingress(quoteIn(sent, kind, 4).Frame()), quoteIn(kernel, kind, 4).Frame()
			// The quoted TCP checksum stays: nobody checks the one of a part.
			at := len(want) - 4
			copy(want[at:at+2], got.out[at:at+2])
			binary.BigEndian.PutUint16(want[icmpAt(client)+2:], binary.BigEndian.Uint16(got.out[icmpAt(client)+2:]))
			if got.verdict != "pass_error" || !bytes.Equal(got.out, want) {
				t.Errorf("%s, type %d: %s\n%x, want\n%x", client.Source, kind, got.verdict, got.out, want)
			}
			if !icmpSumIsRight(got.out, client) {
				t.Errorf("%s, type %d: the checksum is wrong: %x", client.Source, kind, got.out)
			}
		}
		for _, kind := range []uint8{0, 8, 128, 135} {
			frame := quoteIn(sent, kind, 0).Frame()
			if got := s.ingress(frame); got.verdict != "pass_other" || !bytes.Equal(got.out, frame) {
				t.Errorf("%s, type %d is no error: %s", client.Source, kind, got.verdict)
			}
		}
		whole := quoteIn(sent, kinds[client.Source.Addr().Is4()][0], 0).Frame()
		for length := icmpAt(client); length < len(whole); length++ { // however short: no fault
			if got := s.ingress(whole[:length]); got.action != tcNext {
				t.Errorf("%s, %d bytes: %s", client.Source, length, got.verdict)
			}
		}
	}
}

func icmpAt(client wire.Packet) int {
	if client.Source.Addr().Is4() {
		return 14 + 20
	}
	return 14 + 40
}

func icmpSumIsRight(frame []byte, client wire.Packet) bool {
	icmp := frame[icmpAt(client):]
	sum := sumOf(icmp)
	if !client.Source.Addr().Is4() {
		sum += sumOf(frame[14+8:14+40]) + uint32(len(icmp)) + wire.ICMP6
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return sum == 0xffff
}
