package lab

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestPortReceivesInAThreadOnTheCPUAskedFor(t *testing.T) {
	needRoot(t)
	all, err := splitCPUs()
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNamespace("smartcookie-receive-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.remove(); err != nil {
			t.Error(err)
		}
	})
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "rx0"}, PeerName: "tx0"}
	if err := n.link.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rx0", "tx0"} {
		port, err := n.link.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.link.LinkSetUp(port); err != nil {
			t.Fatal(err)
		}
		if err := n.prepare(name); err != nil {
			t.Fatal(err)
		}
	}
	r, err := n.receiveOn("rx0", all.generator)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range r.threads {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(id, &set); err != nil || set.Count() != 1 || !set.IsSet(all.generator) {
			t.Errorf("thread %d may run on %v: %v", id, set, err)
		}
	}
	if _, err := r.Busy(); err != nil {
		t.Error(err)
	}
}
