package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

func TestTwoLabsServeBesideEachOther(t *testing.T) {
	reports := make(chan map[string]any, 2)
	t.Run("pair", func(t *testing.T) {
		for _, defence := range []string{"split", "host"} {
			t.Run(defence, func(t *testing.T) {
				t.Parallel()
				reports <- labJSON(t, "--defence", defence, "--flood", "20k", "--duration", "3s")
			})
		}
	})
	close(reports)
	for report := range reports {
		requests, ok := field[float64](t, report, "benign.requests"), field[float64](t, report, "benign.ok")
		if requests == 0 || ok != requests {
			t.Errorf("%s: %.0f of %.0f requests served", report["defence"], ok, requests)
		}
	}
}

func TestNextLabRemovesWhatACrashedOneLeft(t *testing.T) {
	crashed := exec.CommandContext(t.Context(), program, "lab", "--json", "--defence", "split", "--flood", "1k", "--duration", "1m")
	var progress bytes.Buffer
	crashed.Stderr = &progress
	if err := crashed.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = crashed.Process.Kill() })
	pid := crashed.Process.Pid
	eventually(t, 20*time.Second, "the lab's load runs", func() bool { return len(childrenOf(t, pid)) >= 4 })
	children := childrenOf(t, pid)
	if err := crashed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = crashed.Wait() // killed: that is an error
	if left := leftOf(t, pid); len(left) == 0 {
		t.Fatal("the crashed lab left nothing to remove")
	}
	labJSON(t, "--defence", "kernel", "--flood", "0", "--duration", "100ms")
	if left := leftOf(t, pid); len(left) > 0 {
		t.Errorf("left by the crashed lab: %q", left)
	}
	for _, child := range children {
		eventually(t, 5*time.Second, fmt.Sprintf("process %d of the crashed lab ends", child), func() bool {
			return errors.Is(unix.Kill(child, 0), unix.ESRCH)
		})
	}
	if err := lab.Sweep(); err != nil {
		t.Error(err)
	}
}

// leftOf lists namespaces and state of the labs that a process made.
func leftOf(t *testing.T, pid int) (found []string) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/sclab-%d-*", "/run/smartcookie-lab/%d-*"} {
		names, err := filepath.Glob(fmt.Sprintf(pattern, pid))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, names...)
	}
	return found
}

// childrenOf lists the processes that a process has started.
func childrenOf(t *testing.T, pid int) (children []int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "--ppid", strconv.Itoa(pid), "-o", "pid=").Output()
	if err != nil && len(out) > 0 {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		child, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		children = append(children, child)
	}
	return children
}
