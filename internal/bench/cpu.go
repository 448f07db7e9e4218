package bench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/filter"
	"smartcookie/internal/lab"
	"smartcookie/internal/traffic"
)

// ServerCPU is E3: what a flood costs the server behind the edge.
func ServerCPU(benign traffic.Source) evaluation.Experiment {
	return evaluation.Experiment{
		ID:         "E3",
		Title:      "CPU of the server under attack",
		Reproduces: "SmartCookie figure 7",
		Question:   "How much of a CPU do SYN and ACK floods take at the server, for what the edge's filter lets through?",
		Prepare: func(e evaluation.Effort) *evaluation.Trial {
			x := newCPUSweep(e, benign)
			return &evaluation.Trial{Cells: x.cells(), Panels: x.panels, Notes: x.notes(), Close: x.close}
		},
	}
}

// passage is what lets the flood's packets through to the server.
type passage int

const (
	ownEdge  passage = iota // our edge
	open                    // a gate that lets all through
	filtered                // a gate with the paper's filter
)

// cpuSubject is a defence under one kind of flood.
type cpuSubject struct {
	name    string
	ours    bool
	flood   lab.Kind
	defence string // of the lab
	passage passage
	cookies string // tcp_syncookies of the server
	// Subject and defence without a flood are the same for all of a lab.
	calm string
}

// Subjects of E3.
const (
	undefended  = "no defence"
	kernelAlone = "kernel cookies"
	jaqenLike   = "the paper's filter, then kernel cookies (Jaqen)"
	papersSplit = "the paper's filter, then our server agent"
	serverAlone = "our server agent alone"
	oursSplit   = "ours"
)

func cpuSubjects() []cpuSubject {
	return []cpuSubject{
		{name: undefended, flood: lab.SYN, defence: "kernel", passage: open, cookies: "0", calm: kernelAlone},
		{name: kernelAlone, flood: lab.SYN, defence: "kernel", passage: open, cookies: "1", calm: kernelAlone},
		{name: jaqenLike, flood: lab.SYN, defence: "kernel", passage: filtered, cookies: "1", calm: kernelAlone},
		{name: oursSplit, ours: true, flood: lab.SYN, defence: "split", passage: ownEdge, cookies: "1", calm: oursSplit},
		{name: kernelAlone, flood: lab.ACK, defence: "kernel", passage: open, cookies: "1", calm: kernelAlone},
		{name: serverAlone, flood: lab.ACK, defence: "split", passage: open, cookies: "1", calm: oursSplit},
		{name: papersSplit, flood: lab.ACK, defence: "split", passage: filtered, cookies: "1", calm: oursSplit},
		{name: oursSplit, ours: true, flood: lab.ACK, defence: "split", passage: ownEdge, cookies: "1", calm: oursSplit},
	}
}

// cpuSweep is what E3 measures.
type cpuSweep struct {
	benign  traffic.Source
	rates   []int // packets per second
	rounds  int
	warm    time.Duration
	measure time.Duration
	places  map[string]*cpuPlace // by the lab's defence
}

// Benign requests beside the flood: as many per second as leave most of the CPU
// idle.
const (
	benignRate    = 400
	benignTimeout = time.Second
)

func newCPUSweep(e evaluation.Effort, benign traffic.Source) *cpuSweep {
	x := &cpuSweep{
		benign: benign,
		rates:  []int{100_000, 250_000, 500_000, 1_000_000}, rounds: 5,
		warm: 300 * time.Millisecond, measure: time.Second, places: make(map[string]*cpuPlace),
	}
	if e == evaluation.Quick {
		x.rates, x.rounds, x.measure = []int{500_000}, 1, 400*time.Millisecond
	}
	return x
}

const calmCase = "no flood"

func floodCaseOf(kind lab.Kind, rate int) string {
	return fmt.Sprintf("%d %s/s", rate, map[lab.Kind]string{lab.SYN: "SYN", lab.ACK: "ACK"}[kind])
}

