package cli

import (
	"slices"
	"time"

	"github.com/spf13/cobra"

	"smartcookie/internal/host"
	"smartcookie/internal/policy"
)

// The bounds of what may be said of floods.
const (
	floodSYNsMost                   = 100_000_000
	windowLeast, windowMost         = 10 * time.Millisecond, time.Minute
	calmMost                        = 24 * time.Hour
	defaultFloodSYNs                = 1000
	defaultWindow, defaultFloodCalm = 250 * time.Millisecond, 30 * time.Second
)

// kernelFlags are those of `host --cookies kernel`.
type kernelFlags struct {
	cookies string
	flood   host.Flood
}

func (k *kernelFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&k.cookies, "cookies", "own", "`whose` cookies: own, kernel")
	f.IntVar(&k.flood.SYNs, "flood-syns", defaultFloodSYNs, "with --cookies kernel: so many SYNs a `second` to a port are a flood; 0: --mode always")
	f.DurationVar(&k.flood.Window, "flood-within", defaultWindow, "with --cookies kernel: `time` in which SYNs are counted (T1)")
	f.DurationVar(&k.flood.Calm, "calm", defaultFloodCalm, "with --cookies kernel: `time` after which a flood counts as over (T2)")
}

// apply checks the flags and writes what they say into the configuration.
func (k *kernelFlags) apply(cmd *cobra.Command, c *host.Config) error {
	if !slices.Contains([]string{"own", "kernel"}, k.cookies) {
		return usageErrorf("--cookies: %q is none of own, kernel", k.cookies)
	}
	if k.cookies == "own" {
		for _, name := range []string{"flood-syns", "flood-within", "calm"} {
			if cmd.Flags().Changed(name) {
				return usageErrorf("--%s: only with --cookies kernel", name)
			}
		}
		return nil
	}
	if cmd.Flags().Changed("setup") {
		return usageErrorf("--setup: with --cookies kernel the kernel makes connections by itself")
	}
	if n := portCount(c.Ports); n > policy.MaxServices {
		return usageErrorf("--ports: %d ports, at most %d with --cookies kernel", n, policy.MaxServices)
	}
	if cmd.Flags().Changed("detect") {
		return usageErrorf("--detect: with --cookies kernel give --flood-syns, --flood-within, --calm")
	}
	c.KernelCookies, c.Flood = true, k.flood
	if !cmd.Flags().Changed("mode") {
		c.Mode = policy.Adaptive
	}
	if k.flood.SYNs == 0 && c.Mode == policy.Adaptive {
		c.Mode = policy.Always
	}
	return k.check()
}

func (k *kernelFlags) check() error {
	if k.flood.SYNs < 0 || k.flood.SYNs > floodSYNsMost {
		return usageErrorf("--flood-syns: %d is not between 0 and %d", k.flood.SYNs, floodSYNsMost)
	}
	if k.flood.Window < windowLeast || k.flood.Window > windowMost {
		return usageErrorf("--flood-within: %s is not between %s and %s", k.flood.Window, windowLeast, windowMost)
	}
	if k.flood.Calm < k.flood.Window || k.flood.Calm > calmMost {
		return usageErrorf("--calm: %s is not between --flood-within (%s) and %s", k.flood.Calm, k.flood.Window, calmMost)
	}
	return nil
}

func portCount(ports []policy.PortRange) (n int) {
	for _, r := range ports {
		n += int(r.High) - int(r.Low) + 1
	}
	return n
}
