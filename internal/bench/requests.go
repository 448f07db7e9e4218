package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// Requests is E5: what a flood leaves of short connections, and what a defence
// takes of them without one.
func Requests() evaluation.Experiment {
	return evaluation.Experiment{
		ID:         "E5",
		Title:      "Short connections beside a flood",
		Reproduces: "Netdev 2020, figure 2",
		Question:   "How many connections, each for one request, does a host serve while it answers a flood, and what does a defence cost that waits for one?",
		Prepare: func(e evaluation.Effort) *evaluation.Trial {
			x := newRequests(e)
			return &evaluation.Trial{Cells: x.cells(), Panels: x.panels, Notes: requestNotes, Close: x.stations.close}
		},
	}
}

// Subjects of E5, besides kernelCookies.
const (
	hostKernelCookies = "host, kernel cookies"
	hostOwn           = "host"
	splitOwn          = "split"

	noProgram        = "no program"
	noProgramAgain   = "no program, again"
	passiveKernel    = "host, kernel cookies, passive"
	passiveHost      = "host, passive (auto)"
	alwaysHost       = "host, always on"
	withoutGenerator = "nothing but the flows"
)

// flowsAtOnce are the paper's.
const flowsAtOnce = 100

// Flows alone are more SYNs a second than any usual limit, and no flood.
const noLimit = "100000000"

// protected is a way to serve.
type protected struct {
	name   string
	ours   bool
	defend stationed
}

// defended lists what serves beside a flood.
func defended() []protected {
	return []protected{
		{kernelCookies, false, byKernel},
		{hostKernelCookies, true, byHost("--cookies", "kernel")},
		{hostOwn, true, byHost("--mode", "always")},
		{splitOwn, true, bySplit},
	}
}

// waiting lists what serves without one; the first is what others are compared to.
func waiting() []protected {
	return []protected{
		{noProgram, false, byKernel},
		{noProgramAgain, false, byKernel},
		{passiveKernel, true, byHost("--cookies", "kernel", "--flood-syns", noLimit)},
		{passiveHost, true, byHost("--mode", "auto", "--detect", "syns="+noLimit)},
		{alwaysHost, true, byHost("--mode", "always")},
	}
}

// requests is what E5 measures.
type requests struct {
	rounds, calmRounds int
	pressures          []pressure
	settle, window     time.Duration
	stations           stations
}

func newRequests(e evaluation.Effort) *requests {
	if e == evaluation.Quick {
		return &requests{
			rounds: 1, calmRounds: 2, settle: 100 * time.Millisecond, window: 300 * time.Millisecond, stations: stations{},
			pressures: []pressure{noFlood, 250_000, 500_000, 1_000_000, 2_000_000, fullFlood},
		}
	}
	return &requests{
		rounds: 5, calmRounds: 15, settle: 300 * time.Millisecond, window: time.Second, stations: stations{},
		pressures: []pressure{noFlood, 100_000, 200_000, 300_000, 500_000, 750_000, 1_000_000, 1_500_000, 2_000_000, fullFlood},
	}
}

// What a cell takes besides: programs start and end, and the generator stops.
const requestsOverhead = 200 * time.Millisecond

func (x *requests) cells() (all []evaluation.Cell) {
	takes := x.settle + x.window + requestsOverhead
	add := func(s protected, in string, round int, measure func(context.Context) (evaluation.Figures, error)) {
		id := evaluation.CellID{Subject: s.name, Case: in, Round: round}
		all = append(all, evaluation.Cell{CellID: id, Takes: takes, Measure: measure})
	}
	turns(defended(), x.rounds, func(s protected, round int) {
		for _, p := range x.pressures {
			add(s, p.String(), round, func(ctx context.Context) (evaluation.Figures, error) {
				return even(func() (evaluation.Figures, error) { return x.flooded(ctx, s, p) })
			})
		}
	})
	turns(waiting(), x.calmRounds, func(s protected, round int) {
		add(s, withoutGenerator, round, func(ctx context.Context) (evaluation.Figures, error) { return x.calm(ctx, s) })
	})
	return all
}