func (x *cpuSweep) cells() (all []evaluation.Cell) {
	subjects := cpuSubjects()
	takes := x.warm + x.measure + 400*time.Millisecond
	add := func(s cpuSubject, in string, round, rate int) {
		all = append(all, evaluation.Cell{
			CellID: evaluation.CellID{Subject: s.name, Case: in, Round: round}, Takes: takes,
			Measure: func(ctx context.Context) (evaluation.Figures, error) { return x.take(ctx, s, rate, round) },
		})
	}
	for round := range x.rounds {
		for i := range subjects {
			s := subjects[(i+round)%len(subjects)]
			if s.name == s.calm && s.flood == lab.SYN {
				add(s, calmCase, round, 0)
			}
			for _, rate := range x.rates {
				add(s, floodCaseOf(s.flood, rate), round, rate)
			}
		}
	}
	return all
}

func (x *cpuSweep) close() error {
	var errs []error
	for _, p := range x.places {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// take measures one subject at one rate: again if who else uses the machine has
// taken too much of it. Where that does not help, what was offered instead is told.
func (x *cpuSweep) take(ctx context.Context, s cpuSubject, rate, round int) (figures evaluation.Figures, err error) {
	p, err := x.place(ctx, s.defence)
	if err != nil {
		return nil, err
	}
	if err := p.lab.Server.Sysctl("net.ipv4.tcp_syncookies", s.cookies); err != nil {
		return nil, err
	}
	leave, err := p.pass(s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, leave()) }()
	if rate > 0 {
		if p.flood, err = p.lab.StartFlood(lab.FloodOptions{Kind: s.flood, Rate: lab.Rate(rate), Limit: x.warm + x.measure + 10*time.Second}); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.flood.Stop()); p.flood = nil }()
	}
	for range cpuTries {
		if figures, err = x.beside(ctx, p, round); err != nil {
			return nil, err
		}
		if err = s.wrong(figures); err == nil && s.steady(figures, float64(rate)) {
			break
		}
	}
	return figures, err
}

// beside measures while benign requests are made, the same in all cells of a round.
func (x *cpuSweep) beside(ctx context.Context, p *cpuPlace, round int) (evaluation.Figures, error) {
	schedule, err := x.benign.Schedule(traffic.Want{Rate: benignRate, Duration: x.warm + x.measure, Seed: uint64(round) + 1})
	if err != nil {
		return nil, err
	}
	load, err := p.lab.StartReplay(ctx, schedule, lab.LoadOptions{Duration: x.warm + x.measure, Timeout: benignTimeout})
	if err != nil {
		return nil, err
	}
	figures, err := x.between(ctx, p)
	report, failed := load.Wait()
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	figures["benign_percent"] = 100 * float64(report.OK) / float64(max(1, report.Requests+report.Missed))
	return figures, nil
}

// cpuTries is how often a cell is measured at most.
const cpuTries = 2

// What must be so that a cell is not measured again.
const (
	enoughOffered = 0.95 // of the rate
	enoughServed  = 95.0 // of the benign requests, in percent, by who defends
	enoughHandled = 0.99 // of what reaches a server that is not at its limit
	atItsLimit    = 60.0 // percent of the CPU: the load runs there too
)

func (s cpuSubject) steady(f evaluation.Figures, rate float64) bool {
	if f["offered_per_s"] < enoughOffered*rate {
		return false
	}
	// Where every packet comes through, a server may well serve nobody.
	if s.passage == open && rate > 0 || f["cpu_percent"] > atItsLimit {
		return true
	}
	return f["benign_percent"] >= enoughServed && f["handled_per_s"] >= enoughHandled*f["reached_per_s"]
}

// wrong refuses figures of what was not the case, however much others disturb.
func (s cpuSubject) wrong(f evaluation.Figures) error {
	if f["benign_percent"] == 0 && s.passage != open {
		return errors.New("no benign request was served")
	}
	if f["reached_per_s"] > 0 && f["handled_per_s"] == 0 && s.name != undefended {
		return errors.New("the server has not handled what has reached it")
	}
	if s.passage != filtered || f["offered"] == 0 {
		return nil
	}
	share, want := f["reached_per_s"]/f["offered_per_s"], filter.PartitionedRate(filter.PaperFlows, 8*filter.PaperBytes)
	chance := 5 * math.Sqrt(want/f["offered"])
	if math.Abs(share-want) > 0.005+chance { // each filter has its own key
		return fmt.Errorf("the paper's filter lets %.2f%% through, not %.2f%%", 100*share, 100*want)
	}
	return nil
}

