package badwire

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

const framesOfATest = 100_000

// fates lets frames come every 100 µs and returns what becomes of each.
func fates(way *Way, frames int) []Fate {
	all := make([]Fate, frames)
	for i := range all {
		now := time.Duration(i) * 100 * time.Microsecond
		all[i] = way.Take(nil, now)
		drain(way, now)
	}
	return all
}

func drain(way *Way, now time.Duration) (out []delivery) {
	for {
		d, ok := way.Next(now)
		if !ok {
			return out
		}
		out = append(out, d)
	}
}

var allFaults = Faults{
	Loss: 5.5, Duplicate: 0.25, Reorder: 12, Delay: 10 * time.Millisecond, Jitter: 2 * time.Millisecond, Seed: 7,
}

func TestSameSeedGivesSameFates(t *testing.T) {
	first, second := fates(NewWay(allFaults, 0), framesOfATest), fates(NewWay(allFaults, 0), framesOfATest)
	if !slices.Equal(first, second) {
		t.Error("the fates differ")
	}
	if other := fates(NewWay(allFaults, 1), framesOfATest); slices.Equal(first, other) {
		t.Error("both directions share one stream of randomness")
	}
	reseeded := allFaults
	reseeded.Seed++
	if other := fates(NewWay(reseeded, 0), framesOfATest); slices.Equal(first, other) {
		t.Error("the seed changes nothing")
	}
}

// What is lost does not depend on the other faults: each frame draws the same
// amount of randomness.
func TestFateOfAFrameDoesNotHangOnThoseBefore(t *testing.T) {
	only := fates(NewWay(Faults{Loss: allFaults.Loss, Seed: allFaults.Seed}, 0), framesOfATest)
	for i, fate := range fates(NewWay(allFaults, 0), framesOfATest) {
		if fate.Lost != only[i].Lost {
			t.Fatalf("frame %d: lost %t, with loss alone %t", i, fate.Lost, only[i].Lost)
		}
	}
}

func TestSharesAreAsAskedFor(t *testing.T) {
	var lost, duplicated, reordered float64
	for _, fate := range fates(NewWay(allFaults, 0), framesOfATest) {
		lost += one(fate.Lost)
		duplicated += one(fate.Duplicated)
		reordered += one(fate.Reordered)
	}
	left := framesOfATest - lost
	wantShare(t, "lost", lost/framesOfATest, allFaults.Loss)
	wantShare(t, "duplicated", duplicated/left, allFaults.Duplicate)
	wantShare(t, "reordered", reordered/left, allFaults.Reorder)
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// wantShare allows five standard deviations.
func wantShare(t *testing.T, what string, got, percent float64) {
	t.Helper()
	want := percent / 100
	if slack := 5 * math.Sqrt(want*(1-want)/framesOfATest); math.Abs(got-want) > slack {
		t.Errorf("%s: %.4f, want %.4f ± %.4f", what, got, want, slack)
	}
}

func TestGoodWireDeliversAtOnceInOrder(t *testing.T) {
	way := NewWay(Faults{}, 0)
	for i := range 100 {
		way.Take([]byte{byte(i)}, time.Second)
	}
	out := drain(way, time.Second)
	for i, d := range out {
		if d.frame[0] != byte(i) {
			t.Fatalf("frame %d comes at place %d", d.frame[0], i)
		}
	}
	if len(out) != 100 {
		t.Errorf("%d frames of 100", len(out))
	}
}

func TestDelayAndJitterKeepTheirBoundsAndTheOrder(t *testing.T) {
	faults := Faults{Delay: 10 * time.Millisecond, Jitter: 4 * time.Millisecond}
	way, began := NewWay(faults, 0), map[byte]time.Duration{}
	shortest, longest, before := time.Hour, time.Duration(0), time.Duration(0)
	for i := range 200 { // far enough apart for jitter alone to decide
		now := time.Duration(i) * 10 * time.Millisecond
		began[byte(i)] = now
		way.Take([]byte{byte(i)}, now)
	}
	for i, d := range drain(way, time.Hour) {
		if d.frame[0] != byte(i) || d.due < before {
			t.Fatalf("frame %d comes at place %d", d.frame[0], i)
		}
		took := d.due - began[byte(i)]
		shortest, longest, before = min(shortest, took), max(longest, took), d.due
	}
	if shortest < 6*time.Millisecond || shortest > 7*time.Millisecond || longest > 14*time.Millisecond || longest < 13*time.Millisecond {
		t.Errorf("delays of %s to %s, want nearly 6 to 14 ms", shortest, longest)
	}
}

func TestJitterOfABurstDoesNotReorder(t *testing.T) {
	way := NewWay(Faults{Delay: time.Millisecond, Jitter: time.Millisecond}, 0)
	for i := range 250 {
		way.Take([]byte{byte(i)}, time.Duration(i)*time.Microsecond)
	}
	for i, d := range drain(way, time.Hour) {
		if d.frame[0] != byte(i) {
			t.Fatalf("frame %d comes at place %d", d.frame[0], i)
		}
	}
}

func TestHeldFramesAreOvertakenAndHoldNobodyUp(t *testing.T) {
	way := NewWay(Faults{Reorder: 10, Seed: 3}, 0)
	held := map[byte]bool{}
	for i := range 200 {
		held[byte(i)] = way.Take([]byte{byte(i)}, 0).Reordered
	}
	for _, d := range drain(way, time.Hour) {
		switch late := d.due; {
		case held[d.frame[0]] && (late < heldFrom || late > heldTo):
			t.Errorf("frame %d is held back by %s", d.frame[0], late)
		case !held[d.frame[0]] && late != 0:
			t.Errorf("frame %d waits for %s behind those held back", d.frame[0], late)
		}
	}
}

func TestCopyFollowsItsOriginal(t *testing.T) {
	way := NewWay(Faults{Duplicate: 100}, 0)
	way.Take([]byte{1}, 0)
	way.Take([]byte{2}, 0)
	var got []string
	for _, d := range drain(way, 0) {
		got = append(got, fmt.Sprintf("%d %t", d.frame[0], d.copied))
	}
	if want := []string{"1 false", "1 true", "2 false", "2 true"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFramesBeyondTheLimitAreOverload(t *testing.T) {
	way := NewWay(Faults{Delay: time.Second}, 0)
	for i := range framesLimit + 10 {
		if got, want := way.Take(nil, 0).Overload, int(one(i >= framesLimit)); got != want {
			t.Fatalf("frame %d: %d found no room, want %d", i, got, want)
		}
	}
	if left := len(drain(way, time.Second)); left != framesLimit {
		t.Errorf("%d frames delivered, want %d", left, framesLimit)
	}
}

func TestFaultsThatCannotBeAreRefused(t *testing.T) {
	for _, faults := range []Faults{
		{Loss: -1}, {Loss: 100.1}, {Duplicate: 101}, {Reorder: math.NaN()},
		{Delay: -1}, {Delay: time.Minute}, {Jitter: -1}, {Jitter: time.Minute},
	} {
		if faults.Check() == nil {
			t.Errorf("%+v is taken", faults)
		}
	}
	if err := allFaults.Check(); err != nil {
		t.Error(err)
	}
}
