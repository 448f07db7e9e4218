package dataplane

import (
	"encoding/binary"

	"smartcookie/test/wire"
)

// What Windows' usual SYN is answered with, and what the server then knows.
const (
	windows4, client4Words = "1460 sack scale=9", "1460 sack scale=8"
	windows6, client6Words = "1440 sack scale=9", "1440 sack scale=8"
)

func answered4(name string, in wire.Packet) golden {
	return golden{name: name, in: in, verdict: "answer_syn", service: web, answer: windows4, client: client4Words}
}

func answered6(name string, in wire.Packet) golden {
	return golden{name: name, in: in, verdict: "answer_syn", service: web, answer: windows6, client: client6Words}
}

func lost(name string, in wire.Packet, verdict string, service int) golden {
	return golden{name: name, in: in, verdict: verdict, service: service}
}

func passed(name string, in wire.Packet) golden {
	return golden{name: name, in: in, verdict: "pass_other"}
}

func (g golden) edited(edit func([]byte) []byte) golden {
	g.edit = edit
	return g
}

// put writes a 16-bit number at an offset of the frame.
func put(at int, value uint16) func([]byte) []byte {
	return func(frame []byte) []byte {
		binary.BigEndian.PutUint16(frame[at:], value)
		return frame
	}
}

func tagged(p wire.Packet, tags ...wire.Tag) wire.Packet {
	p.Tags = tags
	return p
}

func linkGoldens() []golden {
	four, six := syn4(windowsOptions), syn6(windowsOptions)
	c, s := wire.Tag{Type: wire.Customer, ID: 100}, wire.Tag{Type: wire.Service, ID: 4094}
	return []golden{
		answered4("untagged IPv4", four),
		answered6("untagged IPv6", six),
		answered4("VLAN tag, IPv4", tagged(four, c)),
		answered6("VLAN tag, IPv6", tagged(six, c)),
		answered4("priority bits of a tag are kept", tagged(four, c)).edited(put(14, 0xf064)),
		answered4("service tag alone", tagged(four, s)),
		answered4("QinQ, IPv4", tagged(four, s, c)),
		answered6("QinQ, IPv6", tagged(six, s, c)),
		answered4("two customer tags", tagged(four, c, c)),
		lost("three tags, IPv4", tagged(four, s, c, c), "drop_vlan_depth", none),
		lost("three tags, IPv6", tagged(six, c, c, c), "drop_vlan_depth", none),
		lost("three tags to an unprotected address", tagged(to(four, "192.0.2.99:80"), c, c, c), "drop_vlan_depth", none),
		answered4("Ethernet padding is not sent back", with(four, func(p *wire.Packet) { p.Trailer = 46 })),
		passed("ARP", four).edited(put(12, 0x0806)),
		passed("LLDP", four).edited(put(12, 0x88cc)),
		passed("tagged ARP", tagged(four, c)).edited(put(16, 0x0806)),
		passed("802.3 length instead of a type", four).edited(put(12, 60)),
		passed("Ethernet header alone", four).edited(func(f []byte) []byte { return f[:14] }),
		passed("tag type and nothing behind it", tagged(four, c)).edited(func(f []byte) []byte { return f[:14] }),
		passed("MPLS", four).edited(put(12, 0x8847)),
	}
}

