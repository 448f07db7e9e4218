package vector

import (
	"bytes"
	"testing"

	"smartcookie/internal/cookie"
)

func readChallenges(t *testing.T) []Challenge {
	t.Helper()
	f, err := ParseChallenges(readContract(t, "vectors/challenge.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Vectors) < 60 {
		t.Fatalf("only %d vectors", len(f.Vectors))
	}
	return f.Vectors
}

func TestChallengesInTheContractAreTheGeneratedOnes(t *testing.T) {
	want, err := GenerateChallenges().Text()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readContract(t, "vectors/challenge.json"), want) {
		t.Error("challenge.json differs from what the model generates: run go generate ./internal/cookie")
	}
}

func TestModelAcceptsWhatEachChallengeExpects(t *testing.T) {
	for _, v := range readChallenges(t) {
		r := cookie.Receiver{Epoch: v.Receiver.Epoch, Window: cookie.EdgeWindow, Slot: func(epoch uint64) (cookie.Slot, bool) {
			for _, s := range v.Receiver.Slots {
				if s.Epoch != epoch {
					continue
				}
				hash, err := cookie.ParseHash(s.Hash)
				if err != nil {
					t.Fatal(err)
				}
				slot := cookie.Slot{Epoch: s.Epoch, Hash: hash}
				copy(slot.Key[:], s.Key)
				return slot, true
			}
			return cookie.Slot{}, false
		}}
		if got := r.CheckChallenge(uint32(v.ResetSeq), v.Flow()); got != v.Valid() {
			t.Errorf("%s: %v, want %s", v.Name, got, v.Expect)
		}
	}
}

// Whatever a client has sent in its SYN, the challenge acknowledges none of it.
func TestNoChallengeIsAnAcknowledgement(t *testing.T) {
	near := 0
	for _, v := range readChallenges(t) {
		if uint32(v.Challenge-v.ISN) < 1<<16 {
			t.Errorf("%s: %#x acknowledges a SYN with %#x", v.Name, v.Challenge, v.ISN)
		}
		if (v.Challenge^v.MAC)>>30&1 == 1 {
			near++
		}
	}
	if near < 4 {
		t.Errorf("%d vectors had to step aside", near)
	}
}
