package cookie

import (
	"testing"
)

var (
	linuxSYN   = Options{MSS: 1460, Timestamps: true, SACK: true, HasScale: true, Scale: 7}
	windowsSYN = Options{MSS: 1460, SACK: true, HasScale: true, Scale: 8}
)

// roundTrip returns what the server learns of a client's options.
func roundTrip(family Family, syn Options, offer Offer) Options {
	r := Encode(family, syn, offer)
	return Decode(family, r.Code, r.Timestamps, r.TSval(0x123456789abcdef))
}

func TestEveryListedMSSComesBack(t *testing.T) {
	for _, family := range []Family{IPv4, IPv6} {
		for _, timestamps := range []bool{true, false} {
			for i, mss := range MSSValues(family, timestamps) {
				syn := Options{MSS: mss, Timestamps: timestamps}
				if got := roundTrip(family, syn, OfferAll); got != syn {
					t.Errorf("IPv%d value %d: %+v, want %+v", family, i, got, syn)
				}
			}
		}
	}
}

func TestMSSIsRoundedDownToAListedValue(t *testing.T) {
	for _, c := range []struct {
		family     Family
		timestamps bool
		mss, want  uint16
	}{
		{IPv4, true, 0, 536},
		{IPv4, true, 535, 536},
		{IPv4, true, 599, 536},
		{IPv4, true, 1459, 1452},
		{IPv4, true, 65535, 8960},
		{IPv4, false, 0, 536},
		{IPv4, false, 1299, 536},
		{IPv4, false, 1459, 1400},
		{IPv4, false, 8960, 1460},
		{IPv6, true, 0, 1220},
		{IPv6, true, 1, 1220},
		{IPv6, true, 1439, 1432},
		{IPv6, true, 65535, 8960},
		{IPv6, false, 1219, 1220},
		{IPv6, false, 1439, 1400},
		{IPv6, false, 1460, 1440},
	} {
		got := roundTrip(c.family, Options{MSS: c.mss, Timestamps: c.timestamps}, OfferAll).MSS
		if got != c.want {
			t.Errorf("IPv%d, timestamps %v: %d became %d, want %d", c.family, c.timestamps, c.mss, got, c.want)
		}
	}
}

func TestClientWithTimestampsKeepsEveryOption(t *testing.T) {
	for scale := uint8(0); scale <= scaleMax; scale++ {
		for bits := range 8 {
			syn := Options{MSS: 1460, Timestamps: true, SACK: bits&1 != 0, ECN: bits&2 != 0, HasScale: bits&4 != 0}
			if syn.HasScale {
				syn.Scale = scale
			}
			if got := roundTrip(IPv4, syn, OfferAll); got != syn {
				t.Errorf("%+v came back as %+v", syn, got)
			}
		}
	}
}

func TestScaleAboveFourteenCountsAsFourteen(t *testing.T) {
	for _, scale := range []uint8{14, 15, 255} {
		syn := linuxSYN
		syn.Scale = scale
		got := roundTrip(IPv4, syn, OfferAll)
		if !got.HasScale || got.Scale != 14 {
			t.Errorf("scale %d came back as %+v", scale, got)
		}
	}
}

func TestScaleWithoutTimestampsIsRoundedDownToItsClass(t *testing.T) {
	for scale, want := range []uint8{0, 0, 2, 2, 4, 4, 4, 7, 8, 8, 8} {
		syn := windowsSYN
		syn.Scale = uint8(scale)
		got := roundTrip(IPv6, syn, OfferAll)
		if !got.SACK || !got.HasScale || got.Scale != want {
			t.Errorf("scale %d came back as %+v, want scale %d", scale, got, want)
		}
	}
}

// Recorded far too small, a window would be of a few bytes.
func TestScaleThatWouldBeUnderstatedTooFarIsNotAgreedOn(t *testing.T) {
	for _, sack := range []bool{false, true} {
		for scale := range uint8(16) {
			want := Options{MSS: 1460, SACK: sack}
			if !sack && scale == 0 {
				want.HasScale = true
			} else if sack && scale <= 10 {
				continue
			}
			syn := Options{MSS: 1460, SACK: sack, HasScale: true, Scale: scale}
			if got := roundTrip(IPv4, syn, OfferAll); got != want {
				t.Errorf("SACK %t, scale %d: got %+v, want %+v", sack, scale, got, want)
			}
		}
	}
}

func TestOptionThatTheServiceDoesNotOfferCountsAsNotAskedFor(t *testing.T) {
	all := linuxSYN
	all.ECN = true
	for offer := Offer(0); offer <= OfferAll; offer++ {
		asked := all
		asked.Timestamps = offer&OfferTimestamps != 0
		asked.SACK = offer&OfferSACK != 0
		asked.HasScale = offer&OfferScale != 0
		asked.ECN = offer&OfferECN != 0
		got, want := Encode(IPv4, all, offer), Encode(IPv4, asked, OfferAll)
		if got != want {
			t.Errorf("offer %04b: %+v, want %+v", offer, got, want)
		}
	}
}

func TestECNIsKeptForClientsWithTimestampsOnly(t *testing.T) {
	syn := linuxSYN
	syn.ECN = true
	if !roundTrip(IPv4, syn, OfferAll).ECN {
		t.Error("lost with timestamps")
	}
	syn.Timestamps = false
	if roundTrip(IPv4, syn, OfferAll).ECN {
		t.Error("kept without timestamps")
	}
}

func TestAnswerCarriesExactlyWhatIsRecorded(t *testing.T) {
	for _, c := range []struct {
		syn, want Options
		offer     Offer
	}{
		{linuxSYN, Options{MSS: 1400, Timestamps: true, SACK: true, HasScale: true, Scale: 9}, OfferAll},
		{windowsSYN, Options{MSS: 1400, SACK: true, HasScale: true, Scale: 9}, OfferAll},
		{linuxSYN, Options{MSS: 1400, Timestamps: true, SACK: true}, OfferTimestamps | OfferSACK},
		{Options{ECN: true}, Options{MSS: 1400}, OfferAll},
		{Options{Timestamps: true, ECN: true}, Options{MSS: 1400, Timestamps: true, ECN: true}, OfferAll},
	} {
		if got := Encode(IPv4, c.syn, c.offer).Answer(IPv4, 1400, 9); got != c.want {
			t.Errorf("%+v is answered with %+v, want %+v", c.syn, got, c.want)
		}
	}
}

func TestTSvalTicksAboveTheRecordedBits(t *testing.T) {
	r := Record{Timestamps: true, TSvalBits: 0x2a}
	for _, c := range []struct {
		clockNS uint64
		want    uint32
	}{
		{0, 0x2a},
		{1<<26 - 1, 0x2a},
		{1 << 26, 0x40 | 0x2a},
		{1<<52 - 1, 0xffffffc0 | 0x2a},
		{1 << 52, 0x2a},
	} {
		if got := r.TSval(c.clockNS); got != c.want {
			t.Errorf("at %#x ns: %#x, want %#x", c.clockNS, got, c.want)
		}
	}
}