func ip4Goldens() []golden {
	four := syn4(windowsOptions)
	options := func(n int) wire.Packet { return with(four, func(p *wire.Packet) { p.IPOptions = make([]byte, n) }) }
	protocol := func(number uint8) wire.Packet { return with(four, func(p *wire.Packet) { p.Protocol = number }) }
	return []golden{
		answered4("IPv4 options of one word", options(4)),
		answered4("IPv4 options of ten words", options(40)),
		answered4("IPv4 TTL 1", with(four, func(p *wire.Packet) { p.Hops = 1 })),
		answered4("IPv4 type of service does not matter", four).edited(put(14, 0x45fc)),
		answered4("IPv4 reserved fragment bit", four).edited(put(20, 0x8000)),
		answered4("wrong IPv4 checksum is not laundered: nothing of the SYN's is kept", four).edited(put(24, 0xdead)),
		answered4("wrong TCP checksum", four).edited(put(50, 0xdead)),
		lost("IPv4 version 5", four, "drop_unparsable", none).edited(put(14, 0x5500)),
		lost("IPv4 header of four words", four, "drop_unparsable", none).edited(put(14, 0x4400)),
		lost("IPv4 header longer than the packet", four, "drop_unparsable", none).edited(put(14, 0x4f00)),
		lost("IPv4 total length inside the TCP header", four, "drop_unparsable", none).edited(put(16, 39)),
		lost("IPv4 total length inside the TCP options", four, "drop_unparsable", none).edited(put(16, 51)),
		lost("IPv4 total length of the IP header alone", four, "drop_unparsable", none).edited(put(16, 20)),
		lost("IPv4 total length shorter than the IP header", four, "drop_unparsable", none).edited(put(16, 19)),
		answered4("IPv4 total length beyond the frame: only headers matter", four).edited(put(16, 65535)),
		lost("frame that ends within the TCP header", four, "drop_unparsable", none).edited(func(f []byte) []byte { return f[:53] }),
		lost("frame that ends within the TCP options", four, "drop_unparsable", none).edited(func(f []byte) []byte { return f[:60] }),
		lost("IPv4 total length 0", four, "drop_unparsable", none).edited(put(16, 0)),
		lost("TCP header of four words", four, "drop_unparsable", none).edited(put(46, 0x4002)),
		lost("TCP header of no word", four, "drop_unparsable", none).edited(put(46, 0x0002)),
		lost("TCP header longer than the packet", four, "drop_unparsable", none).edited(put(46, 0xf002)),
		passed("malformed TCP to an unprotected address", to(four, "192.0.2.99:80")).edited(put(46, 0x4002)),
		lost("malformed TCP to an unprotected port", to(four, "203.0.113.5:1"), "drop_unparsable", none).edited(put(46, 0x4002)),
		passed("UDP to a protected port", protocol(wire.UDP)),
		passed("ICMP", protocol(1)),
		passed("SCTP", protocol(132)),
		passed("GRE", protocol(47)),
		passed("IPsec AH over IPv4, which no server here unpacks", protocol(wire.Auth)),
	}
}

func chain(p wire.Packet, headers ...wire.Extension) wire.Packet {
	p.Extensions = headers
	return p
}

// repeated is so many extension headers of a kind, 8 bytes each.
func repeated(number uint8, count int) (headers []wire.Extension) {
	for range count {
		headers = append(headers, wire.Padded(number, 8))
	}
	return headers
}

func ip6Goldens() []golden {
	six := syn6(windowsOptions)
	udp := with(six, func(p *wire.Packet) { p.Protocol = wire.UDP })
	hop, destination := wire.Padded(wire.HopByHop, 8), wire.Padded(wire.Destination, 24)
	routing, auth := wire.Padded(wire.Routing, 40), wire.Padded(wire.Auth, 24)
	return []golden{
		answered6("hop-by-hop", chain(six, hop)),
		answered6("destination options", chain(six, destination)),
		answered6("routing", chain(six, routing)),
		answered6("authentication", chain(six, auth)),
		answered6("hop-by-hop, routing, authentication, destination", chain(six, hop, routing, auth, destination)),
		answered6("extension header of 256 bytes", chain(six, wire.Padded(wire.Destination, 256))),
		answered6("six extension headers", chain(six, repeated(wire.Destination, 6)...)),
		answered6("six extension headers and a tag", tagged(chain(six, repeated(wire.Destination, 6)...), wire.Tag{Type: wire.Customer, ID: 1})),
		lost("seven extension headers", chain(six, repeated(wire.Destination, 7)...), "drop_unparsable", none),
		lost("eight extension headers", chain(six, repeated(wire.HopByHop, 8)...), "drop_unparsable", none),
		passed("seven extension headers to an unprotected address", to(chain(six, repeated(wire.Destination, 7)...), "[2001:db8:9::1]:443")),
		passed("UDP behind six extension headers", chain(udp, repeated(wire.Destination, 6)...)),
		lost("extension header longer than the packet", chain(six, hop), "drop_unparsable", none).edited(put(54, 0x06ff)),
		lost("IPv6 payload length inside the TCP options", six, "drop_unparsable", none).edited(put(18, 31)),
		lost("IPv6 payload length 0", six, "drop_unparsable", none).edited(put(18, 0)),
		lost("IPv6 payload ends before TCP begins", chain(six, hop), "drop_unparsable", none).edited(put(18, 7)),
		lost("IPv6 version 4", six, "drop_unparsable", none).edited(put(14, 0x4000)),
		answered6("traffic class and flow label do not matter", six).edited(put(14, 0x6fff)),
		answered6("hop limit 1", with(six, func(p *wire.Packet) { p.Hops = 1 })),
		passed("UDP over IPv6", udp),
		passed("UDP behind hop-by-hop", chain(udp, hop)),
		passed("neighbour solicitation", with(six, func(p *wire.Packet) { p.Protocol = wire.ICMP6 })),
		passed("no next header", with(six, func(p *wire.Packet) { p.Protocol = 59 })),
		passed("ESP", with(six, func(p *wire.Packet) { p.Protocol = 50 })),
	}
}

