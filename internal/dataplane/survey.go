package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"smartcookie/internal/control"
)

// Survey reads what one agent has pinned, for metrics. Each call opens what is there
// now: a daemon may have put something else in its place. None walks a table whose
// size others decide.
type Survey struct {
	pins  *Pins
	agent string
}

// NewSurvey surveys an agent that is pinned below root.
func NewSurvey(root, agent string) *Survey {
	return &Survey{pins: &Pins{path: filepath.Join(root, agent)}, agent: agent}
}

// Attached says whether there is anything to survey.
func (s *Survey) Attached() bool {
	_, err := os.Stat(s.pins.path)
	return err == nil
}

// with hands out a pinned map for as long as the call lasts.
func (s *Survey) with(name string, do func(*ebpf.Map) error) error {
	m, err := ebpf.LoadPinnedMap(s.pins.mapPath(name), nil)
	if err != nil {
		return fmt.Errorf("open map %s of %s: %w", name, s.agent, err)
	}
	defer m.Close()
	return do(m)
}

// Services returns how the agent stands to its services.
func (s *Survey) Services() (states []ServiceState, err error) {
	m, err := openModes(filepath.Dir(s.pins.path), s.agent)
	if err != nil {
		return nil, fmt.Errorf("open services of %s: %w", s.agent, err)
	}
	defer m.close()
	return readStates(s.agent, m.labels, m.services, m.detectors)
}

// Verdicts hands out the counts that are not zero, of no service (0) and of those up
// to a last one.
func (s *Survey) Verdicts(last uint32, each func(service uint32, verdict int, count uint64)) error {
	return s.with("counters", func(m *ebpf.Map) error { return eachCounter(m, last, each) })
}

// Tally is what an edge's detector has counted of a service.
type Tally struct{ SYNs, Finished uint64 }

// Tallies returns them, of the services up to a last one, by id.
func (s *Survey) Tallies(last uint32) ([]Tally, error) {
	all := make([]Tally, last+1)
	perCPU := make([]edgeTally, ebpf.MustPossibleCPU())
	return all, s.with("tallies", func(m *ebpf.Map) error {
		for id := range all {
			if err := m.Lookup(uint32(id), &perCPU); err != nil {
				return fmt.Errorf("read tallies: %w", err)
			}
			for _, t := range perCPU {
				all[id].SYNs += t.Syns
				all[id].Finished += t.Finished
			}
		}
		return nil
	})
}

// Clock returns the agent's clock.
func (s *Survey) Clock() (c Clock, err error) {
	err = s.with("clock", func(m *ebpf.Map) error {
		c, err = (&tables{clock: m}).GetClock()
		return err
	})
	return c, err
}

// KeysUntil returns the first epoch, from one on, for which the kernel has no key of
// a domain. Keys are written in a row, so halving finds their end.
func (s *Survey) KeysUntil(domain int, from, epochsAhead uint64) (until uint64, err error) {
	slots := slotsFor(epochsAhead)
	return until, s.with("keys", func(m *ebpf.Map) error {
		low, high := from, from+uint64(slots)
		for low < high {
			middle := low + (high-low)/2
			has, err := hasKey(m, uint32(domain)*slots+uint32(middle)&(slots-1), middle)
			if err != nil {
				return err
			}
			if has {
				low = middle + 1
			} else {
				high = middle
			}
		}
		until = low
		return nil
	})
}

func hasKey(m *ebpf.Map, slot uint32, epoch uint64) (bool, error) {
	var v edgeKeySlot
	defer func() { clear(v.Key[:]) }()
	if err := m.Lookup(slot, &v); err != nil {
		return false, fmt.Errorf("look for a key: %w", err)
	}
	return v.Epoch == epoch && v.Hash != 0, nil
}

// FilterFill is how full an edge's filter is, as a sample of its lines tells.
type FilterFill struct {
	Lines         uint32
	Current       float64 // share of the bits that are set
	Older         float64
	FalsePositive float64 // chance of a stranger to be let in
}

// filterSample is how many lines are looked at: of the ratios that makes an error of
// some percent. The hash is keyed, so that nobody can choose these lines.
const filterSample = 1024

