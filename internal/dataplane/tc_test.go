package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// withoutTCX lets the kernel look like one before 6.6.
func withoutTCX(t *testing.T) {
	t.Helper()
	attach := attachTCXLink
	attachTCXLink = func(link.TCXOptions) (link.Link, error) { return nil, ebpf.ErrNotSupported }
	t.Cleanup(func() { attachTCXLink = attach })
}

func newPins(t *testing.T, root string) *Pins {
	t.Helper()
	pins, err := OpenPins(root, ServerAgent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pins.Close() })
	return pins
}

// filtersOf lists the programs at a device's clsact ingress.
func filtersOf(t *testing.T, device netlink.Link) (ids []int) {
	t.Helper()
	filters, err := netlink.FilterList(device, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Name == clsactFilter {
			ids = append(ids, b.Id)
		}
	}
	return ids
}

func TestProgramIsAFilterOfClsactWhereThereIsNoTCX(t *testing.T) {
	withoutTCX(t)
	s := newServer(t)
	device, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join("/sys/fs/bpf", fmt.Sprintf("smartcookie-test-%d", os.Getpid()))
	i := Interface{Name: "lo", Index: device.Attrs().Index}
	for range 2 { // the second daemon replaces what the first one left
		pins := newPins(t, root)
		if err := attachTC(pins, map[string]link.Link{}, i, s.ServerIngress, ebpf.AttachTCXIngress); err != nil {
			t.Fatal(err)
		}
		if ids := filtersOf(t, device); len(ids) != 1 {
			t.Errorf("%d filters, want one", len(ids))
		}
		pins.Close()
	}
	detached, err := Detach(root)
	if err != nil || len(detached) != 1 || detached[0] != "server/clsact_ingress_lo" {
		t.Errorf("detached %v, %v", detached, err)
	}
	if ids := filtersOf(t, device); len(ids) != 0 {
		t.Errorf("%d filters are left", len(ids))
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("pins are left: %v", err)
	}
}

func TestInterfaceHasOneAgent(t *testing.T) {
	s := newServer(t)
	root := filepath.Join("/sys/fs/bpf", fmt.Sprintf("smartcookie-test-%d", os.Getpid()))
	attach := func(pins *Pins) error {
		return attachTC(pins, map[string]link.Link{}, Interface{Name: "lo", Index: 1}, s.ServerIngress, ebpf.AttachTCXIngress)
	}
	for _, agent := range []string{"one", "another"} {
		t.Cleanup(func() {
			if _, err := Detach(filepath.Join(root, agent)); err != nil {
				t.Error(err)
			}
			if err := os.RemoveAll(root); err != nil {
				t.Error(err)
			}
		})
	}
	pins := newPins(t, filepath.Join(root, "one"))
	if err := attach(pins); err != nil {
		t.Fatal(err)
	}
	if err := attach(newPins(t, filepath.Join(root, "another"))); !errors.Is(err, ErrBusy) {
		t.Errorf("a second agent at the interface: %v", err)
	}
	if err := attach(pins); err != nil {
		t.Errorf("the same agent again: %v", err)
	}
}
