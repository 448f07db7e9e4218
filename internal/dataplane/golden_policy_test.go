package dataplane

import (
	"strings"

	"smartcookie/test/wire"
)

func flagged(p wire.Packet, flags wire.Flags) wire.Packet {
	p.Flags = flags
	return p
}

func carrying(p wire.Packet, bytes int) wire.Packet {
	p.Payload = []byte(strings.Repeat("smartcookie", bytes/11+1))[:bytes]
	return p
}

func flagGoldens() []golden {
	four, six := syn4(windowsOptions), syn6(windowsOptions)
	return []golden{
		answered4("SYN with PSH", flagged(four, wire.SYN|wire.PSH)),
		answered4("SYN with URG", flagged(four, wire.SYN|wire.URG)),
		answered4("SYN with everything that may accompany it", flagged(four, wire.SYN|wire.PSH|wire.URG|wire.ECE|wire.CWR)),
		answered4("SYN with data: only the SYN is acknowledged", carrying(four, 100)),
		answered6("SYN with data, IPv6", carrying(six, 1000)),
		answered4("SYN as large as the network carries", carrying(four, 1448)),
		answered4("SYN of a jumbo frame", carrying(four, 8900)),
		answered6("SYN of a jumbo frame, IPv6", carrying(six, 8900)),
		answered4("SYN with an acknowledgement number", with(four, func(p *wire.Packet) { p.Ack = 77 })),
		answered4("SYN whose next number wraps", with(four, func(p *wire.Packet) { p.Seq = 0xffffffff })),
		lost("no flag", flagged(four, 0), "drop_flags_null", web),
		lost("no flag but ECE and CWR", flagged(four, wire.ECE|wire.CWR), "drop_flags_null", web),
		lost("SYN and FIN", flagged(four, wire.SYN|wire.FIN), "drop_flags_syn_fin", web),
		lost("SYN and RST", flagged(six, wire.SYN|wire.RST), "drop_flags_syn_rst", web),
		lost("Xmas tree", flagged(four, wire.FIN|wire.PSH|wire.URG), "drop_flags_xmas", web),
		lost("FIN alone", flagged(six, wire.FIN), "drop_flags_other", web),
		lost("URG alone", flagged(four, wire.URG), "drop_flags_other", web),
		passed("no flag, to an unprotected port", flagged(to(four, "203.0.113.5:444"), 0)),
	}
}

func sourceGoldens() []golden {
	four, six := syn4(windowsOptions), syn6(windowsOptions)
	bad := func(name string, p wire.Packet) golden { return lost(name, p, "drop_bad_source", web) }
	return []golden{
		bad("to the broadcast MAC", four).edited(func(f []byte) []byte { copy(f, "\xff\xff\xff\xff\xff\xff"); return f }),
		bad("to a multicast MAC", six).edited(func(f []byte) []byte { f[0] |= 1; return f }),
		bad("source 0.0.0.0", from(four, "0.0.0.0")),
		bad("source in 0/8", from(four, "0.1.2.3")),
		bad("source in 127/8", from(four, "127.0.0.1")),
		bad("last source of 127/8", from(four, "127.255.255.255")),
		bad("source multicast, IPv4", from(four, "224.0.0.1")),
		bad("source 255.255.255.255", from(four, "255.255.255.255")),
		bad("source reserved", from(four, "240.0.0.1")),
		bad("LAND, IPv4", from(four, "203.0.113.5")),
		bad("source ::", from(six, "::")),
		bad("source ::1", from(six, "::1")),
		bad("source multicast, IPv6", from(six, "ff02::1")),
		bad("LAND, IPv6", from(six, "2001:db8:1::5")),
		answered4("source before 127/8", from(four, "126.255.255.255")),
		answered4("source after 127/8", from(four, "128.0.0.0")),
		answered4("last unicast source", from(four, "223.255.255.255")),
		answered4("first source", from(four, "1.0.0.0")),
		answered4("source beside the server", from(four, "203.0.113.6")),
		answered6("source ::2", from(six, "::2")),
		answered6("source link-local", from(six, "fe80::1")),
		answered6("source that ends like the server", from(six, "2001:db8:c::5")),
		answered6("source that begins like the server", from(six, "2001:db8:1::6")),
	}
}

