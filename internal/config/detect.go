package config

import (
	"fmt"
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
	for _, limit := range []struct {
		name      string
		value     *int
		to        *int
		low, high int
	}{
		{"syns", f.Detect.SYNs, &d.SYNs, 1, maxDetectSYNs},
		{"unfinished", f.Detect.Unfinished, &d.Unfinished, 0, 100},
		{"half_open", f.Detect.HalfOpen, &d.HalfOpen, 0, maxDetectHalfOpen},
	} {
		value, err := s.bounded(at+"."+limit.name, limit.value, *limit.to, limit.low, limit.high)
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
		for name, given := range map[string]bool{
			"unfinished": files[i].Detect != nil && files[i].Detect.Unfinished != nil && d.Unfinished > 0,
			"half_open":  files[i].Detect != nil && files[i].Detect.HalfOpen != nil && d.HalfOpen > 0,
		} {
			if given {
				return src.fail(fmt.Sprintf("$.services[%d].detect.%s", i, name),
					"service %q: %s needs return traffic through this edge; syns does not", c.Services[i].Name, name)
			}
		}
		d.Unfinished, d.HalfOpen = 0, 0
	}
	return nil
}
