package dataplane

import "smartcookie/test/wire"

// answeredWith is a SYN to web that has other options than Windows'.
func answeredWith(name string, in wire.Packet, answer, client string) golden {
	return golden{name: name, in: in, verdict: "answer_syn", service: web, answer: answer, client: client}
}

// stackGoldens has the options of real stacks, in their order.
func stackGoldens() []golden {
	const all4, all6 = "1460 sack ts scale=9", "1440 sack ts scale=9"
	return []golden{
		answeredWith("Linux, IPv4", syn4(linuxOptions), all4, "1460 sack ts scale=7"),
		answeredWith("Linux, IPv6", syn6("020405a0 0402080a 0a0b0c0d 00000000 0103030a"), all6, "1440 sack ts scale=10"),
		answeredWith("Linux on a jumbo network", syn4("02042300 0402080a 0a0b0c0d 00000000 01030307"), all4, "8960 sack ts scale=7"),
		answeredWith("Windows, IPv4", syn4(windowsOptions), windows4, client4Words),
		answeredWith("Windows, IPv6", syn6("020405a0 01030308 01010402"), windows6, client6Words),
		answeredWith("Windows with timestamps", syn4("020405b4 01030308 0402080a 0a0b0c0d 00000000"), all4, "1460 sack ts scale=8"),
		answeredWith("Windows without scaling", syn4("020405b4 01010402"), "1460 sack", "1460 sack"),
		answeredWith("macOS and iOS, IPv4", syn4("020405b4 01030306 0101080a 0a0b0c0d 00000000 04020000"), all4, "1460 sack ts scale=6"),
		answeredWith("macOS and iOS, IPv6", syn6("020405a0 01030306 0101080a 0a0b0c0d 00000000 04020000"), all6, "1440 sack ts scale=6"),
		answeredWith("FreeBSD", syn4("020405b4 01030306 0402080a 0a0b0c0d 00000000"), all4, "1460 sack ts scale=6"),
		answeredWith("OpenBSD", syn4("020405b4 01010402 01030306 0101080a 0a0b0c0d 00000000"), all4, "1460 sack ts scale=6"),
		answeredWith("MSS alone", syn4("020405b4"), "1460", "1460"),
		answeredWith("no option, IPv4", syn4(""), "1460", "536"),
		answeredWith("no option, IPv6", syn6(""), "1440", "1220"),
		answeredWith("Fast Open's request for a cookie", syn4("020405b4 0402080a 0a0b0c0d 00000000 01030307 22020101"), all4, "1460 sack ts scale=7"),
		answeredWith("Fast Open's cookie and data", with(syn4("020405b4 0402080a 0a0b0c0d 00000000 01030307 220a0123 456789ab cdef0101"),
			func(p *wire.Packet) { p.Payload = []byte("GET / HTTP/1.1\r\n\r\n") }), all4, "1460 sack ts scale=7"),
		answeredWith("multipath TCP", syn4("020405b4 0402080a 0a0b0c0d 00000000 01030307 1e040181"), all4, "1460 sack ts scale=7"),
	}
}

