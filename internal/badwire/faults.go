package badwire

import (
	"fmt"
	"time"
)

// Faults say how bad a wire is, the same in both directions. The zero value is
// a good wire. Shares are in percent.
type Faults struct {
	Loss      float64
	Duplicate float64
	// Reorder is the share of frames held back by heldFrom to heldTo, while
	// those behind pass.
	Reorder float64
	Delay   time.Duration
	// Jitter lengthens or shortens each delay by up to so much. It reorders
	// nothing: a frame never overtakes the one before it.
	Jitter time.Duration
	// Seed decides the fates; 0 is a seed like any other.
	Seed uint64
}

// How long a frame is held back, evenly spread: longer than a burst takes to
// pass, shorter than a retransmission timeout.
const (
	heldFrom = time.Millisecond
	heldTo   = 5 * time.Millisecond
)

// delayLimit bounds how long a frame can be under way.
const delayLimit = 10 * time.Second

// Check tells what cannot be.
func (f Faults) Check() error {
	for _, share := range []struct {
		name    string
		percent float64
	}{{"loss", f.Loss}, {"duplicate", f.Duplicate}, {"reorder", f.Reorder}} {
		// Not a number is in no range.
		if !(share.percent >= 0 && share.percent <= 100) {
			return fmt.Errorf("%s: want 0 to 100 percent, not %v", share.name, share.percent)
		}
	}
	if f.Delay < 0 || f.Delay > delayLimit {
		return fmt.Errorf("delay: want 0 to %s, not %s", delayLimit, f.Delay)
	}
	if f.Jitter < 0 || f.Jitter > delayLimit {
		return fmt.Errorf("jitter: want 0 to %s, not %s", delayLimit, f.Jitter)
	}
	return nil
}

// Bad tells whether there is any fault.
func (f Faults) Bad() bool {
	f.Seed = 0
	return f != Faults{}
}

// Counts is what has become of frames.
type Counts struct {
	Passed     uint64 `json:"passed"`     // delivered, copies not counted
	Lost       uint64 `json:"lost"`       // by the share that is lost
	Duplicated uint64 `json:"duplicated"` // copies delivered
	Reordered  uint64 `json:"reordered"`  // held back
	Outage     uint64 `json:"outage"`     // lost in an outage
	Late       uint64 `json:"late"`       // delivered more than lateAfter behind time
	// Overload is what was lost because the wire itself could not keep up:
	// no figure of the fault shares holds if it is not 0.
	Overload uint64 `json:"overload"`
}

// Plus adds counts up.
func (c Counts) Plus(other Counts) Counts {
	return Counts{
		Passed:     c.Passed + other.Passed,
		Lost:       c.Lost + other.Lost,
		Duplicated: c.Duplicated + other.Duplicated,
		Reordered:  c.Reordered + other.Reordered,
		Outage:     c.Outage + other.Outage,
		Late:       c.Late + other.Late,
		Overload:   c.Overload + other.Overload,
	}
}
