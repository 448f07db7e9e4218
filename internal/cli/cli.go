// Package cli is the command line of smartcookie: what an operator types, what
// he reads, and the exit codes that his scripts depend on.
package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Exit codes. An error that has another says so by its method ExitCode.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// environment is what a command knows of the world.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	now            func() time.Time
	random         io.Reader
}

// Run carries out a command line without the program's name and returns the
// exit code. An error is one line on stderr.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return run(ctx, args, &environment{stdin, stdout, stderr, time.Now, rand.Reader})
}

// Root is the command line as it is declared, for those who describe it.
func Root() *cobra.Command {
	return newRootCommand(&environment{now: time.Now})
}

func run(ctx context.Context, args []string, env *environment) int {
	root := newRootCommand(env)
	root.SetArgs(args)
	started := false
	noteStart(root, &started)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if !started {
		err = &usageError{err}
	}
	message := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", "; "), "smartcookie ")
	fmt.Fprintf(env.stderr, "smartcookie: %s\n", message)
	return exitCode(err)
}

// noteStart has every command note that it runs. An error before that is one of
// usage: an unknown flag, a missing one, or wrong arguments.
func noteStart(c *cobra.Command, started *bool) {
	if body := c.RunE; body != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			*started = true
			return body(c, args)
		}
	}
	for _, below := range c.Commands() {
		noteStart(below, started)
	}
}

func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return exitError
}

// usageError is a command line that makes no sense.
type usageError struct {
	err error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
func (e *usageError) ExitCode() int { return exitUsage }

func usageErrorf(message string, values ...any) error {
	return &usageError{fmt.Errorf(message, values...)}
}

func newRootCommand(env *environment) *cobra.Command {
	root := newGroupCommand("smartcookie", "Defend TCP services against SYN floods",
		newHostCommand(env),
		newEdgeCommand(env),
		newServerCommand(env),
		newCheckCommand(env),
		newStatusCommand(env),
		newModeCommand(env),
		newDetachCommand(env),
		newDenyCommand(env),
		newAllowCommand(env),
		newBenchCommand(env),
		newKeysCommand(env),
		newLabCommand(env),
		newVersionCommand(env),
	)
	root.SilenceUsage = true
	root.SilenceErrors = true
	root.SetIn(env.stdin)
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	return root
}

// newGroupCommand makes a command that only has others below it. Alone it
// prints its help.
func newGroupCommand(use, short string, commands ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs, // RunE judges them
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		},
	}
	group.AddCommand(commands...)
	return group
}

func unknownCommand(group *cobra.Command, name string) error {
	hint := fmt.Sprintf("see %s --help", group.CommandPath())
	if similar := group.SuggestionsFor(name); len(similar) > 0 {
		hint = fmt.Sprintf("did you mean %s?", strings.Join(similar, " or "))
	}
	return usageErrorf("unknown command %q for %s: %s", name, group.CommandPath(), hint)
}

// exactArgs wants an argument for each of the names, which the usage line has
// too.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return fmt.Errorf("%s: give %s", c.CommandPath(), strings.Join(names[len(args):], " and "))
		}
		if len(args) > len(names) {
			return fmt.Errorf("%s: unexpected argument %q", c.CommandPath(), args[len(names)])
		}
		return nil
	}
}
