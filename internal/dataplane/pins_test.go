package dataplane

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
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

func TestPinsOfAnotherVersionAreLeftAlone(t *testing.T) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, c := range []struct {
		agent string
		maps  []string
		open  func(root string) error
	}{
		{EdgeAgent, []string{"deny4", "deny6", "allow4", "allow6", marksPin, statePin}, func(root string) error {
			l, err := OpenLists(root)
			if err == nil {
				l.Close()
			}
			return err
		}},
		{HostAgent, []string{"port_modes"}, func(root string) error { _, err := PortModes(root); return err }},
		{ServerAgent, []string{"labels"}, func(root string) error { _, err := ReadStates(root); return err }},
	} {
		root, pins := ownPins(t, c.agent)
		for _, name := range c.maps {
			if err := pins.pinMap(name, m); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.open(root); !errors.Is(err, ErrOtherVersion) {
			t.Errorf("%s, before there were versions: %v", c.agent, err)
		}
		if err := pins.pinContract(); err != nil {
			t.Fatal(err)
		}
		if err := c.open(root); errors.Is(err, ErrOtherVersion) {
			t.Errorf("%s, of this version: %v", c.agent, err)
		}
		version, err := ebpf.LoadPinnedMap(pins.mapPath(contractPin), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := version.Put(uint32(0), uint32(edgeContractVersionCONTRACT_VERSION)+1); err != nil {
			t.Fatal(err)
		}
		version.Close()
		if err := c.open(root); !errors.Is(err, ErrOtherVersion) {
			t.Errorf("%s, of the next version: %v", c.agent, err)
		}
	}
}
