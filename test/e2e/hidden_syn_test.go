package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

// hidden is a way to hide a SYN from who looks for one in the usual place.
type hidden struct {
	name   string
	ipv6   bool
	packet wire.Packet // what differs from a plain SYN
	piece  int         // bytes of each fragment's payload, if it is fragmented
	// edge and server are the verdicts that each half alone has to give.
	edge, server string
	// A kernel takes none either: its first fragment lacks a part of the TCP header
	// (RFC 8200 4.5).
	futile bool
}

var hiddenTags = wire.Packet{Tags: []wire.Tag{{Type: wire.Service, ID: 3}, {Type: wire.Customer, ID: 2}, {Type: wire.Customer, ID: 1}}}

func hiddenSYNs() []hidden {
	behind := func(numbers ...uint8) wire.Packet {
		var p wire.Packet
		for _, number := range numbers {
			p.Extensions = append(p.Extensions, wire.Padded(number, 8))
		}
		return p
	}
	atomic := wire.Packet{Extensions: []wire.Extension{wire.FragmentHeader(0, false)}}
	return []hidden{
		{name: "fragments of 8 bytes", piece: 8, edge: "drop_fragment", server: "drop_fragment"},
		{name: "fragments of 8 bytes", ipv6: true, piece: 8, edge: "drop_fragment", server: "drop_fragment", futile: true},
		{name: "fragments of 24 bytes", ipv6: true, piece: 24, edge: "drop_fragment", server: "drop_fragment"},
		{name: "an atomic fragment", ipv6: true, packet: atomic, edge: "drop_fragment", server: "drop_fragment"},
		// A server's agent belongs on the device that has the address, above the tags.
		{name: "a third tag", packet: hiddenTags, edge: "drop_vlan_depth", server: "drop_strict_syn"},
		{name: "a third tag", ipv6: true, packet: hiddenTags, edge: "drop_vlan_depth", server: "drop_strict_syn"},
		{name: "an over-long chain", ipv6: true, packet: behind(slices.Repeat([]uint8{wire.Destination}, 7)...),
			edge: "drop_unparsable", server: "drop_unparsable"},
		{name: "hop-by-hop options", ipv6: true, packet: behind(wire.HopByHop), edge: "answer_syn", server: "drop_strict_syn"},
		{name: "destination options", ipv6: true, packet: behind(wire.Destination), edge: "answer_syn", server: "drop_strict_syn"},
		{name: "a routing header", ipv6: true, packet: behind(wire.Routing), edge: "answer_syn", server: "drop_strict_syn"},
		{name: "a chain within bounds", ipv6: true, packet: behind(wire.HopByHop, wire.Destination, wire.Routing, wire.Destination),
			edge: "answer_syn", server: "drop_strict_syn"},
	}
}

// hiddenGuard is a place where a half stands alone, or both do.
type hiddenGuard struct {
	name    string
	protect func(*testing.T, *lab.Lab)
	verdict func(hidden) (agent, name string) // "" is no agent
	// sees tells what such a place can see; nil is everything.
	sees func(hidden) bool
}

var hiddenGuards = []hiddenGuard{
	{name: "nobody", protect: func(t *testing.T, l *lab.Lab) { mustJoin(t, l); popTags(t, l) },
		verdict: func(hidden) (string, string) { return "", "" }},
	{name: "edge", protect: func(t *testing.T, l *lab.Lab) {
		popTags(t, l)
		startHalf(t, l, l.Edge.Namespace, "edge", l.EdgeConfig(keysOf(t, l)))
	}, verdict: func(h hidden) (string, string) { return "edge", h.edge }},
	{name: "server, strict", protect: strictServer, verdict: atStrictServer, sees: func(h hidden) bool { return h.packet.Tags == nil }},
	{name: "server, strict, above tags", protect: func(t *testing.T, l *lab.Lab) {
		stackVLAN(t, l.Server.Namespace, l.Server.Port, hiddenTags.Tags, []string{l.Server.IPv4.String() + "/16", l.Server.IPv6.String() + "/48"}, nil)
		l.Server.Port = upperPort
		strictServer(t, l)
	}, verdict: atStrictServer, sees: func(h hidden) bool { return h.packet.Tags != nil }},
	{name: "split", protect: func(t *testing.T, l *lab.Lab) { mustDefend(t, l, "split") },
		verdict: func(h hidden) (string, string) { return "edge", h.edge }},
	{name: "host", protect: func(t *testing.T, l *lab.Lab) { mustDefend(t, l, "host") },
		verdict: func(h hidden) (string, string) { return "host", h.edge }},
}

