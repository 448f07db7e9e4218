package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
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
	"smartcookie/internal/filter"
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

// Attached lists the agents that have pins below root.
func Attached(root string) ([]string, error) {
	var all []string
	for _, agent := range agentNames {
		_, err := os.Stat(filepath.Join(root, agent))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for pins: %w", err)
		}
		all = append(all, agent)
	}
	return all, nil
}

// DaemonRuns says whether somebody holds the lock of an agent's pins. It takes
// none itself, or a daemon that starts just now would be refused.
func DaemonRuns(root, agent string) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(root, agent), &st); err != nil {
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

// PinnedClock returns the clock by which a pinned agent counts epochs.
func PinnedClock(root, agent string) (c Clock, err error) {
	pins := Pins{path: filepath.Join(root, agent)}
	if !pins.sameContract() {
		return c, fmt.Errorf("the %s agent was %w", agent, ErrOtherVersion)
	}
	err = pins.use("clock", func(m *ebpf.Map) error {
		c, err = (&tables{clock: m}).GetClock()
		return err
	})
	return c, err
}

// PinnedKey returns the key that a pinned agent has for an epoch, of a domain by its
// index among those that the agent has; false if there is none.
func PinnedKey(root, agent string, domain, domains int, epoch uint64) (slot cookie.Slot, ok bool, err error) {
	pins := Pins{path: filepath.Join(root, agent)}
	err = pins.use("keys", func(m *ebpf.Map) error {
		slots := m.MaxEntries() / uint32(domains)
		var v edgeKeySlot
		defer clear(v.Key[:])
		if err := m.Lookup(uint32(domain)*slots+uint32(epoch)&(slots-1), &v); err != nil {
			return err
		}
		slot = cookie.Slot{Epoch: v.Epoch, Hash: cookie.Hash(v.Hash), WindowScale: v.WindowScale}
		binary.LittleEndian.PutUint64(slot.Key[:8], v.Key[0])
		binary.LittleEndian.PutUint64(slot.Key[8:], v.Key[1])
		return nil
	})
	if err != nil {
		return slot, false, fmt.Errorf("read keys: %w", err)
	}
	return slot, slot.Epoch == epoch, nil
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

// sampledLines is how many lines of a filter are looked at to tell its fill.
const sampledLines = 8192

// FilterFlows estimates how many flows the filter of the edge that is pinned below
// root holds, and for how many it is made.
func FilterFlows(root string) (flows, room int, err error) {
	pins := Pins{path: filepath.Join(root, EdgeAgent)}
	if !pins.sameContract() {
		return 0, 0, fmt.Errorf("the edge agent was %w", ErrOtherVersion)
	}
	err = pins.use("filter_lines", func(m *ebpf.Map) error {
		lines := m.MaxEntries()
		var set [filter.Generations]int
		step := max(lines/sampledLines, 1)
		var sampled int
		for at := uint32(0); at < lines; at += step {
			var line filter.Line
			if err := m.Lookup(at, &line.Word); err != nil {
				return err
			}
			for g, words := range line.Word {
				for _, w := range words {
					set[g] += bits.OnesCount64(w)
				}
			}
			sampled++
		}
		flows, room = flowsIn(max(set[0], set[1]), sampled, lines), int(lines)*flowsPerLine
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("read the filter: %w", err)
	}
	return flows, room, nil
}

// flowsIn is how many flows set so many bits in a sample of a filter's lines: each
// sets one of the 32 in each half of a word, and the flows of a line are a Poisson
// variable, so that a bit stays clear with probability exp(-flows of a line / 32).
func flowsIn(set, sampled int, lines uint32) int {
	const half, lineBits = 32, filter.LineBytes / filter.Generations * 8
	clear := max(1-float64(set)/float64(sampled*lineBits), 1e-9)
	return int(math.Round(-half * math.Log(clear) * float64(lines)))
}