func fragmentGoldens() []golden {
	four, six := syn4(windowsOptions), syn6(windowsOptions)
	udp4 := with(four, func(p *wire.Packet) { p.Protocol = wire.UDP })
	more := func(p wire.Packet) wire.Packet { p.More = true; return p }
	later := func(p wire.Packet) wire.Packet { p.Offset = 185; return p }
	protocol6 := func(number uint8) wire.Packet { return with(six, func(p *wire.Packet) { p.Protocol = number }) }
	first, atomic := wire.FragmentHeader(0, true), wire.FragmentHeader(0, false)
	last := wire.FragmentHeader(180, false)
	hop, destination := wire.Padded(wire.HopByHop, 8), wire.Padded(wire.Destination, 8)
	routing := wire.Padded(wire.Routing, 24)
	return []golden{
		lost("first fragment, IPv4", more(four), "drop_fragment", none),
		lost("middle fragment, IPv4", later(more(four)), "drop_fragment", none),
		lost("last fragment, IPv4", later(four), "drop_fragment", none),
		lost("tiny fragment, the flags in the next one", more(with(four, func(p *wire.Packet) { p.Options = nil })), "drop_fragment", none).edited(func(f []byte) []byte { return f[:42] }),
		lost("fragment of offset 1, which would write over flags", with(four, func(p *wire.Packet) { p.Offset = 1 }), "drop_fragment", none),
		lost("last possible fragment", with(four, func(p *wire.Packet) { p.Offset = 8191 }), "drop_fragment", none),
		lost("fragment with IPv4 options", more(with(four, func(p *wire.Packet) { p.IPOptions = make([]byte, 40) })), "drop_fragment", none),
		lost("fragment to an unprotected port", more(to(four, "203.0.113.5:1")), "drop_fragment", none),
		passed("fragment to an unprotected address, IPv4", more(to(four, "192.0.2.99:443"))),
		passed("first fragment of UDP, IPv4", more(udp4)),
		passed("last fragment of UDP, IPv4", later(udp4)),
		lost("first fragment, IPv6", chain(six, first), "drop_fragment", none),
		lost("last fragment, IPv6", chain(six, last), "drop_fragment", none),
		lost("atomic fragment", chain(six, atomic), "drop_fragment", none),
		lost("fragment behind hop-by-hop", chain(six, hop, first), "drop_fragment", none),
		lost("fragment of what may lead to TCP", chain(six, first, destination), "drop_fragment", none),
		lost("last fragment of what may lead to TCP", chain(six, last, destination), "drop_fragment", none),
		lost("fragment behind routing and destination", chain(six, routing, destination, first), "drop_fragment", none),
		lost("fragment behind five extension headers", chain(six, append(repeated(wire.Destination, 5), first)...), "drop_fragment", none),
		lost("fragment behind six extension headers", chain(six, append(repeated(wire.Destination, 6), first)...), "drop_fragment", none),
		lost("fragment behind seven extension headers", chain(six, append(repeated(wire.Destination, 7), first)...), "drop_unparsable", none),
		lost("fragment header that is cut", chain(six, first), "drop_unparsable", none).edited(func(f []byte) []byte { return f[:55] }),
		lost("fragment of a fragment", chain(six, first, first), "drop_fragment", none),
		passed("fragment to an unprotected address, IPv6", chain(to(six, "[2001:db8:9::1]:443"), first)),
		passed("first fragment of UDP, IPv6", chain(protocol6(wire.UDP), first)),
		passed("last fragment of UDP, IPv6", chain(protocol6(wire.UDP), last)),
		passed("fragment of ICMPv6", chain(protocol6(wire.ICMP6), first)),
		passed("fragment of ESP", chain(protocol6(50), first)),
		passed("fragment of SCTP", chain(protocol6(132), last)),
		passed("fragment of GRE", chain(protocol6(47), first)),
	}
}
