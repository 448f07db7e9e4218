package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attachTCXLink is replaced by tests: kernels without tcx are hard to come by.
var attachTCXLink = link.AttachTCX

// attachTC puts a program first in the chain at an interface's ingress or
// egress: by a tcx link, or by a filter of the clsact qdisc where the kernel is
// too old for that (before 6.6).
func attachTC(pins *Pins, links map[string]link.Link, i Interface, prog *ebpf.Program, at ebpf.AttachType) error {
	direction := "ingress"
	if at == ebpf.AttachTCXEgress {
		direction = "egress"
	}
	name := linkName("tcx_"+direction, i.Name)
	l, err := pins.attach(name, prog,
		func(info *link.Info) bool {
			return info.TCX() != nil && int(info.TCX().Ifindex) == i.Index
		},
		func() (link.Link, error) {
			if err := refuseTwin(i, prog, at); err != nil {
				return nil, err
			}
			return attachTCXLink(link.TCXOptions{Program: prog, Interface: i.Index, Attach: at, Anchor: link.Head()})
		})
	if errors.Is(err, ebpf.ErrNotSupported) {
		name = linkName(clsactPin+direction, i.Name)
		err = attachClsact(pins, name, i, prog, direction)
	}
	if err != nil {
		return fmt.Errorf("attach to %s: %w", i.Name, err)
	}
	links[name] = l
	return nil
}

// refuseTwin keeps agents with other pins from an interface that has one: both
// would judge each packet. Of XDP the kernel itself takes one program alone.
func refuseTwin(i Interface, prog *ebpf.Program, at ebpf.AttachType) error {
	ours, err := prog.Info()
	if err != nil {
		return fmt.Errorf("describe program: %w", err)
	}
	there, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: at})
	if err != nil {
		return nil // a kernel without tcx: nothing is there
	}
	for _, p := range there.Programs {
		other, err := ebpf.NewProgramFromID(p.ID)
		if err != nil {
			continue // it has just gone
		}
		info, err := other.Info()
		other.Close()
		if err == nil && info.Name == ours.Name {
			return fmt.Errorf("%w with other pins (--pin), or its protection goes on: end that with smartcookie detach", ErrBusy)
		}
	}
	return nil
}

// A filter of clsact has no link. In the place of one its program is pinned,
// by which Detach finds the filter.
const (
	clsactPin    = "clsact_"
	clsactFilter = "smartcookie"
)

var clsactParents = map[string]uint32{
	"ingress": netlink.HANDLE_MIN_INGRESS,
	"egress":  netlink.HANDLE_MIN_EGRESS,
}

// attachClsact adds the filter or replaces an older one in one step.
func attachClsact(pins *Pins, name string, i Interface, prog *ebpf.Program, direction string) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: i.Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add qdisc clsact: %w", err)
	}
	filter := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: i.Index, Parent: clsactParents[direction],
			Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1, // the first in the chain
		},
		Fd: prog.FD(), Name: clsactFilter, DirectAction: true,
	}
	if err := netlink.FilterReplace(filter); err != nil {
		return fmt.Errorf("add filter to clsact: %w", err)
	}
	path := pins.linkPath(name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old pin: %w", err)
	}
	clone, err := prog.Clone() // a pin moves with the object, a clone leaves it alone
	if err != nil {
		return fmt.Errorf("pin program: %w", err)
	}
	defer clone.Close()
	if err := clone.Pin(path); err != nil {
		return fmt.Errorf("pin program: %w", err)
	}
	pins.fresh = append(pins.fresh, path)
	return nil
}

// detachClsact removes the filter of the program that is pinned at a path, in
// whichever interface of this network namespace it is. The qdisc stays: others
// may use it.
func detachClsact(path string) error {
	prog, err := ebpf.LoadPinnedProgram(path, nil)
	if err != nil {
		return fmt.Errorf("open %s: %w", filepath.Base(path), err)
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return fmt.Errorf("describe %s: %w", filepath.Base(path), err)
	}
	id, _ := info.ID() // every kernel that has clsact numbers its programs
	removed, err := removeFilters(clsactParents[clsactDirection(path)], id)
	if err == nil && !removed {
		err = fmt.Errorf("detach %s: no interface of this network namespace has it", filepath.Base(path))
	}
	return err
}

func clsactDirection(path string) string {
	direction, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), clsactPin), "_")
	return direction
}

func removeFilters(parent uint32, id ebpf.ProgramID) (removed bool, err error) {
	devices, err := netlink.LinkList()
	if err != nil {
		return false, fmt.Errorf("list interfaces: %w", err)
	}
	for _, device := range devices {
		filters, err := netlink.FilterList(device, parent)
		if err != nil {
			continue // a device without a qdisc for it
		}
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); !ok || b.Id != int(id) {
				continue
			}
			if err := netlink.FilterDel(f); err != nil {
				return removed, fmt.Errorf("remove filter from %s: %w", device.Attrs().Name, err)
			}
			removed = true
		}
	}
	return removed, nil
}
