package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/filter"
)

// Filters is E4: how many strangers the filters of verified flows let in.
func Filters() evaluation.Experiment {
	return evaluation.Experiment{
		ID:         "E4",
		Title:      "False positives of the filter",
		Reproduces: "SmartCookie 6.3 and 8.1, equation 1",
		Question:   "What share of an attacker's packets does the filter of verified flows let through, by flows and by memory?",
		Prepare: func(e evaluation.Effort) *evaluation.Trial {
			x := newFilterSweep(e)
			return &evaluation.Trial{Cells: x.cells(), Panels: x.panels, Notes: filterNotes()}
		},
	}
}

// Subjects of E4.
const (
	papersFilter  = "the paper's"
	papersWindows = "the paper's, two windows"
	papersBPF     = "the paper's, in the kernel"
	oursFilter    = "ours"
	oursBPF       = "ours, in the kernel"
)

const bytesPerFlow = 8 // of ours, as it is configured

// load is what a filter is asked to hold, and in how much memory.
type load struct {
	flows, bytes int
}

func (l load) String() string { return fmt.Sprintf("%d flows in %d bytes", l.flows, l.bytes) }

// lines is how many fit in the memory.
func (l load) lines() int { return max(l.bytes/filter.LineBytes, 1) }

// filterSubject is a filter and what it is expected to do.
type filterSubject struct {
	name    string
	ours    bool
	fill    func(load, filter.Key) (asked, error)
	formula func(load) float64
	only    func(load) bool // nil: all
}

// asked is a full filter, which tells how many of so many strangers it lets in.
type asked struct {
	positives func(first, n uint64) (uint64, error)
	close     func() error // nil: nothing to do
}

func filterSubjects() []filterSubject {
	m := func(l load) float64 { return 8 * float64(l.bytes) }
	one := func(l load) float64 { return filter.PartitionedRate(float64(l.flows), m(l)) }
	two := func(l load) float64 {
		return 1 - math.Pow(1-filter.PartitionedRate(float64(l.flows), m(l)/2), 2)
	}
	blocked := func(l load) float64 { return filter.BlockedRate(float64(l.flows), float64(l.lines()), 2) }
	return []filterSubject{
		{name: papersFilter, fill: fillPapers, formula: one},
		{name: papersWindows, fill: fillPapersWindows, formula: two},
		{name: papersBPF, fill: fillPapersBPF, formula: one, only: func(l load) bool { return l.bytes == filter.PaperBytes }},
		{name: oursFilter, ours: true, fill: fillOurs, formula: blocked},
		{name: oursBPF, ours: true, fill: fillOursBPF, formula: blocked},
	}
}

// filterSweep is what E4 measures.
type filterSweep struct {
	subjects []filterSubject
	rounds   int
	probes   uint64 // at most
	flows    []int
	sized    []int // flows too
	memory   []int
}

// A case is asked until so many strangers were let in: one in a hundred is what
// chance does to that.
const (
	enoughPositives = 10_000
	probeBlock      = 100_000
	// Where the numbers of strangers begin: none of those that are added.
	strangers = 1 << 40
)

func newFilterSweep(e evaluation.Effort) *filterSweep {
	x := &filterSweep{
		subjects: filterSubjects(), rounds: 3, probes: 5_000_000,
		flows:  []int{10_000, 30_000, 100_000, 300_000, filter.PaperFlows, 1_000_000, 2_000_000, 4_000_000},
		memory: []int{filter.PaperBytes / 4, filter.PaperBytes / 2, filter.PaperBytes, filter.PaperBytes * 2, filter.PaperBytes * 4, filter.PaperBytes * 8, filter.PaperBytes * 16, filter.PaperBytes * 32},
	}
	x.sized = x.flows
	if e == evaluation.Quick {
		x.rounds, x.probes = 2, 200_000
		x.flows = []int{10_000, 100_000, filter.PaperFlows, 1_000_000}
		x.sized = []int{10_000, filter.PaperFlows}
		x.memory = []int{filter.PaperBytes / 2, filter.PaperBytes, filter.PaperBytes * 4, filter.PaperBytes * 8}
	}
	return x
}

func (x *filterSweep) byFlows() (all []load) {
	for _, n := range x.flows {
		all = append(all, load{n, filter.PaperBytes})
	}
	return all
}

func (x *filterSweep) byFlowsSized() (all []load) {
	for _, n := range x.sized {
		all = append(all, sizedFor(n))
	}
	return all
}

func (x *filterSweep) byMemory() (all []load) {
	for _, bytes := range x.memory {
		all = append(all, load{filter.PaperFlows, bytes})
	}
	return all
}

func sizedFor(flows int) load { return load{flows, bytesPerFlow * flows} }

// cells has each load once, whatever panels it is in.
func (x *filterSweep) cells() (all []evaluation.Cell) {
	seen := make(map[evaluation.CellID]bool)
	for round := range x.rounds {
		for _, loads := range [][]load{x.byFlows(), x.byFlowsSized(), x.byMemory()} {
			for _, l := range loads {
				for i := range x.subjects {
					s := x.subjects[(i+round)%len(x.subjects)]
					id := evaluation.CellID{Subject: s.name, Case: l.String(), Round: round}
					if !seen[id] && (s.only == nil || s.only(l)) {
						seen[id] = true
						all = append(all, x.cell(id, s, l))
					}
				}
			}
		}
	}
	return all
}

// Times of an addition and a question, about: memory decides.
const (
	fillTakes = 100 * time.Nanosecond
	askTakes  = 100 * time.Nanosecond
)

