package host

import (
	"fmt"
	"os"
	"testing"

	"smartcookie/internal/cookie/vector"
	"smartcookie/test/wire"
)

func TestChallengesAreThoseOfTheVectors(t *testing.T) {
	text, err := os.ReadFile(vectors + "challenge.json")
	if err != nil {
		t.Fatal(err)
	}
	f, err := vector.ParseChallenges(text)
	if err != nil {
		t.Fatal(err)
	}
	var checks []check
	for _, v := range f.Vectors {
		slot, flow := slotWords(t, v.Hash, v.Key, v.Epoch), flowWords(v.Flow().Source, v.Flow().Destination)
		checks = append(checks,
			check{v.Name, fmt.Sprintf("challenge %s %s %d", slot, flow, v.ISN), fmt.Sprintf("%08x %08x", v.MAC, v.Challenge)})
		for bit := range 32 {
			want := "invalid"
			if bit == 30 { // what keeps it away from the ISN
				want = "valid"
			}
			checks = append(checks, check{v.Name, fmt.Sprintf("returned %s %s %d", slot, flow, v.Challenge^1<<bit), want})
		}
		checks = append(checks, check{v.Name, fmt.Sprintf("returned %s %s %d", slot, flow, v.Challenge), "valid"})
	}
	verify(t, checks)
}

// A segment goes back to the sender of any frame that has a TCP header.
func TestSegmentsBackAreThoseOfTheModel(t *testing.T) {
	s := source(t)
	var checks []check
	for range fuzzed() / 20 {
		p := wire.Packet{Seq: s.Uint32(), Ack: s.Uint32(), Flags: wire.Flags(s.Uint32()), Window: uint16(s.Uint32())}
		frame := s.Packet().Frame()
		seen := wire.Read(frame)
		if seen.Kind != wire.KindTCP {
			continue
		}
		want := wire.Back(frame, seen, p)
		checks = append(checks, check{"segment back",
			fmt.Sprintf("back %d %d %d %d %s", p.Seq, p.Ack, p.Flags, p.Window, hexOf(frame)), hexOf(want[seen.NetworkAt:])})
	}
	verify(t, checks)
}
