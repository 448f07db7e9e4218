package dataplane

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
)

// What can be told of a kernel and of agents without changing anything.

// MissingHelpers lists what an agent's programs call or attach to and a kernel
// does not have, by the types that it tells.
func MissingHelpers(kernel *btf.Spec, agent string) ([]string, error) {
	load := map[string]func() (*ebpf.CollectionSpec, error){
		EdgeAgent: loadEdge, ServerAgent: loadServer, HostAgent: loadHostKernel,
	}[agent]
	spec, err := load()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	known, err := enumValues(kernel, "bpf_func_id")
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, p := range spec.Programs {
		for i := range p.Instructions {
			if ins := &p.Instructions[i]; ins.IsBuiltinCall() && !known[uint64(ins.Constant)] {
				missing = append(missing, asm.BuiltinFunc(ins.Constant).String())
			}
		}
		if !hasHook(kernel, p) {
			missing = append(missing, p.SectionName)
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing), nil
}

// hasHook looks for what a tracing program is attached to, by the names under which
// the kernel's types have tracepoints and iterators.
func hasHook(kernel *btf.Spec, p *ebpf.ProgramSpec) bool {
	switch p.AttachType {
	case ebpf.AttachTraceRawTp:
		return kernel.TypeByName("btf_trace_"+p.AttachTo, new(*btf.Typedef)) == nil
	case ebpf.AttachTraceIter:
		return kernel.TypeByName("bpf_iter_"+p.AttachTo, new(*btf.Func)) == nil
	}
	return true
}

// HasTCX says whether a kernel attaches programs to TC by links.
func HasTCX(kernel *btf.Spec) bool {
	known, err := enumValues(kernel, "bpf_attach_type")
	return err == nil && known[uint64(ebpf.AttachTCXIngress)]
}

func enumValues(kernel *btf.Spec, name string) (map[uint64]bool, error) {
	var enum *btf.Enum
	if err := kernel.TypeByName(name, &enum); err != nil {
		return nil, fmt.Errorf("find enum %s: %w", name, err)
	}
	known := make(map[uint64]bool, len(enum.Values))
	for _, v := range enum.Values {
		known[v.Value] = v.Name != "__MAX_BPF_ATTACH_TYPE" && v.Name != "__BPF_FUNC_MAX_ID"
	}
	return known, nil
}

// DaemonRuns says whether somebody holds the lock of the agent's pins. It takes none
// itself, or a daemon that starts just now would be refused.
func (s *Survey) DaemonRuns() (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(s.pins.path, &st); err != nil {
		return false, fmt.Errorf("look at pins: %w", err)
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false, fmt.Errorf("read locks: %w", err)
	}
	return holdsLock(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)), nil
}

// holdsLock finds a file in the text of /proc/locks (proc_locks(5)).
func holdsLock(locks, file string) bool {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && f[5] == file {
			return true
		}
	}
	return false
}

// Key returns the key that the agent has for an epoch, of a domain by its index among
// those that it has; false if there is none.
func (s *Survey) Key(domain, domains int, epoch uint64) (slot cookie.Slot, ok bool, err error) {
	err = s.with("keys", func(m *ebpf.Map) error {
		slots := m.MaxEntries() / uint32(domains)
		var v edgeKeySlot
		defer func() { clear(v.Key[:]) }()
		if err := m.Lookup(uint32(domain)*slots+uint32(epoch)&(slots-1), &v); err != nil {
			return fmt.Errorf("read a key: %w", err)
		}
		slot = cookie.Slot{Epoch: v.Epoch, Hash: cookie.Hash(v.Hash), WindowScale: v.WindowScale}
		binary.LittleEndian.PutUint64(slot.Key[:8], v.Key[0])
		binary.LittleEndian.PutUint64(slot.Key[8:], v.Key[1])
		ok = v.Epoch == epoch && v.Hash != 0
		return nil
	})
	return slot, ok, err
}

// PinnedXDP lists the XDP programs of the agents that are pinned below root.
func PinnedXDP(root string) (map[uint32]bool, error) {
	ours := make(map[uint32]bool)
	links, err := filepath.Glob(filepath.Join(root, "*", "links", "xdp_*"))
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, path := range links {
		l, err := link.LoadPinnedLink(path, nil)
		if err != nil {
			return nil, fmt.Errorf("open link %s: %w", filepath.Base(path), err)
		}
		info, err := l.Info()
		l.Close()
		if err != nil {
			return nil, fmt.Errorf("ask link %s: %w", filepath.Base(path), err)
		}
		ours[uint32(info.Program)] = true
	}
	return ours, nil
}
