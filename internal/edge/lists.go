package edge

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"smartcookie/internal/config"
	"smartcookie/internal/dataplane"
)

// sweepEvery is how often expired prefixes are removed. The programs honour the
// expiry themselves: this is about their memory.
const sweepEvery = 30 * time.Second

// warnOfBypass says loudly what is not protected.
func warnOfBypass(c *config.Edge, log *slog.Logger) {
	for _, b := range c.Floods.Bypass {
		log.Warn("SYNs of these sources reach the servers WITHOUT PROTECTION (bypass_without_protection): whoever spoofs them spends the rate",
			"sources", prefixNames(b.Sources), "interface", b.Interface, "syns_per_second", b.SYNs)
	}
}

func prefixNames(all []netip.Prefix) (text string) {
	const most = 8 // a line shall stay a line
	for i, p := range all {
		if i == most {
			return text + ",…"
		}
		if i > 0 {
			text += ","
		}
		text += p.String()
	}
	return text
}

// Lister is an agent with lists.
type Lister interface {
	SweepLists() (int, error)
}

var _ Lister = (*dataplane.Edge)(nil)

// SweepLists removes what has expired, beside the daemon's other work: a million
// prefixes take some seconds. The channel is closed when it has ended.
func SweepLists(ctx context.Context, log *slog.Logger, agent Lister) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if removed, err := agent.SweepLists(); err != nil {
				log.Warn(err.Error())
			} else if removed > 0 {
				log.Info("expired prefixes removed", "prefixes", removed)
			}
		}
	}()
	return ended
}
