// Package guest tests what the running kernel cannot show: VLAN devices, VRFs
// and bonds, and other kernels. Its tests run inside a virtual machine, which
// make test-kernels boots.
package guest

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// program is the smartcookie executable of the guest.
const program = "/bin/smartcookie"

// patience is for an emulated processor, on which the verifier takes seconds.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv("SMARTCOOKIE_GUEST") == "" {
		fmt.Println("these tests have a machine of their own: make test-kernels")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// newLab makes a lab that is closed with the test.
func newLab(t *testing.T, topology lab.Topology) *lab.Lab {
	t.Helper()
	l, err := lab.New(lab.Options{Topology: topology, Resolve: true, Executable: program, ReadyWithin: patience})
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

// defend protects the lab's server until the test ends.
func defend(t *testing.T, l *lab.Lab, name string) *lab.Guard {
	t.Helper()
	began := time.Now()
	guard, err := l.Defend(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("defence %s is up after %s", name, time.Since(began).Round(10*time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			printLogs(t, guard)
		}
		if err := guard.Stop(); err != nil {
			t.Error(err)
		}
	})
	return guard
}

func printLogs(t *testing.T, guard *lab.Guard) {
	for _, name := range []string{"edge", "server", "host"} {
		if p := guard.Process(name); p != nil {
			t.Logf("%s: %s", name, bytes.TrimSpace(p.Log()))
		}
	}
}

// counts are verdicts by name.
type counts map[string]uint64

// countsOf reads the verdicts of both halves.
func countsOf(t *testing.T, guard *lab.Guard) (edge, server counts) {
	t.Helper()
	edge, err := guard.EdgeVerdicts()
	if err != nil {
		t.Fatal(err)
	}
	if server, err = guard.ServerVerdicts(); err != nil {
		t.Fatal(err)
	}
	return edge, server
}
