package upkeep

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// Work is what a daemon does beside the upkeep.
type Work struct {
	Gone   func() bool      // the agent is detached
	Tick   func()           // once a second
	Asked  <-chan os.Signal // for a reload; nil: by nobody
	Reload func() error     // what it returns ends the daemon
}

// Loop does the upkeep once a second, and the work after it, until ctx ends or
// the agent is gone. SIGUSR1 confirms a step of the clock.
func Loop(ctx context.Context, log *slog.Logger, keeper *Keeper, w Work) error {
	confirm := make(chan os.Signal, 1)
	signal.Notify(confirm, unix.SIGUSR1)
	defer signal.Stop(confirm)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			log.Info("the daemon ends, the protection goes on; to end it: smartcookie detach")
			return nil
		case <-confirm:
			if err := keeper.Confirm(); err != nil {
				return err
			}
		case <-w.Asked:
			if w.Gone() {
				continue // the next tick says so
			}
			if err := w.Reload(); err != nil {
				return err
			}
		case <-tick.C:
			if w.Gone() {
				log.Info("detached")
				return nil
			}
			if err := keeper.Tick(); err != nil {
				return err
			}
			w.Tick()
		}
	}
}
