package upkeep

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"smartcookie/internal/config"
)

// AtDomain places the error of a missing key domain at its line of a
// configuration; others it leaves.
func AtDomain(c interface{ AtDomain(string, error) error }, err error) error {
	var missing *DomainError
	if errors.As(err, &missing) {
		return c.AtDomain(missing.Domain, err)
	}
	return err
}

// Reload is how a daemon goes on by its file as it is now.
type Reload[C any] struct {
	Read   func() (C, error)
	Since  func(next C) config.Changes
	Admit  func(next C) error                // what is wrong with it, before anything is done
	Change func(next C) (refused, err error) // err: the daemon cannot go on
}

// Do reads the file. One that is wrong, or asks for what only a start can do,
// changes nothing. The error is of a daemon that cannot go on.
func (r Reload[C]) Do(log *slog.Logger) error {
	next, err := r.Read()
	if err != nil {
		refuse(log, err)
		return nil
	}
	changes := r.Since(next)
	refused := changes.Refusal()
	if refused == nil {
		refused = r.Admit(next)
	}
	if refused == nil && !changes.None() {
		if refused, err = r.Change(next); err != nil {
			return err
		}
	}
	if refused != nil {
		refuse(log, refused)
		return nil
	}
	tell(log, &changes)
	return nil
}

// refuse tells why a reload has changed nothing.
func refuse(log *slog.Logger, err error) {
	log.Error("reload refused, nothing is changed", "because", err.Error())
}

// tell says what a reload has changed.
func tell(log *slog.Logger, c *config.Changes) {
	if c.None() {
		log.Info("reloaded: the file says nothing new")
		return
	}
	log.Info("reloaded", "added", names(c.Added), "removed", names(c.Removed), "changed", names(c.Changed),
		"settings", names(c.Settings))
}

// names lists so many that a line stays a line.
func names(all []string) string {
	const most = 16
	if len(all) <= most {
		return strings.Join(all, ",")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ","), len(all)-most)
}