// cpuState is a reading of all counters.
type cpuState struct {
	at                        time.Time
	busy, kernel              time.Duration
	offered, reached, handled uint64
}

func (x *cpuSweep) between(ctx context.Context, p *cpuPlace) (evaluation.Figures, error) {
	if err := wait(ctx, x.warm); err != nil {
		return nil, err
	}
	first, err := p.read()
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, x.measure); err != nil {
		return nil, err
	}
	last, err := p.read()
	if err != nil {
		return nil, err
	}
	seconds := last.at.Sub(first.at).Seconds()
	rate := func(a, b uint64) float64 { return float64(a-b) / seconds }
	return evaluation.Figures{
		"cpu_percent":        100 * (last.busy - first.busy).Seconds() / seconds,
		"kernel_cpu_percent": 100 * (last.kernel - first.kernel).Seconds() / seconds,
		"offered":            float64(last.offered - first.offered),
		"offered_per_s":      rate(last.offered, first.offered),
		"reached_per_s":      rate(last.reached, first.reached),
		"handled_per_s":      rate(last.handled, first.handled),
	}, nil
}

// cpuPlace is a lab with a defence, a gate, and a server whose work is told apart.
type cpuPlace struct {
	lab      *lab.Lab
	server   *lab.Process
	guard    *lab.Guard
	gate     *filtersKernel
	receiver *lab.Receiver
	flood    *lab.Flood // nil: none
	gated    bool       // packets come by the gate
	undo     []func() error
}

func (x *cpuSweep) place(ctx context.Context, defence string) (*cpuPlace, error) {
	if p := x.places[defence]; p != nil {
		return p, nil
	}
	p := &cpuPlace{}
	if err := p.make(ctx, defence); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare %s: %w", defence, err), p.close())
	}
	x.places[defence] = p
	return p, nil
}

func (p *cpuPlace) make(ctx context.Context, defence string) (err error) {
	if p.lab, err = lab.New(lab.Options{Flows: filter.PaperFlows}); err != nil {
		return err
	}
	p.undo = append(p.undo, p.lab.Close)
	if p.server, err = p.lab.StartServer(ctx); err != nil {
		return err
	}
	p.undo = append(p.undo, p.server.Stop)
	if p.guard, err = p.lab.Defend(ctx, defence); err != nil {
		return err
	}
	p.undo = append(p.undo, p.guard.Stop)
	if p.gate, err = p.loadGate(); err != nil {
		return err
	}
	p.undo = append(p.undo, p.gate.close)
	if defence == "kernel" {
		if err := p.attachGate(); err != nil {
			return err
		}
	}
	p.receiver, err = p.lab.ReceiveApart() // the ports are as they stay
	return err
}

func (p *cpuPlace) close() error {
	var errs []error
	for i := len(p.undo) - 1; i >= 0; i-- {
		errs = append(errs, p.undo[i]())
	}
	p.undo = nil
	return errors.Join(errs...)
}

// pass lets the flood's packets take their way, and returns what ends that.
func (p *cpuPlace) pass(s cpuSubject) (leave func() error, err error) {
	leave, p.gated = func() error { return nil }, s.passage != ownEdge
	if s.passage == ownEdge && s.flood == lab.SYN {
		return leave, nil // it asks no filter
	}
	if s.passage == ownEdge { // what was there before may be forgotten
		return leave, dataplane.FillFilter(p.lab.PinDir(dataplane.EdgeAgent), func(generation int, add func(cookie.Flow)) {
			for i := range filter.PaperFlows {
				add(flowNumbered(uint64(generation*filter.PaperFlows + i)))
			}
		})
	}
	if err := p.gate.collection.Variables["gate_open"].Set(s.passage == open); err != nil {
		return nil, fmt.Errorf("open the gate: %w", err)
	}
	if p.guard.Process(dataplane.EdgeAgent) == nil {
		return leave, nil // it is there all the time
	}
	return dataplane.Replace(p.lab.PinDir(dataplane.EdgeAgent), p.lab.Edge.Outside[1], p.gate.programs.Gate)
}

