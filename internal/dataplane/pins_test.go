package dataplane

import (
	"fmt"
	"os"
	"testing"
)

// ownPins makes an agent's directory below a root of the test's own.
func ownPins(t *testing.T, agent string) (root string, pins *Pins) {
	t.Helper()
	needRoot(t)
	root = fmt.Sprintf("/sys/fs/bpf/smartcookie_test_%d_%s", os.Getpid(), agent)
	pins, err := OpenPins(root, agent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pins.Close()
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return root, pins
}

// The BPF file system refuses dots (EPERM).
func TestLinkOfAVLANDeviceHasANameThatCanBePinned(t *testing.T) {
	if got, want := linkName("xdp", "eth0.20.10"), "xdp_eth0:20:10"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