func strictServer(t *testing.T, l *lab.Lab) {
	mustJoin(t, l)
	startHalf(t, l, l.Server.Namespace, "server", l.ServerConfig(keysOf(t, l))+"strict: true\n")
}

func atStrictServer(h hidden) (agent, verdict string) { return "server", h.server }

func mustJoin(t *testing.T, l *lab.Lab) {
	t.Helper()
	if err := l.JoinEdge(); err != nil {
		t.Fatal(err)
	}
}

func startHalf(t *testing.T, l *lab.Lab, at *lab.Namespace, kind, config string) {
	t.Helper()
	startAgent(t, l, at, kind, "-c", fileOf(t, l, kind+".yaml", config))
}

func mustDefend(t *testing.T, l *lab.Lab, defence string) {
	t.Helper()
	if _, err := l.Defend(t.Context(), defence); err != nil {
		t.Fatal(err)
	}
}

// hiddenTimes is how often each SYN is sent, from ports of its own.
const hiddenTimes = 5

// hiddenTrial is a guard at work.
type hiddenTrial struct {
	hiddenGuard
	lab            *lab.Lab
	port           *wirePort
	stack, answers func(*testing.T) uint64 // packets at the server's stack, SYN-ACKs of its own
}

// A SYN that is hidden comes to no listener, whichever half looks; without any,
// each kind does, so that the counts show something.
func TestHiddenSYNsComeToNoListener(t *testing.T) {
	need(t, "nft", "ip")
	for _, guard := range hiddenGuards {
		t.Run(guard.name, func(t *testing.T) {
			l := newLab(t, lab.Options{Topology: lab.Bridge})
			trial := hiddenTrial{hiddenGuard: guard, lab: l}
			serveExchanges(t, l)
			guard.protect(t, l)
			trial.port = openWirePort(t, l.Client.Namespace, l.Client.Port, nil)
			trial.stack = countArrivals(t, l.Server.Namespace, "stack",
				fmt.Sprintf("ip saddr %s counter", l.Client.IPv4), fmt.Sprintf("ip6 saddr %s meta l4proto != icmpv6 counter", l.Client.IPv6))
			trial.answers = countAnswers(t, l)
			for i, h := range hiddenSYNs() {
				if guard.sees == nil || guard.sees(h) {
					t.Run(h.name+", "+family(h.ipv6), func(t *testing.T) { trial.run(t, h, h.framesTo(t, l, uint16(30000+hiddenTimes*i))) })
				}
			}
		})
	}
}

func (r hiddenTrial) run(t *testing.T, h hidden, frames [][]byte) {
	agent, verdict := r.verdict(h)
	stack, answers, before := r.stack(t), r.answers(t), verdictOf(t, r.lab, agent, verdict)
	for _, frame := range frames {
		r.port.send(t, frame)
	}
	if agent == "" {
		eventually(t, 10*time.Second, "the SYNs come to the listener", func() bool {
			return r.stack(t) >= stack+hiddenTimes && (h.futile || r.answers(t) >= answers+hiddenTimes)
		})
		return
	}
	eventually(t, 10*time.Second, fmt.Sprintf("the %s counts %d of %s", agent, len(frames), verdict), func() bool {
		return verdictOf(t, r.lab, agent, verdict) == before+uint64(len(frames))
	})
	if n := r.stack(t) - stack; n > 0 {
		t.Errorf("%d packets came to the server's stack", n)
	}
	if n := r.answers(t) - answers; n > 0 {
		t.Errorf("the listener has answered %d SYNs", n)
	}
}

