package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"smartcookie/internal/policy"
)

// Bounds of what a detector can be told.
const (
	maxDetectSYNs     = 100_000_000
	maxDetectHalfOpen = 500_000
	minCalm, maxCalm  = time.Second, time.Hour
)

// detectFile has the limits at which a service whose mode is auto is defended.
type detectFile struct {
	SYNs       *int   `yaml:"syns"`
	Unfinished *int   `yaml:"unfinished"`
	HalfOpen   *int   `yaml:"half_open"`
	Calm       string `yaml:"calm"`
}

// ParseDetect reads limits as the command line has them: "syns=500,calm=10s". What
// is not said is as by default.
func ParseDetect(text string) (policy.Detect, error) {
	d := policy.DefaultDetect
	for _, part := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if name == "" && value == "" {
			continue
		}
		if name == "calm" {
			calm, err := time.ParseDuration(value)
			if err != nil || calm < minCalm || calm > maxCalm {
				return d, fmt.Errorf("calm: %q is no duration between %s and %s", value, minCalm, maxCalm)
			}
			d.Calm = calm
			continue
		}
		i := slices.IndexFunc(detectLimits(&d), func(l detectLimit) bool { return l.name == name })
		if i < 0 {
			return d, fmt.Errorf("%q is none of syns, unfinished, half_open, calm", name)
		}
		limit := detectLimits(&d)[i]
		number, err := strconv.Atoi(value)
		if err != nil || number < limit.low || number > limit.high {
			return d, fmt.Errorf("%s: %q is no number between %d and %d", name, value, limit.low, limit.high)
		}
		*limit.to = number
	}
	return d, nil
}

type detectLimit struct {
	name      string
	to        *int
	low, high int
}

func detectLimits(d *policy.Detect) []detectLimit {
	return []detectLimit{
		{"syns", &d.SYNs, 1, maxDetectSYNs},
		{"unfinished", &d.Unfinished, 0, 100},
		{"half_open", &d.HalfOpen, 0, maxDetectHalfOpen},
	}
}

func (s *source) serviceMode(path string, f *serviceFile, out *policy.Service) error {
	out.Mode, out.Detect = policy.Always, policy.DefaultDetect
	if f.Mode != "" {
		mode, ok := policy.ParseMode(f.Mode)
		if !ok {
			return s.fail(path+".mode", "unknown mode %q: off, monitor, auto or always", f.Mode)
		}
		out.Mode = mode
	}
	if f.Detect == nil {
		return nil
	}
	d, at := &out.Detect, path+".detect"
	given := []*int{f.Detect.SYNs, f.Detect.Unfinished, f.Detect.HalfOpen}
	for i, limit := range detectLimits(d) {
		value, err := s.bounded(at+"."+limit.name, given[i], *limit.to, limit.low, limit.high)
		if err != nil {
			return err
		}
		*limit.to = value
	}
	calm, err := s.duration(at+".calm", f.Detect.Calm, d.Calm, minCalm, maxCalm)
	d.Calm = calm
	return err
}

// checkDetect refuses limits that need what does not pass this edge: only the
// servers' packets show that a handshake was finished.
func (c *Edge) checkDetect(src *source, files []serviceFile) error {
	if c.ReturnTraffic {
		return nil
	}
	for i := range c.Services {
		d := &c.Services[i].Detect
		given := files[i].Detect
		if given == nil {
			given = &detectFile{}
		}
		for _, limit := range []struct {
			name  string
			given bool
		}{
			{"unfinished", given.Unfinished != nil && d.Unfinished > 0},
			{"half_open", given.HalfOpen != nil && d.HalfOpen > 0},
		} {
			if limit.given {
				return src.fail(fmt.Sprintf("$.services[%d].detect.%s", i, limit.name),
					"service %q: %s needs return traffic through this edge; syns does not", c.Services[i].Name, limit.name)
			}
		}
		d.Unfinished, d.HalfOpen = 0, 0
	}
	return nil
}
