package dataplane

import (
	"smartcookie/internal/cookie"
	"smartcookie/test/wire"
)

// Addresses of the services that challenge, by strategy.
var (
	challenged4 = map[int]string{authCookie: "198.18.8.1:80", authFull: "198.18.9.1:80", authRST: "198.18.10.1:80"}
	challenged6 = map[int]string{authCookie: "[2001:db8:a::1]:80", authFull: "[2001:db8:b::1]:80", authRST: "[2001:db8:c0::1]:80"}
)

// challengedSYNs are SYNs to a service that challenges, of all families and tags.
func challengedSYNs(id int) map[string]wire.Packet {
	four, six := to(syn4(linuxOptions), challenged4[id]), to(syn6(windowsOptions), challenged6[id])
	return map[string]wire.Packet{
		"IPv4": four, "IPv6": six,
		"IPv4, no options":        with(four, func(p *wire.Packet) { p.Options = nil }),
		"IPv4, tagged":            with(four, func(p *wire.Packet) { p.Tags = []wire.Tag{{Type: wire.Customer, ID: 7}} }),
		"IPv6, tagged twice":      with(six, func(p *wire.Packet) { p.Tags = []wire.Tag{{Type: wire.Service, ID: 7}, {Type: wire.Customer, ID: 9}} }),
		"IPv4, IP options":        with(four, func(p *wire.Packet) { p.IPOptions = []byte{1, 1, 1, 0} }),
		"IPv6, extension headers": with(six, func(p *wire.Packet) { p.Extensions = []wire.Extension{wire.Padded(wire.HopByHop, 8)} }),
		"IPv4 with data":          carrying(four, 900),
	}
}

// passing is the RST or ACK that meets a service's challenge.
func passing(id int, syn wire.Packet) wire.Packet {
	flow := cookie.Flow{Source: syn.Source, Destination: syn.To}
	p := syn
	p.Options = nil
	switch id {
	case authRST:
		p.Flags, p.Seq = wire.RST, cookie.MakeChallenge(mainSlot, flow, syn.Seq)
	case authFull:
		p.Flags, p.Seq, p.Ack = wire.ACK, syn.Seq+1, syn.Seq+1
	default:
		p.Flags, p.Seq, p.Ack = wire.ACK, syn.Seq+1, cookie.Make(mainSlot, flow, syn.Seq, 0)+1
	}
	return p
}

// authGoldens are what an empty whitelist decides.
func authGoldens() (rows []golden) {
	for id, verdicts := range map[int][2]string{
		authCookie: {"answer_syn", "answer_reset"}, authFull: {"answer_syn", "answer_reset"}, authRST: {"answer_challenge", "drop_challenged"},
	} {
		name := services[id-1].Name + ": "
		for kind, syn := range challengedSYNs(id) {
			begun, proof := lost(name+"SYN, "+kind, syn, verdicts[0], id), passing(id, syn)
			if id == authCookie {
				begun.answer, begun.client = cookieWords(syn)
			}
			rows = append(rows, begun,
				lost(name+"proof, "+kind, proof, verdicts[1], id),
				lost(name+"later acknowledgement, "+kind, with(proof, func(p *wire.Packet) { p.Ack++; p.Seq += 1 << 8 }), unknownTo(proof), id),
				lost(name+"SYN-ACK with the proof's numbers, "+kind, flagged(proof, wire.SYN|wire.ACK), "drop_unverified_synack", id),
				lost(name+"RST and ACK with the proof's numbers, "+kind, flagged(proof, wire.RST|wire.ACK), "drop_unverified_rst", id))
		}
		four := to(syn4(""), challenged4[id])
		for what, p := range map[string]wire.Packet{"SYN": four, "proof": passing(id, from(four, "127.0.0.1"))} {
			rows = append(rows, lost(name+what+" from 127.0.0.1", from(p, "127.0.0.1"), "drop_bad_source", id))
		}
		rows = append(rows, lost(name+"blind ACK", flagged(four, wire.ACK), "drop_bad_cookie", id),
			lost(name+"blind RST", flagged(four, wire.RST), "drop_unverified_rst", id))
	}
	return rows
}

// cookieWords are what challengedSYNs are answered with, and what the cookie keeps.
func cookieWords(syn wire.Packet) (answer, client string) {
	switch {
	case len(syn.Options) == 0:
		return "1460", "536"
	case syn.Source.Addr().Is4():
		return "1460 sack ts scale=9", "1460 sack ts scale=7"
	}
	return windows6, client6Words
}

// unknownTo is what becomes of a packet whose numbers are not the challenge's.
func unknownTo(p wire.Packet) string {
	if p.Flags&wire.RST != 0 {
		return "drop_unverified_rst"
	}
	return "drop_bad_cookie"
}
