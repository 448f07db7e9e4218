// Vectorgen writes cookie.json and challenge.json into the directory that it is given.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"smartcookie/internal/cookie/vector"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vectorgen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("give one directory, not %d arguments", len(args))
	}
	text, err := vector.Generate().Text()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(args[0], "cookie.json"), text, 0o644); err != nil {
		return err
	}
	if text, err = vector.GenerateChallenges().Text(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args[0], "challenge.json"), text, 0o644)
}