// oddOptionGoldens has what no stack sends.
func oddOptionGoldens() []golden {
	return []golden{
		answeredWith("NOPs before and between", syn4("01010101 01020405 b4010101 01040201"), "1460 sack", "1460 sack"),
		answeredWith("forty NOPs", syn4("01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101"), "1460", "536"),
		answeredWith("MSS behind thirty-six NOPs", syn4("01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101 020405b4"), "1460", "1460"),
		answeredWith("options of a single byte's length end at forty", syn4("01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101 01010101 010204ff"), "1460", "536"),
		answeredWith("unknown option before the others", syn4("fd08aabb ccddeeff 020405b4 01010402"), "1460 sack", "1460 sack"),
		answeredWith("unknown option of two bytes", syn4("4f020101 020405b4"), "1460", "1460"),
		answeredWith("end of the list hides what follows", syn4("020405b4 00000402"), "1460", "1460"),
		answeredWith("end of the list first", syn4("00000000 020405b4"), "1460", "536"),
		answeredWith("length 0 ends the walk", syn4("020405b4 fe000402"), "1460", "1460"),
		answeredWith("length 1 ends the walk", syn4("020405b4 fe010402"), "1460", "1460"),
		answeredWith("length beyond the header ends the walk", syn4("04020101 fe0a0402"), "1460 sack", "536 sack"),
		answeredWith("length beyond the header by one, where data follows", carrying(syn4("04020101 01010303"), 10), "1460 sack", "536 sack"),
		answeredWith("option kind in the last byte, without a length", syn4("020405b4 01010103"), "1460", "1460"),
		answeredWith("MSS of a wrong length does not count", syn4("020505b4 00040201"), "1460 sack", "536 sack"),
		answeredWith("scale of a wrong length does not count", syn4("03040808 020405b4"), "1460", "1460"),
		answeredWith("SACK of a wrong length does not count", syn4("04030001 020405b4"), "1460", "1460"),
		answeredWith("timestamps of a wrong length do not count", syn4("08090102 03040506 07010204 05b40000"), "1460", "1460"),
		answeredWith("the last MSS counts", syn4("02040218 020405b4"), "1460", "1460"),
		answeredWith("SACK and scale without timestamps, IPv6", syn6("020405a0 01030304 04020101"), "1440 sack scale=9", "1440 sack scale=4"),
		answeredWith("scale without SACK or timestamps", syn4("020405b4 01030308"), "1460", "1460"),
		answeredWith("scale 1 without SACK or timestamps", syn4("020405b4 01030301"), "1460", "1460"),
		answeredWith("scale 0 without SACK or timestamps", syn4("020405b4 01030300"), "1460 scale=9", "1460 scale=0"),
		answeredWith("scale 10 without timestamps", syn4("020405b4 0103030a 01010402"), "1460 sack scale=9", "1460 sack scale=8"),
		answeredWith("scale 11 without timestamps", syn4("020405b4 0103030b 01010402"), "1460 sack", "1460 sack"),
		answeredWith("scale 15 counts as 14", syn4("020405b4 0402080a 0a0b0c0d 00000000 0103030f"), "1460 sack ts scale=9", "1460 sack ts scale=14"),
		answeredWith("scale 15 counts as 14, in another order", syn4("0303 0f01 020405b4 0402080a 0a0b0c0d 00000000"), "1460 sack ts scale=9", "1460 sack ts scale=14"),
		answeredWith("scale 255 without timestamps", syn4("020405b4 010303ff 01010402"), "1460 sack", "1460 sack"),
		answeredWith("scale 0 is a scale", syn4("020405b4 0402080a 0a0b0c0d 00000000 01030300"), "1460 sack ts scale=9", "1460 sack ts scale=0"),
		answeredWith("MSS 0, IPv4", syn4("02040000 01010402"), "1460 sack", "536 sack"),
		answeredWith("MSS 0, IPv6", syn6("02040000 0402080a 0a0b0c0d 00000000 01030307"), "1440 sack ts scale=9", "1220 sack ts scale=7"),
		answeredWith("MSS 65535", syn4("0204ffff 0402080a 0a0b0c0d 00000000 01030307"), "1460 sack ts scale=9", "8960 sack ts scale=7"),
		answeredWith("MSS 1459 is rounded down", syn4("020405b3 01010402"), "1460 sack", "1400 sack"),
		answeredWith("timestamps alone", syn4("0101080a 0a0b0c0d 00000000"), "1460 ts", "536 ts"),
		answeredWith("timestamps and scale", syn4("0101080a 0a0b0c0d 00000000 01030307"), "1460 ts scale=9", "536 ts scale=7"),
		answeredWith("timestamps and SACK", syn4("0402080a 0a0b0c0d 00000000"), "1460 sack ts", "536 sack ts"),
	}
}

// serviceOptionGoldens has services that do not agree to everything, and ECN.
func serviceOptionGoldens() []golden {
	ecn := func(p wire.Packet) wire.Packet { p.Flags |= wire.ECE | wire.CWR; return p }
	at := func(g golden, service int) golden { g.service = service; return g }
	return []golden{
		at(answeredWith("no timestamps at the service", to(syn4(linuxOptions), "203.0.113.200:22"), "1400 sack scale=3", "1460 sack scale=7"), ssh),
		at(answeredWith("no timestamps at the service, IPv6", to(syn6(linuxOptions), "[2001:db8:1::200]:22"), "1300 sack scale=3", "1440 sack scale=7"), ssh),
		at(answeredWith("no ECN at the service", ecn(to(syn4(linuxOptions), "203.0.113.200:22")), "1400 sack scale=3", "1460 sack scale=7"), ssh),
		at(answeredWith("no option at the service", to(syn4(linuxOptions), "198.51.100.200:7"), "536", "1460"), bare),
		at(answeredWith("no option at the service, IPv6", ecn(to(syn6(linuxOptions), "[2001:db8:6::1]:7")), "1220", "1440"), bare),
		answeredWith("ECN with timestamps", ecn(syn4(linuxOptions)), "1460 sack ts scale=9 ecn", "1460 sack ts scale=7 ecn"),
		answeredWith("ECN with timestamps, IPv6", ecn(syn6(linuxOptions)), "1440 sack ts scale=9 ecn", "1460 sack ts scale=7 ecn"),
		answeredWith("ECN without timestamps", ecn(syn4(windowsOptions)), windows4, client4Words),
		answeredWith("accurate ECN falls back to ECN", with(ecn(syn4(linuxOptions)), func(p *wire.Packet) { p.AccurateECN = true }),
			"1460 sack ts scale=9 ecn", "1460 sack ts scale=7 ecn"),
		answeredWith("ECE alone asks for nothing", with(syn4(linuxOptions), func(p *wire.Packet) { p.Flags |= wire.ECE }),
			"1460 sack ts scale=9", "1460 sack ts scale=7"),
		answeredWith("CWR alone asks for nothing", with(syn4(linuxOptions), func(p *wire.Packet) { p.Flags |= wire.CWR }),
			"1460 sack ts scale=9", "1460 sack ts scale=7"),
	}
}