// Filter looks at lines at equal distances.
func (s *Survey) Filter() (f FilterFill, err error) {
	var state edgeFilterState
	if err := s.with("filter", func(m *ebpf.Map) error { return m.Lookup(uint32(0), &state) }); err != nil {
		return f, fmt.Errorf("read the filter's state: %w", err)
	}
	clear(state.Key[:])
	return f, s.with("filter_lines", func(m *ebpf.Map) error {
		f.Lines = m.MaxEntries()
		sample := min(f.Lines, filterSample)
		for i := range sample {
			at := uint32(uint64(i) * uint64(f.Lines) / uint64(sample))
			var line edgeFilterLine
			if err := m.Lookup(at, &line); err != nil {
				return fmt.Errorf("read the filter: %w", err)
			}
			f.add(&line, generationOf(state.Position, at), float64(sample))
		}
		return nil
	})
}

// generationOf is filter_generation of bpf/filter.h.
func generationOf(position uint64, line uint32) int {
	generation := uint32(position >> 32)
	if line < uint32(position) {
		generation++
	}
	return int(generation & 1)
}

func (f *FilterFill) add(line *edgeFilterLine, current int, sample float64) {
	fill, hit := [2]float64{}, [2]float64{1, 1}
	for g := range line.Word {
		for _, word := range line.Word[g] { // a flow has one bit in each half of it
			for _, half := range []uint32{uint32(word), uint32(word >> 32)} {
				share := float64(bits.OnesCount32(half)) / 32
				fill[g] += share / (2 * float64(len(line.Word[g])))
				hit[g] *= share
			}
		}
	}
	f.Current += fill[current] / sample
	f.Older += fill[current^1] / sample
	f.FalsePositive += (1 - (1-hit[0])*(1-hit[1])) / sample
}

// Flows estimates how many flows make a share of the bits: those of a line are
// distributed as independent arrivals are.
func (f *FilterFill) Flows(share float64) float64 {
	const bitsOfHalf = 32
	most := 1 - 1/float64(filterSample*bitsOfHalf) // a full sample tells no more than that
	return -bitsOfHalf * math.Log(1-min(share, most)) * float64(f.Lines)
}

// Capacity is how many flows the filter is made for.
func (f *FilterFill) Capacity() int { return int(f.Lines) * flowsPerLine }

// TransmitFailures counts frames that were lost after their verdict, by cause.
func (s *Survey) TransmitFailures() (lost map[string]uint64, err error) {
	err = s.with("transmit_failures", func(m *ebpf.Map) error {
		lost, err = readFailures(m)
		return err
	})
	return lost, err
}

// Peers returns what the agent knows of the other half.
func (s *Survey) Peers() (all map[uint32]control.Peer, err error) {
	return all, s.with(peerMaps[s.agent], func(m *ebpf.Map) error {
		all = peersOf(m)
		return nil
	})
}

// ControlCounts returns the daemon's counts of control messages by event; none where
// there are no messages.
func (s *Survey) ControlCounts() ([]uint64, error) {
	return readControlCounts(s.pins.mapPath(controlPin))
}

// ProgramRun is what the kernel has measured of an attached program.
type ProgramRun struct {
	Hook string // and device, as the pin is called
	Time time.Duration
	Runs uint64
}

// Programs returns what is known of those that have run while the kernel measured
// (kernel.bpf_stats_enabled): none where it never did, or says so to others only.
func (s *Survey) Programs() ([]ProgramRun, error) {
	entries, err := os.ReadDir(filepath.Join(s.pins.path, "links"))
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var all []ProgramRun
	for _, e := range entries {
		stats, err := s.programStats(e.Name())
		if errors.Is(err, unix.EPERM) {
			return nil, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // taken off meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("measure %s: %w", e.Name(), err)
		}
		if stats.RunCount > 0 {
			all = append(all, ProgramRun{strings.ReplaceAll(e.Name(), ":", "."), stats.Runtime, stats.RunCount})
		}
	}
	return all, nil
}

func (s *Survey) programStats(name string) (*ebpf.ProgramStats, error) {
	prog, err := s.program(name)
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	return prog.Stats()
}

func (s *Survey) program(name string) (*ebpf.Program, error) {
	path := s.pins.linkPath(name)
	if strings.HasPrefix(name, clsactPin) { // where there are no links
		return ebpf.LoadPinnedProgram(path, nil)
	}
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return nil, err
	}
	return ebpf.NewProgramFromID(info.Program)
}