// turns has everybody come first in one round or another.
func turns[T any](all []T, rounds int, each func(T, int)) {
	for round := range rounds {
		for i := range all {
			each(all[(i+round)%len(all)], round)
		}
	}
}

// Flows must have made so many transactions before anything is measured.
const (
	enoughTransactions = 200
	transactionsWithin = 5 * time.Second
	transactionsLimit  = time.Minute
)

// started starts clients and server, and waits until they serve: listener and
// connections are new for each cell, so that no queue is left of an earlier one.
func (s *station) started(ctx context.Context) (*lab.Transactions, error) {
	flows, err := s.lab.StartTransactions(ctx, s.at, lab.TransactionOptions{
		Server: netip.AddrPortFrom(s.target, lab.HTTPPort), Flows: flowsAtOnce, Limit: transactionsLimit,
	})
	if err != nil {
		return nil, err
	}
	for begun := time.Now(); flows.Count() < enoughTransactions; {
		err := wait(ctx, time.Millisecond)
		if err == nil && time.Since(begun) > transactionsWithin {
			err = fmt.Errorf("%d transactions in %v: the defence does not serve", flows.Count(), transactionsWithin)
		}
		if err != nil {
			return nil, errors.Join(err, flows.Stop())
		}
	}
	return flows, nil
}

// flooded measures a defence beside a flood.
func (x *requests) flooded(ctx context.Context, p protected, at pressure) (f evaluation.Figures, err error) {
	s, err := x.stations.get(ctx, p.name, p.defend)
	if err != nil {
		return nil, err
	}
	if err := s.lab.ModerateFlood(); err != nil {
		return nil, err
	}
	flows, err := s.started(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, flows.Stop()) }()
	flood, err := s.flood(at, x.settle+x.window+10*time.Second)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, flood.Stop()) }() // first, so that the others get to run
	if err := wait(ctx, x.settle); err != nil {
		return nil, err
	}
	before, err := s.counts(flood)
	if err != nil {
		return nil, err
	}
	served := flows.Count()
	if err := wait(ctx, x.window); err != nil {
		return nil, err
	}
	after, err := s.counts(flood)
	if err != nil {
		return nil, err
	}
	served = flows.Count() - served
	seconds := after.at.Sub(before.at).Seconds()
	f = evaluation.Figures{
		"transactions_per_s": float64(served) / seconds,
		"offered_per_s":      float64(after.offered-before.offered) / seconds,
		"answered_per_s":     float64(after.answered-before.answered) / seconds,
	}
	return f, at.sound(f["offered_per_s"])
}

// calm measures a defence with nothing else. All of it is done by one CPU, as
// interrupts that nobody moderates would have it.
func (x *requests) calm(ctx context.Context, p protected) (f evaluation.Figures, err error) {
	s, err := x.stations.get(ctx, p.name, p.defend)
	if err != nil {
		return nil, err
	}
	flows, err := s.started(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, flows.Stop()) }()
	if err := wait(ctx, x.settle); err != nil {
		return nil, err
	}
	answers, err := s.answers()
	if err != nil {
		return nil, err
	}
	begun, before := time.Now(), flows.Count()
	if err := wait(ctx, x.window); err != nil {
		return nil, err
	}
	count, seconds := flows.Count()-before, time.Since(begun).Seconds()
	now, err := s.answers()
	if err == nil && (now > answers) != (p.name == alwaysHost) {
		err = fmt.Errorf("%d SYNs were answered: a defence that waits answers none, one that is always on answers all", now-answers)
	}
	return evaluation.Figures{"transactions_per_s": float64(count) / seconds}, err
}

// answers is how many SYNs the host agent has answered, if there is one.
func (s *station) answers() (uint64, error) {
	if s.pins == "" {
		return 0, nil
	}
	verdicts, err := dataplane.Verdicts(s.pins)
	return verdicts["answer_syn"], err
}