func verdictOf(t *testing.T, l *lab.Lab, agent, name string) uint64 {
	t.Helper()
	if agent == "" {
		return 0
	}
	return verdictsOf(t, l, agent)[name]
}

// countAnswers counts the SYN-ACKs that the server's own stack sends.
func countAnswers(t *testing.T, l *lab.Lab) func(*testing.T) uint64 {
	t.Helper()
	rules := "table inet answers {\n\tchain out {\n\t\ttype filter hook output priority 0\n\t\ttcp flags & (syn | ack) == syn | ack counter\n\t}\n}\n"
	file := fileOf(t, l, "answers.nft", rules)
	runIn(t, l.Server.Namespace, "nft", "-f", file)
	return func(t *testing.T) uint64 { return sumOfCounters(t, l.Server.Namespace, "answers", 1) }
}

// popTags has the server take what comes with tags as VLAN devices would.
func popTags(t *testing.T, l *lab.Lab) {
	t.Helper()
	body := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for range hiddenTags.Tags {
		body = append(body, asm.Mov.Reg(asm.R1, asm.R6), asm.FnSkbVlanPop.Call())
	}
	attachTC(t, l.Server.Namespace, l.Server.Port, ebpf.AttachTCXIngress, body)
}

// framesTo are the frames of all the SYNs to the lab's server.
func (h hidden) framesTo(t *testing.T, l *lab.Lab, from uint16) (all [][]byte) {
	t.Helper()
	client, err := l.Client.HardwareAddr(l.Client.Port)
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Server.HardwareAddr(l.Server.Port)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint16(hiddenTimes) {
		p := h.packet
		p.Source = netip.AddrPortFrom(l.Client.Addr(h.ipv6), from+i)
		p.To = netip.AddrPortFrom(l.Server.Addr(h.ipv6), lab.HTTPPort)
		p.Flags, p.Seq, p.Window = wire.SYN, 0x1000*uint32(from+i), 65535
		frames := [][]byte{p.Frame()}
		if h.piece > 0 {
			p.Options = hiddenOptions
			frames = fragments(t, p, h.piece, uint32(from+i))
		}
		for _, frame := range frames {
			all = append(all, append(append(append([]byte{}, server...), client...), frame[12:]...))
		}
	}
	return all
}

// hiddenOptions are MSS, SACK, timestamps and window scale, as Linux has them.
var hiddenOptions = []byte{2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7}

// fragments cuts the TCP segment of a packet into pieces of so many bytes.
func fragments(t *testing.T, p wire.Packet, length int, id uint32) (all [][]byte) {
	t.Helper()
	whole := p.Frame()
	segment := whole[wire.Read(whole).TransportAt:]
	for at := 0; at < len(segment); at += length {
		piece := segment[at:min(at+length, len(segment))]
		more := at+length < len(segment)
		buffer := gopacket.NewSerializeBuffer()
		eth := &layers.Ethernet{SrcMAC: whole[6:12], DstMAC: whole[:6], EthernetType: layers.EthernetTypeIPv4}
		packet := []gopacket.SerializableLayer{eth}
		if p.Source.Addr().Is4() {
			ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, Id: uint16(id), FragOffset: uint16(at / 8),
				SrcIP: p.Source.Addr().AsSlice(), DstIP: p.To.Addr().AsSlice()}
			if more {
				ip.Flags = layers.IPv4MoreFragments
			}
			packet = append(packet, ip)
		} else {
			eth.EthernetType = layers.EthernetTypeIPv6
			header := wire.FragmentHeader(uint16(at/8), more).Rest
			packet = append(packet, &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolIPv6Fragment,
				SrcIP: p.Source.Addr().AsSlice(), DstIP: p.To.Addr().AsSlice()},
				gopacket.Payload(append([]byte{wire.TCP}, append(header[:3:3], byte(id>>24), byte(id>>16), byte(id>>8), byte(id))...)))
		}
		options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(buffer, options, append(packet, gopacket.Payload(piece))...); err != nil {
			t.Fatal(err)
		}
		all = append(all, slices.Clone(buffer.Bytes()))
	}
	return all
}
