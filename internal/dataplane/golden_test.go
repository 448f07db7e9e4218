package dataplane

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"smartcookie/internal/cookie"
	"smartcookie/test/wire"
)

// golden is a frame from the outside and what an edge with an empty filter
// does with it.
type golden struct {
	name    string
	in      wire.Packet
	edit    func([]byte) []byte // of the frame, nil: none
	verdict string
	service int

	// Of an answer with a cookie, in words: the options of the SYN-ACK, and what the
	// server will know of the client.
	answer, client string
}

func (g golden) frame() []byte {
	frame := g.in.Frame()
	if g.edit != nil {
		frame = g.edit(frame)
	}
	return frame
}

func goldens() []golden {
	return slices.Concat(
		linkGoldens(), ip4Goldens(), ip6Goldens(), fragmentGoldens(),
		stackGoldens(), oddOptionGoldens(), serviceOptionGoldens(),
		flagGoldens(), sourceGoldens(), serviceGoldens(), keyGoldens(), unknownGoldens(), authGoldens(),
	)
}

// Addresses of the tests.
var (
	client4 = netip.MustParseAddrPort("192.0.2.1:40000")
	client6 = netip.MustParseAddrPort("[2001:db8:c::1]:40000")
	web4    = netip.MustParseAddrPort("203.0.113.5:443")
	web6    = netip.MustParseAddrPort("[2001:db8:1::5]:443")
)

const testISN = 0x89abcdef

// hexBytes reads hex in which blanks do not count.
func hexBytes(text string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// The options of the usual SYNs.
const (
	linuxOptions   = "020405b4 0402080a 0a0b0c0d 00000000 01030307"
	windowsOptions = "020405b4 01030308 01010402"
)

func syn4(options string) wire.Packet {
	return wire.Packet{Source: client4, To: web4, Flags: wire.SYN, Seq: testISN, Window: 64240, Options: hexBytes(options)}
}

func syn6(options string) wire.Packet {
	p := syn4(options)
	p.Source, p.To = client6, web6
	return p
}

func with(p wire.Packet, change func(*wire.Packet)) wire.Packet {
	change(&p)
	return p
}

func to(p wire.Packet, address string) wire.Packet {
	p.To = netip.MustParseAddrPort(address)
	return p
}

func from(p wire.Packet, address string) wire.Packet {
	p.Source = netip.AddrPortFrom(netip.MustParseAddr(address), p.Source.Port())
	return p
}

// actionOf is what the edge's programs return for a verdict.
func actionOf(verdict string) uint32 {
	switch {
	case strings.HasPrefix(verdict, "answer"):
		return xdpTX
	case strings.HasPrefix(verdict, "drop"):
		return xdpDrop
	}
	return xdpRedirect
}

// usualFrames makes an edge for networks without jumbo frames: its programs
// take none.
func usualFrames(c *EdgeConfig) {
	c.Outside, c.Inside = slices.Clone(c.Outside), slices.Clone(c.Inside)
	c.Outside[0].MTU, c.Inside[0].MTU = 1500, 1500
}

func TestFramesFromOutsideEndAsTheTableSays(t *testing.T) {
	for name, e := range map[string]edgeAgent{"jumbo": newEdge(t), "usual": newEdge(t, usualFrames)} {
		t.Run(name, func(t *testing.T) { checkGoldens(t, e, name == "jumbo") })
	}
}

func checkGoldens(t *testing.T, e edgeAgent, jumbo bool) {
	for _, g := range goldens() {
		if len(g.frame()) > 1514 && !jumbo {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
			e.forget()
			frame, from := g.frame(), e.clockNow()
			got := e.outside(frame)
			if got.verdict != g.verdict || got.service != g.service || got.action != actionOf(g.verdict) {
				t.Fatalf("%s of service %d, action %d; want %s, %d, %d",
					got.verdict, got.service, got.action, g.verdict, g.service, actionOf(g.verdict))
			}
			if !strings.HasPrefix(g.verdict, "answer") {
				if !bytes.Equal(got.out, frame) {
					t.Errorf("changed to %x", got.out)
				}
				return
			}
			checkAnswer(t, frame, got, from, e.clockNow())
			if g.verdict == "answer_syn" && g.service != authFull { // which has no cookie
				checkWords(t, g, frame, got.out)
			}
		})
	}
}