func serviceGoldens() []golden {
	four, six := syn4(windowsOptions), syn6(windowsOptions)
	ack := flagged(four, wire.ACK)
	ssh4 := golden{verdict: "answer_syn", service: ssh, answer: "1400 sack scale=3", client: client4Words}
	named := func(g golden, name string, in wire.Packet) golden { g.name, g.in = name, in; return g }
	return []golden{
		answered4("another port of the service", to(four, "203.0.113.5:80")),
		answered4("first port of a range", to(four, "203.0.113.5:8000")),
		answered4("last port of a range", to(four, "203.0.113.5:8999")),
		passed("below a range", to(four, "203.0.113.5:7999")),
		passed("above a range", to(four, "203.0.113.5:9000")),
		passed("port 0", to(four, "203.0.113.5:0")),
		passed("port 65535", to(four, "203.0.113.5:65535")),
		passed("ACK to an unprotected port", to(ack, "203.0.113.5:444")),
		answered4("first address of a prefix", to(four, "203.0.113.0:443")),
		answered4("last address of a prefix", to(four, "203.0.113.255:443")),
		passed("before a prefix", to(four, "203.0.112.255:443")),
		passed("after a prefix", to(four, "203.0.114.0:443")),
		answered4("second prefix", to(four, "198.18.7.15:443")),
		passed("after the second prefix", to(four, "198.18.7.16:443")),
		answered6("second prefix, IPv6", to(six, "[2001:db8:2::80]:443")),
		passed("beside the second prefix, IPv6", to(six, "[2001:db8:2::81]:443")),
		passed("after a prefix, IPv6", to(six, "[2001:db8:2::]:443")),
		named(ssh4, "the longest prefix decides", to(four, "203.0.113.200:22")),
		answered4("the longest prefix has what holds around it", to(four, "203.0.113.200:443")),
		passed("what holds at the longest prefix only", to(four, "203.0.113.201:22")),
		passed("unprotected SYN with data", carrying(to(four, "192.0.2.99:80"), 300)),
		passed("unprotected jumbo frame", carrying(to(ack, "192.0.2.99:80"), 8900)),
		lost("service that is off, SYN", to(four, "198.51.100.1:80"), "pass_off", off),
		lost("service that is off, ACK", to(ack, "198.51.100.1:80"), "pass_off", off),
		lost("service that is off, illegal flags", flagged(to(six, "[2001:db8:3::1]:80"), wire.SYN|wire.FIN), "pass_off", off),
		lost("service that is off, fragment", with(to(four, "198.51.100.1:80"), func(p *wire.Packet) { p.More = true }), "pass_other", none),
	}
}

func keyGoldens() []golden {
	four, six := syn4(windowsOptions), syn6(windowsOptions)
	stop4, pass4 := to(four, "198.51.100.65:80"), to(four, "198.51.100.129:80")
	return []golden{
		lost("SYN without a key stops", stop4, "drop_no_key", stops),
		lost("SYN without a key stops, IPv6", to(six, "[2001:db8:4::1]:80"), "drop_no_key", stops),
		lost("ACK without a key stops", flagged(stop4, wire.ACK), "drop_no_key", stops),
		lost("RST without a key stops", flagged(stop4, wire.RST), "drop_unverified_rst", stops),
		lost("illegal flags without a key stop", flagged(pass4, 0), "drop_flags_null", passes),
		lost("SYN without a key passes", pass4, "pass_no_key", passes),
		lost("SYN without a key passes, IPv6", to(six, "[2001:db8:5::1]:80"), "pass_no_key", passes),
		lost("ACK without a key passes: the handshake is the server's", flagged(pass4, wire.ACK), "pass_no_key", passes),
		lost("data without a key passes", carrying(flagged(pass4, wire.ACK|wire.PSH), 10), "pass_no_key", passes),
		lost("RST without a key passes", flagged(pass4, wire.RST), "pass_no_key", passes),
	}
}

// unknownGoldens has packets of flows that are not in the filter.
func unknownGoldens() []golden {
	four, six := syn4(""), syn6("")
	return []golden{
		lost("ACK", flagged(four, wire.ACK), "drop_bad_cookie", web),
		lost("ACK, IPv6", flagged(six, wire.ACK), "drop_bad_cookie", web),
		lost("data", carrying(flagged(four, wire.ACK|wire.PSH), 1400), "drop_bad_cookie", web),
		lost("jumbo data", carrying(flagged(four, wire.ACK), 8900), "drop_bad_cookie", web),
		lost("FIN and ACK", flagged(four, wire.FIN|wire.ACK), "drop_bad_cookie", web),
		lost("RST", flagged(four, wire.RST), "drop_unverified_rst", web),
		lost("RST and ACK", flagged(six, wire.RST|wire.ACK), "drop_unverified_rst", web),
		lost("SYN-ACK", flagged(four, wire.SYN|wire.ACK), "drop_unverified_synack", web),
		lost("SYN-ACK, IPv6", flagged(six, wire.SYN|wire.ACK|wire.ECE), "drop_unverified_synack", web),
	}
}
