// Package e2e tests the whole: real agents, real kernels' TCP stacks and real
// programs, each in a network namespace of its own.
package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// program is the smartcookie executable that the tests start.
var program string

func TestMain(m *testing.M) {
	if what := os.Getenv(crowdEnv); what != "" {
		fmt.Fprintln(os.Stderr, runCrowd(what))
		os.Exit(1)
	}
	runChild(os.Args)
	if os.Geteuid() != 0 {
		fmt.Println("end-to-end tests need root: they make network namespaces and load BPF programs")
		if os.Getenv("CI") == "true" {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "smartcookie-e2e-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "smartcookie")
	build := exec.Command("go", "build", "-o", program, "smartcookie/cmd/smartcookie")
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Printf("build: %v\n%s", err, output)
		return 1
	}
	if err := lab.Sweep(); err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}

// long says whether tests run in their long form.
func long() bool { return os.Getenv("SMARTCOOKIE_LONG") == "1" }

// setupOf is how servers make connections in tests that do not care:
// SMARTCOOKIE_SETUP, auto if it is not set.
func setupOf() string { return os.Getenv("SMARTCOOKIE_SETUP") }

// newLab makes a lab that is closed with the test.
func newLab(t *testing.T, options lab.Options) *lab.Lab {
	t.Helper()
	options.Executable = cmp.Or(options.Executable, program)
	if options.Setup == "" {
		options.Setup = setupOf()
	}
	l, err := lab.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// beside lets a test run beside others of its kind, behind all that do not. It is
// for those whose time goes by waiting for daemons, clocks and generations, and
// which neither measure nor fill a CPU.
func beside(t *testing.T) {
	t.Helper()
	t.Parallel()
}

// need skips a test that a missing program makes impossible; where the tests
// must run, that is a failure.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, name := range programs {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is missing", name)
		}
		t.Skipf("%s is missing", name)
	}
}

// eventually polls until a condition holds, for at most this long.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", within, what)
		case <-tick.C:
		}
	}
}
