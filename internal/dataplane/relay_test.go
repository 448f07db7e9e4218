package dataplane

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"smartcookie/internal/control"
	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// confirming makes the service web admit on confirmation, probing at a rate.
func confirming(admission policy.Admission, probes int) func(*EdgeConfig) {
	return func(c *EdgeConfig) {
		c.Services = append([]policy.Service{}, services...)
		c.Services[web-1].Admission, c.Services[web-1].Probes = admission, probes
	}
}

// relays opens what the programs want carried.
func (e edgeAgent) relays() *Relays {
	e.t.Helper()
	r, err := e.edge().OpenRelays()
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { r.Close() })
	return r
}

// over is a deadline with which what is there is read, and nothing waited for.
var over = time.Unix(1, 0)

// wantRelayed wants a packet next, and wantsNone that there is none.
func (r *Relays) wantRelayed(t *testing.T, what string, kind control.Kind, packet []byte) {
	t.Helper()
	r.reader.SetDeadline(over)
	got, bytesOf, err := r.Read()
	if err != nil || got != kind || !bytes.Equal(bytesOf, packet) {
		t.Errorf("%s: kind %d, %x, %v; want kind %d, %x", what, got, bytesOf, err, kind, packet)
	}
}

func (r *Relays) wantNone(t *testing.T, what string) {
	t.Helper()
	r.reader.SetDeadline(over)
	if kind, packet, err := r.Read(); err == nil {
		t.Errorf("%s: kind %d, %x", what, kind, packet)
	}
}

func TestValidCookieUnderConfirmDoesNotEnterTheFilter(t *testing.T) {
	e := newEdge(t, confirming(policy.OnConfirm, 0))
	r := e.relays()
	e.forget()
	empty := e.lines()
	for _, syn := range []wire.Packet{syn4(linuxOptions), syn6(windowsOptions)} {
		ack := e.handshake(syn)
		for name, p := range map[string]wire.Packet{
			"bare ACK": ack, "padded": with(ack, func(p *wire.Packet) { p.Trailer = 6 }),
			"data":   with(ack, func(p *wire.Packet) { p.Payload = make([]byte, 500) }),
			"tagged": with(ack, func(p *wire.Packet) { p.Tags = []wire.Tag{{Type: wire.Customer, ID: 5}} }),
		} {
			for range 2 { // it is asked about again: nothing is remembered
				got := e.outside(p.Frame())
				if got.verdict != "sent_setup" || got.service != web || got.action != xdpDrop {
					t.Errorf("%s: %s of service %d, action %d", name, got.verdict, got.service, got.action)
				}
				p.Tags, p.Trailer = nil, 0
				r.wantRelayed(t, name, control.KindSetup, p.Frame()[14:])
			}
		}
		e.want("a wrong cookie", neighbour(ack), "drop_bad_cookie")
		if _, err := e.edge().Learn([]control.Flow{{Client: ack.Source, Server: ack.To}}); err != nil {
			t.Fatal(err)
		}
		e.want("once it is confirmed", ack, "pass_verified")
		e.forget()
	}
	r.wantNone(t, "a wrong cookie or a confirmed flow")
	if !bytes.Equal(e.lines(), empty) {
		t.Error("a flow is in the filter")
	}
	e.want("another service", e.handshake(to(syn4(""), "203.0.113.200:22")), "pass_cookie")
}

func TestPacketThatFitsNoMessageIsDropped(t *testing.T) {
	e := newEdge(t, confirming(policy.OnConfirm, 0))
	r := e.relays()
	for _, syn := range []wire.Packet{syn4(""), syn6("")} {
		ack := e.handshake(syn)
		room := control.PacketBytes - (len(ack.Frame()) - 14)
		fits := with(ack, func(p *wire.Packet) { p.Payload = make([]byte, room) })
		e.want("as long as can be", fits, "sent_setup")
		r.wantRelayed(t, "as long as can be", control.KindSetup, fits.Frame()[14:])
		e.want("a byte longer", with(fits, func(p *wire.Packet) { p.Payload = make([]byte, room+1) }), "drop_too_long")
		cut := fits.Frame()
		if got := e.outside(cut[:len(cut)-1]); got.verdict != "drop_unparsable" {
			t.Errorf("a frame shorter than it says: %s", got.verdict)
		}
	}
	r.wantNone(t, "too long, or cut")
}

