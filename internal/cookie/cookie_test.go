package cookie

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

var (
	flow4 = Flow{netip.MustParseAddrPort("192.0.2.1:40000"), netip.MustParseAddrPort("198.51.100.2:443")}
	flow6 = Flow{netip.MustParseAddrPort("[2001:db8::1]:40000"), netip.MustParseAddrPort("[2001:db8:1::2]:443")}
)

const isn = 0x89abcdef

func slotOf(epoch uint64, hash Hash) Slot {
	s := Slot{Epoch: epoch, Hash: hash}
	copy(s.Key[:hash.KeyLength()], ascending(16))
	s.Key[0] = byte(epoch)
	return s
}

// allSlots has a slot for every epoch.
func allSlots(hash Hash) func(uint64) (Slot, bool) {
	return func(epoch uint64) (Slot, bool) { return slotOf(epoch, hash), true }
}

func TestMessageIsTheOneOfTheSpecification(t *testing.T) {
	for _, c := range []struct {
		flow Flow
		want string
	}{
		{flow4, "010200c0 026433c6 bb01409c efcdab"},
		{flow6, "b80d0120 00000000 00000000 01000000 b80d0120 00000100 00000000 02000000 bb01409c efcdab"},
	} {
		want := strings.ReplaceAll(c.want, " ", "")
		if got := hex.EncodeToString(c.flow.Message(isn)); got != want {
			t.Errorf("%v: %s, want %s", c.flow, got, want)
		}
	}
}

func TestMappedAddressIsIPv6(t *testing.T) {
	source := netip.AddrPortFrom(netip.MustParseAddr("::ffff:192.0.2.1"), 1)
	f := Flow{source, flow6.Destination}
	if n := len(f.Message(isn)); f.Family() != IPv6 || n != 39 {
		t.Errorf("IPv%d, %d bytes", f.Family(), n)
	}
}

func TestCookieIsAcceptedInTheEpochsOfTheWindow(t *testing.T) {
	const made = 100
	for _, c := range []struct {
		name          string
		window        Window
		behind, ahead int // how old, how young a cookie may be
	}{
		{"edge", EdgeWindow, 1, 1},
		{"server", ServerWindow, 2, 1},
	} {
		for _, hash := range []Hash{SipHash, HalfSipHash} {
			cookie := Make(slotOf(made, hash), flow4, isn, 21)
			for age := -4; age <= 5; age++ {
				r := Receiver{uint64(made + age), c.window, allSlots(hash)}
				code, slot, ok := r.Check(cookie, flow4, isn)
				want := -c.ahead <= age && age <= c.behind
				if ok != want {
					t.Errorf("%s, %v, cookie %d epochs old: valid %v, want %v", c.name, hash, age, ok, want)
				}
				if ok && (code != 21 || slot.Epoch != made) {
					t.Errorf("%s, %v: code %d of epoch %d", c.name, hash, code, slot.Epoch)
				}
			}
		}
	}
}

func TestFirstEpochsHaveNothingBeforeThem(t *testing.T) {
	for epoch := range uint64(3) {
		cookie := Make(slotOf(epoch, SipHash), flow4, isn, 0)
		for _, w := range []Window{EdgeWindow, ServerWindow} {
			r := Receiver{epoch, w, allSlots(SipHash)}
			if _, _, ok := r.Check(cookie, flow4, isn); !ok {
				t.Errorf("epoch %d is refused by %+v", epoch, w)
			}
		}
	}
}

func TestParityIsThatOfTheEpoch(t *testing.T) {
	for epoch := range uint64(4) {
		cookie := Make(slotOf(epoch, SipHash), flow4, isn, 0)
		if got := uint64(cookie >> 31); got != epoch%2 {
			t.Errorf("epoch %d: P is %d", epoch, got)
		}
		r := Receiver{epoch, ServerWindow, allSlots(SipHash)}
		if _, _, ok := r.Check(cookie^1<<31, flow4, isn); ok {
			t.Errorf("epoch %d: valid with the other P", epoch)
		}
	}
}