func (x *filterSweep) cell(id evaluation.CellID, s filterSubject, l load) evaluation.Cell {
	probes := min(float64(x.probes), max(probeBlock, enoughPositives/s.formula(l)))
	return evaluation.Cell{
		CellID:  id,
		Takes:   time.Duration(l.flows)*fillTakes + time.Duration(probes)*askTakes,
		Measure: func(ctx context.Context) (evaluation.Figures, error) { return x.measure(ctx, s, l, id.Round) },
	}
}

// measure fills a filter under another key in each round, the same in each run.
func (x *filterSweep) measure(ctx context.Context, s filterSubject, l load, round int) (evaluation.Figures, error) {
	key, err := filter.NewKey(rand.NewChaCha8([32]byte{byte(round)}))
	if err != nil {
		return nil, err
	}
	full, err := s.fill(l, key)
	if err != nil {
		return nil, err
	}
	if full.close != nil {
		defer full.close() // what could fail was seen before
	}
	positives, probes := uint64(0), uint64(0)
	for positives < enoughPositives && probes < x.probes {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		n, err := full.positives(strangers+probes, probeBlock)
		if err != nil {
			return nil, err
		}
		positives, probes = positives+n, probes+probeBlock
	}
	return evaluation.Figures{"positives": float64(positives), "probes": float64(probes)}, nil
}

// ask asks a filter of ours in Go.
func ask(has func(cookie.Flow) bool) asked {
	return asked{positives: func(first, n uint64) (found uint64, err error) {
		for i := range n {
			if has(flowNumbered(first + i)) {
				found++
			}
		}
		return found, nil
	}}
}

func fillPapers(l load, key filter.Key) (asked, error) {
	return ask(partitioned(key, 8*l.bytes/filter.Arrays, 0, l.flows).Has), nil
}

// fillPapersWindows shares the memory between two filters, as they have to take
// turns: while one is in use, what is to be forgotten stands in the other.
func fillPapersWindows(l load, key filter.Key) (asked, error) {
	now := partitioned(key, 4*l.bytes/filter.Arrays, 0, l.flows)
	before := partitioned(key, 4*l.bytes/filter.Arrays, l.flows, l.flows)
	return ask(func(f cookie.Flow) bool { return now.Has(f) || before.Has(f) }), nil
}

func partitioned(key filter.Key, arrayBits, first, n int) *filter.Partitioned {
	f := filter.NewPartitioned(key, arrayBits)
	for i := range n {
		f.Add(flowNumbered(uint64(first + i)))
	}
	return f
}

// fillOurs fills both generations, with other flows each: there are no more.
func fillOurs(l load, key filter.Key) (asked, error) {
	f := filter.NewBlocked(key, l.lines())
	for i := range 2 * l.flows {
		if i == l.flows {
			f.After(uint64(len(f.Lines)))
		}
		f.Add(flowNumbered(uint64(i)))
	}
	return ask(f.Has), nil
}

func fillPapersBPF(l load, key filter.Key) (asked, error) {
	k, err := loadFiltersKernel(1, key)
	if err != nil {
		return asked{}, err
	}
	full := partitioned(key, filter.PaperArrayBits, 0, l.flows)
	return asked{positives: k.asker(k.programs.PaperHasAll), close: k.close}, k.writePapers(full)
}

func fillOursBPF(l load, key filter.Key) (asked, error) {
	k, err := loadFiltersKernel(l.lines(), key)
	if err != nil {
		return asked{}, err
	}
	for generation := range uint64(2) {
		if err := k.turn(generation); err != nil {
			return asked{}, err
		}
		if err := k.run(k.programs.OursAdd, generation*uint64(l.flows), uint64(l.flows)); err != nil {
			return asked{}, err
		}
	}
	return asked{positives: k.asker(k.programs.OursHas), close: k.close}, nil
}

// flowNumbered is one of 2^48 flows, all different; the same as the kernel's
// program has.
func flowNumbered(n uint64) cookie.Flow {
	x := n * 0x9e3779b97f4b & (1<<48 - 1)
	from := netip.AddrFrom4([4]byte{byte(x >> 40), byte(x >> 32), byte(x >> 24), byte(x >> 16)})
	return cookie.Flow{Source: netip.AddrPortFrom(from, uint16(x)), Destination: numberedTo}
}

var numberedTo = netip.MustParseAddrPort("198.51.100.2:80")

func filterNotes() []string {
	never := filter.PartitionedRate(10*filter.PaperFlows, 8*filter.PaperBytes)
	return []string{
		"Flows are all different, strangers are others; each round has another key. Nothing is sent: filters in Go hold and are asked the same flows as those in the kernel, which are the edge's own code and the paper's design in BPF, run by themselves.",
		"The paper's filter is made from its text (three arrays, one bit of a flow in each), with our keyed hash in the place of the switch's CRC.",
		fmt.Sprintf("A filter that is never cleared goes on filling: after ten windows of %d flows the paper's would let in %.1f%% (formula).", filter.PaperFlows, 100*never),
		"Ours is asked at its worst: both generations are full, with different flows. A flow that goes on is in both, and then half as many strangers are let in.",
		fmt.Sprintf("Ours needs its memory: it is made for %d bytes a flow (%sB in all for the paper's flows), both generations included. In the paper's memory it lets in more than the paper's filter.",
			bytesPerFlow, evaluation.Short(float64(dataplane.FilterLines(filter.PaperFlows)*filter.LineBytes))),
	}
}