func TestFullRingFailsClosed(t *testing.T) {
	e := newEdge(t, confirming(policy.OnConfirm, 0))
	ack := e.handshake(syn4("")).Frame()
	const most = 1 << 20 / control.PacketBytes
	sent := 0
	for e.outside(ack).verdict == "sent_setup" {
		if sent++; sent > most {
			t.Fatal("the ring has no end")
		}
	}
	if sent < most/2 {
		t.Errorf("only %d packets fit", sent)
	}
	e.want("the ring is full", e.handshake(syn6("")), "drop_busy")
	r := e.relays()
	for range sent {
		if _, _, err := r.Read(); err != nil {
			t.Fatal(err)
		}
	}
	e.want("there is room again", e.handshake(syn6("")), "sent_setup")
}

func TestSilentAgentCannotConfirmSoTheCookieIsEnough(t *testing.T) {
	e := newEdge(t, confirming(policy.OnConfirm, 0))
	for phase, want := range map[control.Phase]string{
		control.Unheard: "pass_unheard", control.Grace: "sent_setup", control.Enforced: "sent_setup", control.Silent: "pass_cookie",
	} {
		e.forget()
		e.phase(control.Enforced, web4.String())
		ack := e.handshake(syn4(""))
		e.phase(phase, web4.String())
		e.want(phase.String(), ack, want)
	}
}

func TestProbesAreAckOfUnknownFlowsAlone(t *testing.T) {
	e := newEdge(t, confirming(policy.OnCookie, 10_000))
	r := e.relays()
	for _, p := range []wire.Packet{syn4(""), syn6("")} {
		unknown := flagged(p, wire.ACK|wire.PSH)
		e.want("ACK", unknown, "sent_probe")
		r.wantRelayed(t, "ACK", control.KindProbe, unknown.Frame()[14:])
		e.want("RST", flagged(p, wire.RST), "drop_unverified_rst")
		e.want("RST and ACK", flagged(p, wire.RST|wire.ACK), "drop_unverified_rst")
		e.want("SYN-ACK", flagged(p, wire.SYN|wire.ACK), "drop_unverified_synack")
		e.want("a valid cookie", e.handshake(p), "pass_cookie")
	}
	e.want("another service", flagged(to(syn4(""), "203.0.113.200:22"), wire.ACK), "drop_bad_cookie")
	r.wantNone(t, "none but ACKs are sent")
}

// The bucket's arithmetic is tested with a clock of its own in test/host; here
// the program's use of it, by the clock that it reads.
func TestProbesAreBoundedByTheirRate(t *testing.T) {
	const perSecond, burst, tried = 1000, 100, 600 // a burst is that of a tenth of a second
	e := newEdge(t, confirming(policy.OnCookie, perSecond))
	p := flagged(syn4(""), wire.ACK)
	for round := range 3 {
		if err := e.RelaysSpent.Put(uint32(web), [2]uint64{}); err != nil {
			t.Fatal(err)
		}
		sent, begin := 0, monotonic(t)
		for range tried {
			switch got := e.outside(p.Frame()); got.verdict {
			case "sent_probe":
				sent++
			case "drop_bad_cookie":
			default:
				t.Fatal(got.verdict)
			}
		}
		passed := time.Duration(monotonic(t) - begin)
		most := burst + 1 + int(passed.Milliseconds()) + 1
		t.Logf("round %d: %d of %d in %s", round, sent, tried, passed)
		if sent < min(burst, tried) || sent > most {
			t.Errorf("%d probes in %s, at most %d are allowed and at least %d", sent, passed, most, burst)
		}
		r := e.relays()
		for range sent {
			if _, _, err := r.Read(); err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
	}
}

func TestSetupsAreBoundedByARateOfTheirOwn(t *testing.T) {
	e := newEdge(t, confirming(policy.OnConfirm, 1))
	ack := e.handshake(syn4(""))
	later := monotonic(t) + uint64(time.Hour)
	if err := e.RelaysSpent.Put(uint32(web), [2]uint64{later, 0}); err != nil {
		t.Fatal(err)
	}
	e.want("no token for setups", ack, "drop_busy")
	e.want("one for probes", neighbour(ack), "sent_probe")
	if err := e.RelaysSpent.Put(uint32(web), [2]uint64{0, later}); err != nil {
		t.Fatal(err)
	}
	e.want("tokens for setups", ack, "sent_setup")
	e.want("none for probes", neighbour(ack), "drop_bad_cookie")
}

func TestClosedRelaysSaySo(t *testing.T) {
	r := newEdge(t).relays()
	r.Close()
	if _, _, err := r.Read(); !errors.Is(err, ErrRelaysClosed) {
		t.Errorf("%v", err)
	}
}
