package keys

import (
	"errors"
	"testing"
	"time"
)

const (
	epoch = 8 * time.Second
	start = int64(1_800_000_000_000_000_000) // real time at monotonic 0
)

// host is a host whose clocks a test moves.
type host struct {
	monotonic, real time.Duration // since the start
}

func (h *host) pass(d time.Duration) { h.monotonic += d; h.real += d }

func (h *host) reading() Reading {
	return Reading{MonotonicNS: int64(h.monotonic), RealNS: start + int64(h.real)}
}

// error returns how far real time is ahead of the clock of the epochs.
func (h *host) error(c *Clock) time.Duration {
	return time.Duration(h.reading().offset() - int64(c.OffsetNS()))
}

// run updates the clock each second for a time.
func (h *host) run(t *testing.T, c *Clock, d time.Duration) {
	t.Helper()
	for range d / time.Second {
		h.pass(time.Second)
		if err := c.Update(h.reading()); err != nil {
			t.Fatalf("after %v: %v", h.monotonic, err)
		}
	}
}

func wantStep(t *testing.T, err error, by time.Duration) {
	t.Helper()
	var step *StepError
	if !errors.As(err, &step) {
		t.Fatalf("got %v, want a *StepError", err)
	}
	if step.By != by || step.Limit != epoch/2 {
		t.Errorf("step by %v, limit %v; want %v, %v", step.By, step.Limit, by, epoch/2)
	}
}

func TestFirstReadingIsBelieved(t *testing.T) {
	h := &host{monotonic: time.Hour}
	c := NewClock(epoch, h.reading())
	if h.error(c) != 0 {
		t.Errorf("off by %v", h.error(c))
	}
	if got, want := c.Epoch(int64(h.monotonic)), uint64(start)/uint64(epoch); got != want {
		t.Errorf("epoch %d, want %d", got, want)
	}
}

func TestSmallStepIsSlewedAtTheBoundedRate(t *testing.T) {
	for _, step := range []time.Duration{epoch / 2, time.Second, -time.Second, -epoch / 2} {
		h := &host{}
		c := NewClock(epoch, h.reading())
		h.real += step
		h.run(t, c, 1000*time.Second)
		gained := 500 * time.Millisecond // 1000 s at 500 ppm
		if step < 0 {
			gained = -gained
		}
		if got := h.error(c); got != step-gained {
			t.Errorf("step %v: off by %v after 1000 s, want %v", step, got, step-gained)
		}
		h.run(t, c, 2*time.Hour+14*time.Minute)
		if got := h.error(c); got != 0 {
			t.Errorf("step %v: still off by %v", step, got)
		}
	}
}

func TestStepOfTenSecondsIsRefusedUntilConfirmed(t *testing.T) {
	for _, step := range []time.Duration{10 * time.Second, -10 * time.Second, epoch/2 + 1, -epoch/2 - 1} {
		h := &host{}
		c := NewClock(epoch, h.reading())
		offset := c.OffsetNS()
		h.real += step
		for range 100 {
			h.pass(time.Minute)
			wantStep(t, c.Update(h.reading()), step)
		}
		if c.OffsetNS() != offset {
			t.Errorf("step %v: the offset moved by %d ns", step, c.OffsetNS()-offset)
		}
		c.Confirm()
		if got := h.error(c); got != 0 {
			t.Errorf("step %v: off by %v when confirmed", step, got)
		}
		h.run(t, c, time.Minute)
	}
}

func TestStepThatIsUndoneNeedsNoConfirmation(t *testing.T) {
	h := &host{}
	c := NewClock(epoch, h.reading())
	h.real += time.Hour
	wantStep(t, c.Update(h.reading()), time.Hour)
	h.real -= time.Hour
	h.run(t, c, time.Minute)
	if h.error(c) != 0 {
		t.Errorf("off by %v", h.error(c))
	}
}

func TestManySmallStepsDoNotCarryTheClockAway(t *testing.T) {
	h := &host{}
	c := NewClock(epoch, h.reading())
	first := int64(c.OffsetNS())
	var err error
	for err == nil {
		h.pass(time.Second)
		h.real += 100 * time.Millisecond
		err = c.Update(h.reading())
	}
	if moved := time.Duration(int64(c.OffsetNS()) - first); moved > h.monotonic/2000 {
		t.Errorf("moved by %v within %v", moved, h.monotonic)
	}
}

// A day of smear is 1 s in 86,400 s, 11.6 ppm.
func TestLeapSmearIsFollowedWithoutDelay(t *testing.T) {
	h := &host{}
	c := NewClock(epoch, h.reading())
	for range 86400 {
		h.pass(time.Second)
		h.real -= 11574 * time.Nanosecond
		if err := c.Update(h.reading()); err != nil {
			t.Fatal(err)
		}
		if h.error(c) != 0 {
			t.Fatalf("off by %v after %v", h.error(c), h.monotonic)
		}
	}
}

func TestSlewNeverTurnsTheClockBackNoticeably(t *testing.T) {
	h := &host{}
	c := NewClock(epoch, h.reading())
	h.real -= epoch / 2
	for _, pause := range []time.Duration{time.Second, time.Minute, 24 * time.Hour} {
		before := int64(c.OffsetNS())
		h.pass(pause)
		if err := c.Update(h.reading()); err != nil {
			t.Fatal(err)
		}
		if back := time.Duration(before - int64(c.OffsetNS())); back > 5*time.Millisecond {
			t.Errorf("back by %v after a pause of %v", back, pause)
		}
	}
}

func TestMonotonicReadingThatStandsStillMovesNothing(t *testing.T) {
	h := &host{}
	c := NewClock(epoch, h.reading())
	offset := c.OffsetNS()
	h.real += time.Second
	for range 1000 {
		if err := c.Update(h.reading()); err != nil {
			t.Fatal(err)
		}
	}
	h.monotonic -= time.Second
	if err := c.Update(h.reading()); err != nil {
		t.Fatal(err)
	}
	if c.OffsetNS() != offset {
		t.Errorf("the offset moved by %d ns", c.OffsetNS()-offset)
	}
}

func TestRestartIsNoWayAroundTheRefusal(t *testing.T) {
	h := &host{}
	offset := NewClock(epoch, h.reading()).OffsetNS()
	h.real += 10 * time.Second
	c := ResumeClock(epoch, offset, h.reading())
	wantStep(t, c.Update(h.reading()), 10*time.Second)
	if c.OffsetNS() != offset {
		t.Error("the offset moved")
	}
}

func TestOffsetMayBeNegative(t *testing.T) {
	c := NewClock(epoch, Reading{MonotonicNS: int64(time.Hour), RealNS: int64(time.Minute)})
	if got := c.OffsetNS() + uint64(time.Hour); got != uint64(time.Minute) {
		t.Errorf("the sum modulo 2^64 is %d", got)
	}
	if got := c.Epoch(int64(time.Hour)); got != uint64(time.Minute/epoch) {
		t.Errorf("epoch %d", got)
	}
	if got := c.Epoch(0); got != 0 {
		t.Errorf("before 1970: epoch %d", got)
	}
}
