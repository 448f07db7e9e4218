package dataplane

import "testing"

// The BPF file system refuses dots (EPERM).
func TestLinkOfAVLANDeviceHasANameThatCanBePinned(t *testing.T) {
	if got, want := linkName("xdp", "eth0.20.10"), "xdp_eth0:20:10"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
