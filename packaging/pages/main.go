// Pages writes the manual pages and the shell completions of smartcookie into a
// directory, from the declarations that its --help shows.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"smartcookie/internal/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pages DIRECTORY")
		os.Exit(2)
	}
	if err := write(cli.Root(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
		os.Exit(1)
	}
}

// write makes man/ and completions/ below the directory. The pages' date is
// SOURCE_DATE_EPOCH, which the generator reads by itself.
func write(root *cobra.Command, dir string) error {
	man, completions := filepath.Join(dir, "man"), filepath.Join(dir, "completions")
	if err := errors.Join(os.MkdirAll(man, 0o755), os.MkdirAll(completions, 0o755)); err != nil {
		return err
	}
	root.DisableAutoGenTag = true // it names the day of the build
	header := &doc.GenManHeader{Section: "1", Source: "smartcookie", Manual: "smartcookie"}
	return errors.Join(
		doc.GenManTree(root, header, man),
		root.GenBashCompletionFileV2(filepath.Join(completions, "smartcookie.bash"), true),
		root.GenZshCompletionFile(filepath.Join(completions, "smartcookie.zsh")),
		root.GenFishCompletionFile(filepath.Join(completions, "smartcookie.fish"), true),
	)
}
