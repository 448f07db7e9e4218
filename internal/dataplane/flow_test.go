package dataplane

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/test/wire"
)

// replied is a packet of the server in the flow of a client's packet.
func replied(p wire.Packet, flags wire.Flags) wire.Packet {
	p.Source, p.To, p.Flags, p.Options = p.To, p.Source, flags, nil
	return p
}

// handshake sends a SYN and returns the ACK that answers the edge's SYN-ACK.
func (e edgeAgent) handshake(syn wire.Packet) wire.Packet {
	e.t.Helper()
	got := e.outside(syn.Frame())
	if got.verdict != "answer_syn" {
		e.t.Fatalf("SYN: %s", got.verdict)
	}
	ack := flagged(syn, wire.ACK)
	ack.Seq, ack.Ack, ack.Options = syn.Seq+1, wire.Read(got.out).Seq+1, nil
	return ack
}

func (e edgeAgent) want(what string, p wire.Packet, verdict string) {
	e.t.Helper()
	if got := e.outside(p.Frame()); got.verdict != verdict {
		e.t.Errorf("%s: %s, want %s", what, got.verdict, verdict)
	}
}

// neighbour is the packet from the next address.
func neighbour(p wire.Packet) wire.Packet {
	p.Source = netip.AddrPortFrom(p.Source.Addr().Next(), p.Source.Port())
	return p
}

func TestValidACKVerifiesItsFlowAndNoOther(t *testing.T) {
	e := newEdge(t)
	for _, syn := range []wire.Packet{syn4(linuxOptions), syn6(windowsOptions), to(syn4(""), "203.0.113.200:22")} {
		ack := e.handshake(syn)
		e.want("ACK", ack, "pass_cookie")
		for name, flags := range map[string]wire.Flags{
			"ACK again": wire.ACK, "data": wire.ACK | wire.PSH, "FIN": wire.FIN | wire.ACK,
			"RST": wire.RST, "RST and ACK": wire.RST | wire.ACK, "SYN-ACK": wire.SYN | wire.ACK,
		} {
			e.want(name, flagged(with(ack, func(p *wire.Packet) { p.Seq, p.Ack = 1, 2 }), flags), "pass_verified")
		}
		other := neighbour(ack)
		e.want("another client's ACK", other, "drop_bad_cookie")
		e.want("its RST", flagged(other, wire.RST), "drop_unverified_rst")
		e.want("its SYN-ACK", flagged(other, wire.SYN|wire.ACK), "drop_unverified_synack")
		e.want("a new SYN of the flow", syn, "answer_syn")
		e.want("illegal flags in the flow", flagged(syn, wire.SYN|wire.FIN), "drop_flags_syn_fin")
	}
}

func TestDataAndFINMayCarryTheCookie(t *testing.T) {
	e := newEdge(t)
	for name, p := range map[string]wire.Packet{
		"data":         carrying(flagged(syn4(""), wire.ACK|wire.PSH), 1000),
		"FIN":          flagged(syn4(""), wire.ACK|wire.FIN),
		"data and FIN": carrying(flagged(syn4(""), wire.ACK|wire.FIN|wire.PSH), 10),
		"urgent data":  carrying(flagged(syn4(""), wire.ACK|wire.URG), 10),
		"jumbo data":   carrying(flagged(syn4(""), wire.ACK), 8900),
	} {
		e.forget()
		ack := e.handshake(syn4(linuxOptions))
		p.Seq, p.Ack = ack.Seq, ack.Ack
		e.want(name, p, "pass_cookie")
	}
}

func TestFlagsThatSetNothingUpDoNotCarryTheCookie(t *testing.T) {
	e := newEdge(t)
	ack := e.handshake(syn4(linuxOptions))
	e.want("RST and ACK", flagged(ack, wire.RST|wire.ACK), "drop_unverified_rst")
	e.want("SYN-ACK", flagged(ack, wire.SYN|wire.ACK), "drop_unverified_synack")
	e.want("ACK", ack, "pass_cookie")
}

func TestNeighboursOfACookieAreRefused(t *testing.T) {
	e := newEdge(t)
	ack := e.handshake(syn4(linuxOptions))
	for added := uint32(1); added <= 64; added++ {
		e.want("later acknowledgement", with(ack, func(p *wire.Packet) { p.Ack += added }), "drop_bad_cookie")
		e.want("earlier acknowledgement", with(ack, func(p *wire.Packet) { p.Ack -= added }), "drop_bad_cookie")
		e.want("later segment", with(ack, func(p *wire.Packet) { p.Seq += added }), "drop_bad_cookie")
	}
	e.want("the ACK itself", ack, "pass_cookie")
}

