package keys

import (
	"fmt"
	"time"
)

// Reading is both clocks of a host at one moment, in nanoseconds.
type Reading struct {
	MonotonicNS int64 // CLOCK_MONOTONIC_COARSE, which programs in the kernel read
	RealNS      int64 // CLOCK_REALTIME, since 1970
}

func (r Reading) offset() int64 { return r.RealNS - r.MonotonicNS }

const (
	// slewShare is the bound on how fast the offset follows: 1/2000, the
	// 500 ppm by which the kernel itself corrects its clocks at most. Time
	// daemons that slew move both clocks alike, so the offset changes only by
	// steps (and by a leap second, which is one). Half an epoch is made good
	// in 1000 epochs, and meanwhile lies within every acceptance window; who
	// feeds a host false time in small steps gains less than 2 s an hour.
	slewShare = 2000
	// creditMax bounds the time that one update may make up for, so that a
	// daemon that has slept does not set the clock back at once.
	creditMax = 10 * time.Second
)

// StepError reports that real time has stepped by more than half an epoch. The
// clock goes on as before until the step is confirmed or undone.
type StepError struct {
	By    time.Duration // real time against the clock of the epochs
	Limit time.Duration
}

func (e *StepError) Error() string {
	return fmt.Sprintf("real time has stepped by %v, more than %v: epochs go on without it until it is confirmed or undone", e.By, e.Limit)
}

// Clock keeps the offset from the coarse monotonic clock to real time by which
// epochs are counted. It follows small differences slowly and refuses large
// ones. The zero Clock is of no use.
type Clock struct {
	epoch  time.Duration
	offset int64
	last   Reading
}

// NewClock starts at the real time of a first reading, which is believed.
func NewClock(epoch time.Duration, first Reading) *Clock {
	return ResumeClock(epoch, uint64(first.offset()), first)
}

// ResumeClock goes on with the offset of an earlier clock of the same boot, so
// that a daemon's restart is no way around the refusal of a step.
func ResumeClock(epoch time.Duration, offsetNS uint64, first Reading) *Clock {
	return &Clock{epoch: epoch, offset: int64(offsetNS), last: first}
}

// Update takes a reading. It moves the offset towards real time, or returns a
// *StepError and leaves it alone.
func (c *Clock) Update(r Reading) error {
	elapsed := time.Duration(r.MonotonicNS - c.last.MonotonicNS)
	c.last = r
	behind := time.Duration(r.offset() - c.offset)
	if limit := c.epoch / 2; behind > limit || behind < -limit {
		return &StepError{By: behind, Limit: limit}
	}
	most := min(max(elapsed, 0), creditMax) / slewShare
	c.offset += int64(min(max(behind, -most), most))
	return nil
}

// Confirm believes the real time of the last reading: the clock steps to it.
// A peer or an operator has to say so.
func (c *Clock) Confirm() { c.offset = c.last.offset() }

// OffsetNS is what to add to the coarse monotonic clock, modulo 2^64
// (offset_ns of struct agent_clock).
func (c *Clock) OffsetNS() uint64 { return uint64(c.offset) }

// Epoch returns the epoch at a time of the coarse monotonic clock.
func (c *Clock) Epoch(monotonicNS int64) uint64 {
	return uint64(max(monotonicNS+c.offset, 0)) / uint64(c.epoch)
}
