package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

var testNow = time.Date(2026, 3, 1, 12, 0, 3, 0, time.UTC)

// console runs command lines and holds what the last one printed.
type console struct {
	env            *environment
	stdout, stderr bytes.Buffer
}

func newConsole() *console {
	c := &console{}
	c.env = &environment{
		stdin:  strings.NewReader(""),
		stdout: &c.stdout,
		stderr: &c.stderr,
		now:    func() time.Time { return testNow },
		random: rand.NewChaCha8([32]byte{1}),
	}
	return c
}

func (c *console) run(args ...string) int {
	c.stdout.Reset()
	c.stderr.Reset()
	return run(context.Background(), args, c.env)
}

// mustRun runs a command line that has to succeed in silence on stderr.
func (c *console) mustRun(t *testing.T, args ...string) {
	t.Helper()
	if code := c.run(args...); code != exitOK || c.stderr.Len() > 0 {
		t.Fatalf("%v: exit code %d, stderr %q", args, code, c.stderr.String())
	}
}

// wantError runs a command line that has to fail with one line on stderr.
func (c *console) wantError(t *testing.T, code int, part string, args ...string) {
	t.Helper()
	got, message := c.run(args...), c.stderr.String()
	if got != code {
		t.Errorf("%v: exit code %d, want %d", args, got, code)
	}
	if !strings.HasPrefix(message, "smartcookie: ") || strings.Count(message, "\n") != 1 || !strings.Contains(message, part) {
		t.Errorf("%v: stderr %q, want one line with %q", args, message, part)
	}
	if c.stdout.Len() > 0 {
		t.Errorf("%v: stdout %q", args, c.stdout.String())
	}
}

func TestUsageErrorExitsWithTwo(t *testing.T) {
	c := newConsole()
	for _, u := range []struct {
		part string
		args []string
	}{
		{"unknown flag: --foo", []string{"--foo"}},
		{"unknown flag: --foo", []string{"keys", "show", "--foo", "x"}},
		{`unknown command "nothing" for smartcookie: see smartcookie --help`, []string{"nothing"}},
		{`unknown command "sho" for smartcookie keys: did you mean show?`, []string{"keys", "sho"}},
		{"smartcookie: keys show: give FILE", []string{"keys", "show"}},
		{`keys show: unexpected argument "b"`, []string{"keys", "show", "a", "b"}},
		{`version: unexpected argument "x"`, []string{"version", "x"}},
		{`--window-scale`, []string{"keys", "new", "x", "--window-scale", "300"}},
	} {
		c.wantError(t, exitUsage, u.part, u.args...)
	}
}

func TestMissingFlagIsAUsageErrorWhoeverDeclaresIt(t *testing.T) {
	c := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		return errors.New("ran")
	}}
	c.Flags().String("must", "", "")
	if err := c.MarkFlagRequired("must"); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{}, {"--must", "y"}} {
		started := false
		noteStart(c, &started)
		c.SetArgs(args)
		if err := c.Execute(); err == nil || started != (len(args) > 0) {
			t.Errorf("%v: started %v, error %v", args, started, err)
		}
	}
}

type codedError struct{}

func (codedError) Error() string { return "coded" }
func (codedError) ExitCode() int { return 7 }

func TestExitCodeIsThatOfTheError(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{errors.New("plain"), exitError},
		{usageErrorf("usage"), exitUsage},
		{codedError{}, 7},
		{fmt.Errorf("do thing: %w", codedError{}), 7},
		{fmt.Errorf("do thing: %w", usageErrorf("usage")), exitUsage},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}

func TestGroupAlonePrintsItsHelp(t *testing.T) {
	c := newConsole()
	for _, args := range [][]string{{}, {"--help"}, {"keys"}, {"help", "keys"}} {
		c.mustRun(t, args...)
		if !strings.Contains(c.stdout.String(), "Usage:") {
			t.Errorf("%v: stdout %q", args, c.stdout.String())
		}
	}
}

func TestEveryCommandStandsOnceInTheHelp(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range newRootCommand(newConsole().env).Commands() {
		if seen[c.Name()] {
			t.Errorf("%s is there twice", c.Name())
		}
		seen[c.Name()] = true
	}
	for _, name := range []string{"keys", "version"} {
		if !seen[name] {
			t.Errorf("no command %s", name)
		}
	}
}

func TestVersionNamesTheRevision(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v1.2.3"}}
	if got := versionLine(info); got != "smartcookie v1.2.3 go1.26.0" {
		t.Errorf("%q", got)
	}
	info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}
	if got := versionLine(info); got != "smartcookie v1.2.3 revision abc with changes go1.26.0" {
		t.Errorf("%q", got)
	}
	c := newConsole()
	c.mustRun(t, "version")
	if !strings.HasPrefix(c.stdout.String(), "smartcookie ") {
		t.Errorf("%q", c.stdout.String())
	}
	version = "1.2.4"
	defer func() { version = "" }()
	if got := versionLine(info); got != "smartcookie 1.2.4 go1.26.0" {
		t.Errorf("stamped: %q", got)
	}
}