func TestPacketsFromInsideSayWhatTheyProve(t *testing.T) {
	e := newEdge(t)
	run := map[string]func([]byte) outcome{"inside": e.inside, "egress": e.egress}
	for _, c := range []struct {
		name    string
		flags   wire.Flags
		fresh   wire.Flags // of the client's next packet
		verdict string
	}{
		{"ACK", wire.ACK, wire.ACK, "pass_verified"},
		{"data", wire.ACK | wire.PSH, wire.ACK, "pass_verified"},
		{"FIN", wire.FIN | wire.ACK, wire.ACK, "pass_verified"},
		{"SYN", wire.SYN, wire.SYN | wire.ACK, "pass_verified"},
		{"SYN with ECN", wire.SYN | wire.ECE | wire.CWR, wire.SYN | wire.ACK, "pass_verified"},
		{"RST", wire.RST, wire.ACK, "drop_bad_cookie"},
		{"RST and ACK", wire.RST | wire.ACK, wire.ACK, "drop_bad_cookie"},
		{"SYN-ACK", wire.SYN | wire.ACK, wire.ACK, "drop_bad_cookie"},
		{"FIN without ACK", wire.FIN, wire.ACK, "drop_bad_cookie"},
		{"no flag", 0, wire.ACK, "drop_bad_cookie"},
		{"SYN and FIN", wire.SYN | wire.FIN, wire.ACK, "drop_bad_cookie"},
	} {
		for where, send := range run {
			for _, client := range []wire.Packet{syn4(""), syn6("")} {
				e.forget()
				if got := send(replied(client, c.flags).Frame()); got.verdict != "pass_inside" {
					t.Errorf("%s by %s: %s", c.name, where, got.verdict)
				}
				e.want(c.name+" by "+where, flagged(client, c.fresh), c.verdict)
			}
		}
	}
}

func TestPacketsFromUnprotectedServersFillNoFilter(t *testing.T) {
	e := newEdge(t)
	empty := e.lines()
	for _, server := range []string{"203.0.113.5:444", "192.0.2.99:443"} {
		for _, send := range []func([]byte) outcome{e.inside, e.egress} {
			send(replied(to(syn4(""), server), wire.ACK).Frame())
			send(replied(to(syn4(""), server), wire.SYN).Frame())
		}
	}
	if !bytes.Equal(e.lines(), empty) {
		t.Error("the filter has changed")
	}
}

// lines is the content of the filter.
func (e edgeAgent) lines() []byte {
	e.t.Helper()
	memory, err := e.FilterLines.Memory()
	if err != nil {
		e.t.Fatal(err)
	}
	b := make([]byte, e.FilterLines.MaxEntries()*lineBytes) // the mapping is rounded up to pages
	if _, err := memory.ReadAt(b, 0); err != nil {
		e.t.Fatal(err)
	}
	return b
}

func TestFramesFromInsidePassUntouched(t *testing.T) {
	e := newEdge(t)
	for _, g := range goldens() {
		frame := g.frame()
		if got := e.inside(frame); got.verdict != "pass_inside" || got.action != xdpRedirect || !bytes.Equal(got.out, frame) {
			t.Errorf("%s: %s, action %d", g.name, got.verdict, got.action)
		}
		if !fitsSKB(frame) {
			continue
		}
		if got := e.egress(frame); got.verdict != "pass_inside" || got.action != tcNext || !bytes.Equal(got.out, frame) {
			t.Errorf("%s at egress: %s, action %d", g.name, got.verdict, got.action)
		}
	}
}

func TestUnknownPacketsPassWhileTheEdgeLearns(t *testing.T) {
	e := newEdge(t)
	e.learn(time.Hour)
	for _, p := range []wire.Packet{syn4(""), syn6("")} {
		e.want("ACK", flagged(p, wire.ACK), "pass_learning")
		e.want("RST", flagged(p, wire.RST), "pass_learning")
		e.want("SYN-ACK", flagged(p, wire.SYN|wire.ACK), "pass_learning")
		e.want("SYN", p, "answer_syn")
		e.want("illegal flags", flagged(p, wire.SYN|wire.RST), "drop_flags_syn_rst")
	}
	e.want("ACK with a cookie", e.handshake(syn4("")), "pass_cookie")
	e.learn(0)
	e.want("ACK when it has learned", flagged(syn6(""), wire.ACK), "drop_bad_cookie")
	e.want("ACK of a flow that it has met with a cookie", flagged(syn4(""), wire.ACK), "pass_verified")
}

func TestKeyOfAnotherEpochInTheSlotIsNoKey(t *testing.T) {
	e := newEdge(t)
	ack := e.handshake(syn4(linuxOptions))
	e.clearKeys()
	e.writeKeys(domainMain, slotOf(testEpoch+uint64(e.slots), cookie.SipHash, 9))
	e.want("SYN", syn4(linuxOptions), "drop_no_key")
	e.want("ACK", ack, "drop_no_key")
	e.writeKeys(domainMain, mainSlot)
	e.want("ACK with the key back", ack, "pass_cookie")
}

func TestCookieOfAnEpochWithoutItsOwnKeyIsStillAccepted(t *testing.T) {
	e := newEdge(t)
	ack := e.handshake(syn4(linuxOptions))
	e.setEpoch(testEpoch+1, longEpoch)
	e.want("SYN", syn4(linuxOptions), "drop_no_key")
	e.want("ACK of the last epoch with a key", ack, "pass_cookie")
}

func TestWithoutAClockNothingIsAnsweredOrAccepted(t *testing.T) {
	e := newEdge(t)
	ack := e.handshake(syn4(linuxOptions))
	if err := e.SetClock(Clock{}); err != nil {
		t.Fatal(err)
	}
	e.want("SYN", syn4(linuxOptions), "drop_no_key")
	e.want("ACK", ack, "drop_no_key")
}
