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

// Refuse tells why a reload has changed nothing.
func Refuse(log *slog.Logger, err error) {
	log.Error("reload refused, nothing is changed", "because", err.Error())
}

// Tell says what a reload has changed.
func Tell(log *slog.Logger, c *config.Changes) {
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
