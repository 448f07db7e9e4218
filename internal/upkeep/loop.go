package upkeep

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// Loop does the upkeep once a second, and `also` after it, until ctx ends or
// the agent is gone. SIGUSR1 confirms a step of the clock.
func Loop(ctx context.Context, log *slog.Logger, keeper *Keeper, gone func() bool, also func()) error {
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
		case <-tick.C:
			if gone() {
				log.Info("detached")
				return nil
			}
			if err := keeper.Tick(); err != nil {
				return err
			}
			also()
		}
	}
}