func TestAtMostTwoKeysAreTried(t *testing.T) {
	for _, w := range []Window{EdgeWindow, ServerWindow} {
		for epoch := range uint64(6) {
			for parity := range uint64(2) {
				if n := len(w.candidates(epoch, parity)); n > 2 {
					t.Errorf("%+v at epoch %d, P %d: %d candidates", w, epoch, parity, n)
				}
			}
		}
	}
}

func TestLikelierEpochIsTriedFirst(t *testing.T) {
	for _, c := range []struct {
		window Window
		parity uint64
		want   []uint64
	}{
		{EdgeWindow, 0, []uint64{100}},
		{EdgeWindow, 1, []uint64{99, 101}},
		{ServerWindow, 0, []uint64{100, 98}},
		{ServerWindow, 1, []uint64{99, 101}},
	} {
		if got := c.window.candidates(100, c.parity); !slices.Equal(got, c.want) {
			t.Errorf("%+v, P %d: %v, want %v", c.window, c.parity, got, c.want)
		}
	}
}

func TestEmptySlotIsSkipped(t *testing.T) {
	cookie := Make(slotOf(7, SipHash), flow4, isn, 3)
	for name, slots := range map[string]func(uint64) (Slot, bool){
		"no slot":       func(uint64) (Slot, bool) { return Slot{}, false },
		"no hash":       func(e uint64) (Slot, bool) { return Slot{Epoch: e}, true },
		"another epoch": func(uint64) (Slot, bool) { s := slotOf(7, SipHash); s.Epoch = 7 + 4096; return s, true },
	} {
		if _, _, ok := (Receiver{7, ServerWindow, slots}).Check(cookie, flow4, isn); ok {
			t.Errorf("%s: valid", name)
		}
	}
	onlySeven := func(e uint64) (Slot, bool) { return slotOf(7, SipHash), e == 7 }
	for epoch := uint64(6); epoch <= 9; epoch++ {
		if _, _, ok := (Receiver{epoch, ServerWindow, onlySeven}).Check(cookie, flow4, isn); !ok {
			t.Errorf("at epoch %d: invalid with the one slot that it needs", epoch)
		}
	}
}

// The two keys give this flow the same M and another H, found by search.
func TestNearerOfTwoMatchingEpochsWins(t *testing.T) {
	flow := Flow{netip.MustParseAddrPort("192.0.2.1:1037"), flow4.Destination}
	const isn = 16309823
	older, younger := slotOf(0, SipHash), slotOf(2, SipHash)
	younger.Key[0] = 0xff
	slots := func(e uint64) (Slot, bool) { return map[uint64]Slot{0: older, 2: younger}[e], true }

	for _, maker := range []Slot{older, younger} {
		cookie := Make(maker, flow, isn, 5)
		code, slot, ok := Receiver{2, ServerWindow, slots}.Check(cookie, flow, isn)
		if !ok || slot.Epoch != younger.Epoch {
			t.Errorf("cookie of epoch %d: valid %v for epoch %d", maker.Epoch, ok, slot.Epoch)
		}
		if (code == 5) != (maker == younger) {
			t.Errorf("cookie of epoch %d: code %d", maker.Epoch, code)
		}
	}
}

func TestEveryCodeComesBack(t *testing.T) {
	wrapped := 0
	for isn := range uint32(32) {
		for code := range uint8(32) {
			slot := slotOf(9, HalfSipHash)
			if uint32(code)+MAC(slot.Hash, slot.Key, flow6, isn)>>26&31 >= 32 {
				wrapped++
			}
			cookie := Make(slot, flow6, isn, code)
			got, _, ok := Receiver{9, EdgeWindow, allSlots(HalfSipHash)}.Check(cookie, flow6, isn)
			if !ok || got != code {
				t.Errorf("code %d came back as %d, valid %v", code, got, ok)
			}
		}
	}
	if wrapped == 0 {
		t.Error("no case in which code + H wraps")
	}
}