// read reads all counters. What was offered and what has passed the gate are read at
// once: their ratio is of interest, and reading verdicts takes long.
func (p *cpuPlace) read() (now cpuState, err error) {
	now.at = time.Now()
	if p.flood != nil {
		if now.offered, err = p.flood.Offered(); err != nil {
			return now, err
		}
	}
	if err := p.gate.collection.Variables["gate_passed"].Get(&now.reached); err != nil {
		return now, fmt.Errorf("read what the gate has let through: %w", err)
	}
	if now.kernel, err = p.receiver.Busy(); err != nil {
		return now, err
	}
	now.busy = now.kernel
	for _, process := range []*lab.Process{p.server, p.guard.Process(dataplane.ServerAgent)} {
		if process == nil {
			continue
		}
		busy, err := process.Busy()
		if err != nil {
			return now, err
		}
		now.busy += busy
	}
	if now.handled, err = p.handled(); !p.gated {
		now.reached = now.handled
	}
	return now, err
}

// handled is told by what the server says to the flood, or by what its agent drops.
func (p *cpuPlace) handled() (n uint64, err error) {
	if p.guard.Process(dataplane.ServerAgent) != nil {
		verdicts, err := p.guard.ServerVerdicts()
		return verdicts["drop_bad_cookie"], err
	}
	if err := p.gate.collection.Variables["gate_answered"].Get(&n); err != nil {
		return 0, fmt.Errorf("read what the server has answered: %w", err)
	}
	return n, nil
}

// loadGate loads the gate with the paper's filter, which holds the paper's flows.
func (p *cpuPlace) loadGate() (*filtersKernel, error) {
	inside, err := p.port(p.lab.Edge.Namespace, p.lab.Edge.Inside)
	if err != nil {
		return nil, err
	}
	server, err := p.port(p.lab.Server.Namespace, p.lab.Server.Port)
	if err != nil {
		return nil, err
	}
	key, err := filter.NewKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	addresses := append(slices.Clone(server.HardwareAddr), inside.HardwareAddr...)
	sources := lab.FloodSources4.Addr().As4()
	k, err := loadFiltersKernel(1, key, func(spec *ebpf.CollectionSpec) error {
		return errors.Join(
			spec.Variables["gate_inside"].Set(uint32(inside.Index)),
			spec.Variables["gate_addresses"].Set([]byte(addresses)),
			spec.Variables["gate_sources_be"].Set(binary.NativeEndian.Uint32(sources[:])),
			spec.Variables["gate_mask_be"].Set(binary.NativeEndian.Uint32(net.CIDRMask(lab.FloodSources4.Bits(), 32))),
		)
	})
	if err != nil {
		return nil, err
	}
	if err := k.writePapers(partitioned(key, filter.PaperArrayBits, 0, filter.PaperFlows)); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

func (p *cpuPlace) port(at *lab.Namespace, name string) (port *net.Interface, err error) {
	err = at.Do(func() (err error) {
		port, err = net.InterfaceByName(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find %s in %s: %w", name, at.Name, err)
	}
	return port, nil
}

// attachGate puts the gate before the flood's port, where there is no edge of ours.
func (p *cpuPlace) attachGate() error {
	outside, err := p.port(p.lab.Edge.Namespace, p.lab.Edge.Outside[1])
	if err != nil {
		return err
	}
	server, err := p.port(p.lab.Server.Namespace, p.lab.Server.Port)
	if err != nil {
		return err
	}
	err = p.hold(p.lab.Edge.Namespace, func() (link.Link, error) {
		return link.AttachXDP(link.XDPOptions{Program: p.gate.programs.Gate, Interface: outside.Index, Flags: link.XDPDriverMode})
	})
	if err != nil {
		return err
	}
	return p.hold(p.lab.Server.Namespace, func() (link.Link, error) {
		return link.AttachTCX(link.TCXOptions{Program: p.gate.programs.GateBack, Interface: server.Index, Attach: ebpf.AttachTCXEgress})
	})
}

// hold keeps what is attached in a namespace until the place is closed.
func (p *cpuPlace) hold(at *lab.Namespace, attach func() (link.Link, error)) error {
	return at.Do(func() error {
		l, err := attach()
		if errors.Is(err, ebpf.ErrNotSupported) {
			return &evaluation.Missing{Why: fmt.Sprintf("its answers cannot be taken at the server (tcx, Linux 6.6): %v", err)}
		}
		if err != nil {
			return fmt.Errorf("attach the gate: %w", err)
		}
		p.undo = append(p.undo, l.Close)
		return nil
	})
}
