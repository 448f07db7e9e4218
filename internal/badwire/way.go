package badwire

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// framesLimit bounds what a direction holds: more is overload.
const framesLimit = 32 << 10

// Way is one direction of a wire. Times are of any one clock.
type Way struct {
	faults  Faults
	random  *rand.Rand
	waiting deliveries
	number  uint64        // of deliveries, to keep those due at once in order
	last    time.Duration // when the frame before is due, unless held back
}

// Fate is what a wire does with a frame.
type Fate struct {
	Lost       bool
	Duplicated bool
	Reordered  bool
	Overload   int // frames that found no room
}

// NewWay makes the direction of a number, 0 or 1: each has randomness of its
// own, from the same seed.
func NewWay(faults Faults, direction uint64) *Way {
	return &Way{faults: faults, random: rand.New(rand.NewPCG(faults.Seed, direction))}
}

// delivery is a frame on its way.
type delivery struct {
	due    time.Duration
	number uint64
	frame  []byte
	copied bool
}

// Take decides what becomes of a frame that has come now. The frame belongs to
// the way until Next returns it, unless it is lost.
func (w *Way) Take(frame []byte, now time.Duration) Fate {
	fate, due := w.decide(now)
	if fate.Lost {
		return fate
	}
	copies := 1
	if fate.Duplicated {
		copies = 2
	}
	for i := range copies {
		if len(w.waiting) >= framesLimit {
			fate.Overload++
			continue
		}
		heap.Push(&w.waiting, delivery{due, w.number, frame, i > 0})
		w.number++
	}
	return fate
}

// decide draws the same amount of randomness for every frame, so that the n-th
// has the same fate whatever became of those before.
func (w *Way) decide(now time.Duration) (Fate, time.Duration) {
	fate := Fate{Lost: w.strikes(w.faults.Loss), Duplicated: w.strikes(w.faults.Duplicate), Reordered: w.strikes(w.faults.Reorder)}
	jitter := time.Duration((2*w.random.Float64() - 1) * float64(w.faults.Jitter))
	held := heldFrom + time.Duration(w.random.Float64()*float64(heldTo-heldFrom))
	if fate.Lost {
		return Fate{Lost: true}, 0
	}
	due := max(now+max(w.faults.Delay+jitter, 0), w.last)
	if fate.Reordered {
		return fate, due + held
	}
	w.last = due
	return fate, due
}

func (w *Way) strikes(percent float64) bool { return w.random.Float64()*100 < percent }

// Due tells when the next delivery is due, if there is one.
func (w *Way) Due() (time.Duration, bool) {
	if len(w.waiting) == 0 {
		return 0, false
	}
	return w.waiting[0].due, true
}

// Next returns a frame that is due by now, the earliest first.
func (w *Way) Next(now time.Duration) (d delivery, ok bool) {
	if due, any := w.Due(); !any || due > now {
		return delivery{}, false
	}
	return heap.Pop(&w.waiting).(delivery), true
}

// deliveries is a heap by time.
type deliveries []delivery

func (d deliveries) Len() int      { return len(d) }
func (d deliveries) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d deliveries) Less(i, j int) bool {
	if d[i].due != d[j].due {
		return d[i].due < d[j].due
	}
	return d[i].number < d[j].number
}
func (d *deliveries) Push(x any) { *d = append(*d, x.(delivery)) }
func (d *deliveries) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	(*d)[last] = delivery{}
	*d = (*d)[:last]
	return x
}