func TestEveryBitBelowTheCodeIsCompared(t *testing.T) {
	r := Receiver{9, ServerWindow, allSlots(SipHash)}
	cookie := Make(slotOf(9, SipHash), flow4, isn, 0)
	for bit := range 31 {
		code, _, ok := r.Check(cookie^1<<bit, flow4, isn)
		if want := bit >= 26; ok != want {
			t.Errorf("bit %d flipped: valid %v, want %v", bit, ok, want)
		}
		if ok && code == 0 {
			t.Errorf("bit %d flipped: the same code", bit)
		}
	}
}

func TestCookieIsBoundToEveryBitOfTheFlow(t *testing.T) {
	slot := slotOf(9, SipHash)
	r := Receiver{9, ServerWindow, allSlots(SipHash)}
	cookie := Make(slot, flow4, isn, 0)
	port := func(a netip.AddrPort, p uint16) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), p) }
	for bit := range 16 {
		for _, f := range []Flow{
			{port(flow4.Source, flow4.Source.Port()^1<<bit), flow4.Destination},
			{flow4.Source, port(flow4.Destination, flow4.Destination.Port()^1<<bit)},
		} {
			if _, _, ok := r.Check(cookie, f, isn); ok {
				t.Errorf("valid for %v", f)
			}
		}
	}
	for bit := range 32 {
		for _, f := range []Flow{
			{flipAddress(flow4.Source, bit), flow4.Destination},
			{flow4.Source, flipAddress(flow4.Destination, bit)},
		} {
			if _, _, ok := r.Check(cookie, f, isn); ok {
				t.Errorf("valid for %v", f)
			}
		}
		_, _, ok := r.Check(cookie, flow4, isn^1<<bit)
		if want := bit >= 24; ok != want {
			t.Errorf("ISN with bit %d flipped: valid %v, want %v", bit, ok, want)
		}
	}
}

func flipAddress(a netip.AddrPort, bit int) netip.AddrPort {
	b := a.Addr().As4()
	b[bit/8] ^= 1 << (bit % 8)
	return netip.AddrPortFrom(netip.AddrFrom4(b), a.Port())
}

func TestAcknowledgementOfLaterServerBytesIsNoCookie(t *testing.T) {
	const seed = 20240701
	random := rand.New(rand.NewPCG(seed, 0))
	r := Receiver{9, ServerWindow, allSlots(SipHash)}
	cookie := Make(slotOf(9, SipHash), flow4, isn, 0)
	for range 2000 {
		n := 1 + random.Uint32N(1<<26-1)
		if _, _, ok := r.Check(cookie+n, flow4, isn); ok {
			t.Errorf("seed %d: valid for cookie + %d", seed, n)
		}
	}
}

func TestHashIsKnownByItsName(t *testing.T) {
	for _, h := range []Hash{SipHash, HalfSipHash} {
		if got, err := ParseHash(h.String()); err != nil || got != h {
			t.Errorf("%v parses as %v, %v", h, got, err)
		}
	}
	if _, err := ParseHash("crc32"); err == nil {
		t.Error("crc32 is a hash")
	}
}

func TestKeyNeverShowsItself(t *testing.T) {
	slot := slotOf(1, SipHash)
	copy(slot.Key[:], "SECRETSECRETSECR")
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		fmt.Fprintf(&out, verb+"\n", slot.Key)
		fmt.Fprintf(&out, verb+"\n", slot)
		fmt.Fprintf(&out, verb+"\n", &slot)
		fmt.Fprintf(&out, verb+"\n", []Slot{slot})
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("slot", "slot", slot, "key", slot.Key)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("slot", "slot", slot, "key", slot.Key)
	if err := json.NewEncoder(&out).Encode(slot); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"SECRET", "534543", "83, 69, 67", "83 69 67", "0x53, 0x45", "83,69,67"} {
		if strings.Contains(strings.ToLower(out.String()), strings.ToLower(form)) {
			t.Errorf("the key shows as %q in\n%s", form, out.String())
		}
	}
}
