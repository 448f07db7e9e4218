package bench

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"smartcookie/internal/evaluation"
)

// profileHertz is how often a profile looks at its CPU; not a multiple of what
// the kernel's own timers do.
const profileHertz = 997

// profilePages hold what a profile of some seconds sees, whole stacks.
const profilePages = 1024

// profile looks at one CPU by a timer of the kernel (a software event, which every
// machine has) and keeps the stack that it finds.
type profile struct {
	event int
	ring  []byte // a page of control, then what was seen
}

// startProfile begins to look at a CPU, until stop.
func startProfile(cpu int) (*profile, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample:      profileHertz,
		Bits:        unix.PerfBitFreq | unix.PerfBitExcludeCallchainUser,
		Sample_type: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_CALLCHAIN,
	}
	event, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, &evaluation.Missing{Why: fmt.Sprintf("this kernel has no profile for us: perf_event_open: %v", err)}
	}
	ring, err := unix.Mmap(event, 0, (1+profilePages)*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("share the profile's memory: %w", err), unix.Close(event))
	}
	return &profile{event, ring}, nil
}

// stop ends the profile and returns the stacks, innermost function first.
func (p *profile) stop() ([]stack, error) {
	err := unix.IoctlSetInt(p.event, unix.PERF_EVENT_IOC_DISABLE, 0)
	control := (*unix.PerfEventMmapPage)(unsafe.Pointer(&p.ring[0]))
	seen := atomic.LoadUint64(&control.Data_head)
	data := p.ring[os.Getpagesize():]
	stacks := stacksOf(data[:min(seen, uint64(len(data)))])
	return stacks, errors.Join(err, unix.Munmap(p.ring), unix.Close(p.event))
}

// stack is one look at the CPU.
type stack struct {
	task      uint32   // process; 0: the idle one
	functions []uint64 // of the kernel, innermost first
}

// recordSample is PERF_RECORD_SAMPLE; what is above contextMarker in a stack is
// none of its functions.
const (
	recordSample  = 9
	recordHeader  = 8
	contextMarker = ^uint64(0) - 4095 // PERF_CONTEXT_MAX
)

// stacksOf reads what the kernel wrote (perf_event_open(2)): records, of which
// samples have process, thread, and a counted list of addresses.
func stacksOf(data []byte) (all []stack) {
	order := binary.NativeEndian
	for len(data) >= recordHeader {
		kind, size := order.Uint32(data), int(order.Uint16(data[6:]))
		if size < recordHeader || size > len(data) {
			break
		}
		body := data[recordHeader:size]
		data = data[size:]
		if kind != recordSample || len(body) < 16 {
			continue
		}
		s := stack{task: order.Uint32(body)}
		count := min(order.Uint64(body[8:]), uint64(len(body)/8-2))
		for i := range count {
			if address := order.Uint64(body[16+8*i:]); address < contextMarker {
				s.functions = append(s.functions, address)
			}
		}
		all = append(all, s)
	}
	return all
}

// symbols are the kernel's functions, by ascending address.
type symbols []symbol

type symbol struct {
	address uint64
	name    string
}

// kernelSymbols reads /proc/kallsyms.
func kernelSymbols() (symbols, error) {
	file, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, &evaluation.Missing{Why: "this kernel does not tell its functions: " + err.Error()}
	}
	defer file.Close()
	var all symbols
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || !strings.Contains("tTwW", fields[1]) {
			continue
		}
		if address, err := strconv.ParseUint(fields[0], 16, 64); err == nil && address != 0 {
			all = append(all, symbol{address, fields[2]})
		}
	}
	if len(all) == 0 {
		return nil, &evaluation.Missing{Why: "this kernel hides the addresses of its functions (kernel.kptr_restrict)"}
	}
	return all.sorted(), nil
}

func (all symbols) sorted() symbols {
	slices.SortStableFunc(all, func(a, b symbol) int { return cmp.Compare(a.address, b.address) })
	return all
}

// name is the function that an address lies in.
func (all symbols) name(address uint64) string {
	i, exact := slices.BinarySearchFunc(all, address, func(s symbol, address uint64) int { return cmp.Compare(s.address, address) })
	if !exact {
		i--
	}
	if i < 0 {
		return ""
	}
	return all[i].name
}
