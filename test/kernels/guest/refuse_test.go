package guest

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A kernel without bpf_sk_assign_tcp_reqsk (before Linux 6.9), where nothing is
// to be translated.
func TestOldKernelIsRefusedInOneLine(t *testing.T) {
	dir := t.TempDir()
	keys, file := filepath.Join(dir, "keys"), filepath.Join(dir, "server.yaml")
	if out, err := exec.Command(program, "keys", "new", keys).CombinedOutput(); err != nil {
		t.Fatalf("keys new: %v: %s", err, out)
	}
	config := fmt.Sprintf("keys: %s\ninterfaces: [lo]\nservices:\n  - name: web\n    prefixes: [192.0.2.1]\n    ports: [80]\n    setup: native\n", keys)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dress("lo", addressing{addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}, 0); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"server", "-c", file}, {"host", "lo", "--ports", "80", "--setup", "native"}} {
		t.Run(args[0], func(t *testing.T) { mustRefuse(t, args) })
	}
}

func mustRefuse(t *testing.T, args []string) {
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), program, args...)
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	t.Logf("%s", bytes.TrimSpace(stderr.Bytes()))
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("it ended with %v, want exit status 2", err)
	}
	if lines := strings.Count(stderr.String(), "\n"); lines != 1 {
		t.Errorf("it said %d lines, want one", lines)
	}
	for _, word := range []string{"bpf_sk_assign_tcp_reqsk", "Linux 6.9"} {
		if !strings.Contains(stderr.String(), word) {
			t.Errorf("it does not name %s", word)
		}
	}
	if _, err := os.Stat("/sys/fs/bpf/smartcookie"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pins are left: %v", err)
	}
}
