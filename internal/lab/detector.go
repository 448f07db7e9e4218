package lab

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

// labCalm is T2 of the lab's detector: nobody waits half a minute for it.
const labCalm = time.Second

// returnLimit is how long the lab waits for a service to become passive again.
const returnLimit = 40 * time.Second

// DetectorReport is what the detector made of the flood (mode auto).
type DetectorReport struct {
	Found      bool    `json:"found"`
	FoundMS    float64 `json:"found_ms"` // after the flood's first packet
	Cause      string  `json:"cause"`
	Returned   bool    `json:"returned"`
	ReturnedMS float64 `json:"returned_ms"` // after its last one
}

// mode is the one of the lab's service.
func (l *Lab) mode() string {
	if l.options.Mode == "" {
		return policy.Always.String()
	}
	return l.options.Mode
}

// detect are the lines of the edges' configuration about it.
func (l *Lab) detect() string {
	return fmt.Sprintf("    mode: \"%s\"\n    detect: {calm: %s}\n", l.mode(), labCalm)
}

// detects says whether a defence's edges have a detector.
func (d *defence) detects() bool {
	for _, a := range d.agents {
		if a.is(edgeAgent) && a.name != kernelAgent {
			return true
		}
	}
	return false
}

// state is what the first edge's detector says.
func (g *Guard) state() (dataplane.ServiceState, error) {
	for _, a := range g.agents() {
		if !a.is(edgeAgent) {
			continue
		}
		states, err := dataplane.ReadStates(g.lab.PinDir(a.name))
		if err != nil {
			return dataplane.ServiceState{}, err
		}
		for _, s := range states {
			if s.Agent == dataplane.EdgeAgent {
				return s, nil
			}
		}
	}
	return dataplane.ServiceState{}, errors.New("no edge has a detector")
}

// monotonic is the detector's clock.
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // exists on every Linux
	return time.Duration(now.Nano())
}

// detector ends the flood, waits until the service is passive again and says how
// fast that was; nil where nothing is detected.
func (r *run) detector(ctx context.Context) (*DetectorReport, error) {
	if r.lab.mode() != policy.Adaptive.String() || !r.guard.defence.detects() || r.flood == nil {
		return nil, nil
	}
	err := r.stopFlood()
	ended := monotonic()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, returnLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		s, err := r.guard.state()
		if err != nil {
			return nil, err
		}
		report := &DetectorReport{
			Found: s.TimesOn > 0, Returned: s.TimesOff > 0 && s.Phase == dataplane.Passive, Cause: s.On.Cause,
		}
		if report.Found {
			report.FoundMS = float64(max(s.OnAt-r.begun, 0)) / float64(time.Millisecond)
		}
		if report.Returned {
			report.ReturnedMS = float64(s.OffAt-ended) / float64(time.Millisecond)
		}
		if report.Returned || !report.Found {
			return report, nil
		}
		select {
		case <-ctx.Done():
			return report, nil // the report says that it did not return
		case <-tick.C:
		}
	}
}

// line says it in the table's words.
func (d *DetectorReport) line() string {
	switch {
	case d == nil:
		return ""
	case !d.Found:
		return "detector: no flood found\n"
	case !d.Returned:
		return fmt.Sprintf("detector: found after %.0f ms (%s), not passive again\n", d.FoundMS, d.Cause)
	}
	return fmt.Sprintf("detector: found after %.0f ms (%s), passive again %.1f s after the flood\n", d.FoundMS, d.Cause, d.ReturnedMS/1000)
}