// checkAnswer compares every byte of an answer with the model's.
func checkAnswer(t testing.TB, frame []byte, got outcome, from, to uint64) {
	t.Helper()
	seen := wire.Read(got.out)
	options := wire.ReadOptions(seen.Options, seen.Flags)
	if options.Timestamps {
		checkTicks(t, options.TSval, from, to)
	}
	// The model's clock is the one that the answer shows, which is right.
	clock := uint64(options.TSval) << 20
	if want := answerOf(frame, decision{got.verdict, got.service}, clock); !bytes.Equal(got.out, want) {
		t.Errorf("in   %x\ngot  %x\nwant %x", frame, got.out, want)
	}
}

// answerOf is the model's answer to a frame.
func answerOf(frame []byte, d decision, clock uint64) []byte {
	seen, answerer := wire.Read(frame), answerer(d.service)
	switch {
	case d.verdict == "answer_reset":
		return wire.Back(frame, seen, wire.Packet{Seq: seen.Ack, Flags: wire.RST})
	case d.verdict == "answer_challenge":
		challenge := cookie.MakeChallenge(answerer.Slot, flowOf(seen), seen.Seq)
		return wire.Back(frame, seen, wire.Packet{Ack: challenge, Flags: wire.ACK})
	case d.service == authFull: // nothing but an MSS, and the client's own number
		mss := answerer.MSS4
		if !seen.Source.Is4() {
			mss = answerer.MSS6
		}
		return wire.Back(frame, seen, wire.Packet{
			Seq: seen.Seq, Ack: seen.Seq + 1, Flags: wire.SYN | wire.ACK, Window: answerer.Window,
			Options: []byte{2, 4, byte(mss >> 8), byte(mss)},
		})
	}
	return answerer.Answer(frame, seen, clock)
}

// checkWords compares what an answer means with the words of the table.
func checkWords(t *testing.T, g golden, frame, answer []byte) {
	t.Helper()
	seen := wire.Read(answer)
	agreed := wire.ReadOptions(seen.Options, 0)
	agreed.ECN = seen.Flags&wire.ECE != 0
	if got := words(agreed.Options); got != g.answer {
		t.Errorf("answered with %q, want %q", got, g.answer)
	}
	receiver := cookie.Receiver{Epoch: testEpoch, Window: cookie.ServerWindow, Slot: func(e uint64) (cookie.Slot, bool) {
		return answerer(g.service).Slot, e == testEpoch
	}}
	flow := cookie.Flow{Source: g.in.Source, Destination: g.in.To}
	code, _, ok := receiver.Check(seen.Seq, flow, wire.Read(frame).Seq)
	if !ok {
		t.Fatal("the cookie is not valid")
	}
	if got := words(cookie.Decode(flow.Family(), code, agreed.Timestamps, agreed.TSval)); got != g.client {
		t.Errorf("the server learns %q, want %q", got, g.client)
	}
}

// words describes options: "1460 sack ts scale=7 ecn".
func words(o cookie.Options) string {
	text := fmt.Sprint(o.MSS)
	if o.SACK {
		text += " sack"
	}
	if o.Timestamps {
		text += " ts"
	}
	if o.HasScale {
		text += fmt.Sprintf(" scale=%d", o.Scale)
	}
	if o.ECN {
		text += " ecn"
	}
	return text
}

func TestNamesOfTheTableAreUnique(t *testing.T) {
	seen := make(map[string]bool)
	for _, g := range goldens() {
		if seen[g.name] {
			t.Errorf("two rows are called %q", g.name)
		}
		seen[g.name] = true
	}
}
