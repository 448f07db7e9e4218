package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// station is a host that a flood reaches by the same port as its clients' packets.
// One CPU receives them and runs the server; the generator has another one.
type station struct {
	lab    *lab.Lab
	sink   *lab.Sink
	at     *lab.Namespace // where the server runs
	target netip.Addr
	guard  *lab.Guard // nil: none
	pins   string     // of a host agent; empty: there is none
}

// stationed makes a station's defence.
type stationed func(context.Context, *station) error

func newStation(ctx context.Context, defend stationed) (*station, error) {
	s := &station{}
	if err := s.open(ctx, defend); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *station) open(ctx context.Context, defend stationed) (err error) {
	if s.lab, err = lab.New(lab.Options{}); err != nil {
		return err
	}
	if !s.lab.Apart() {
		return &evaluation.Missing{Why: "a flood and a flooded host need a CPU each, and there is one"}
	}
	if s.sink, err = s.lab.NewSink(); err != nil {
		return err
	}
	s.at, s.target = s.lab.Edge.Namespace, s.lab.FloodedEdge()
	if err := s.tune(); err != nil {
		return err
	}
	return defend(ctx, s)
}

// tune makes the edge a host as the lab's server is one. Its clients, which close
// first, forget their connections at once: a port waits a minute otherwise, and
// 28,232 of them last for some seconds only.
func (s *station) tune() error {
	var errs []error
	for _, name := range []string{"net.ipv4.tcp_no_metrics_save", "net.ipv4.tcp_syncookies"} {
		errs = append(errs, s.lab.Edge.Sysctl(name, "1"))
	}
	return errors.Join(append(errs,
		s.lab.Edge.Sysctl("net.core.somaxconn", "4096"),
		s.lab.Edge.Sysctl("net.ipv4.tcp_max_syn_backlog", "1024"),
		s.lab.Attacker.Sysctl("net.ipv4.tcp_no_metrics_save", "1"),
		s.lab.Attacker.Sysctl("net.ipv4.tcp_max_tw_buckets", "0"),
	)...)
}

func (s *station) close() error {
	var errs []error
	if s.guard != nil {
		errs = append(errs, s.guard.Stop())
	}
	if s.pins != "" {
		_, err := dataplane.Detach(s.pins)
		errs = append(errs, err)
	}
	if s.sink != nil {
		errs = append(errs, s.sink.Close())
	}
	if s.lab != nil {
		errs = append(errs, s.lab.Close())
	}
	return errors.Join(errs...)
}

// byKernel leaves the host to its kernel.
func byKernel(context.Context, *station) error { return nil }

// byHost runs the host agent.
func byHost(args ...string) stationed {
	return func(ctx context.Context, s *station) error {
		if err := lab.Supported("host"); err != nil {
			return &evaluation.Missing{Why: err.Error()}
		}
		s.pins = s.lab.PinDir("host")
		args := append([]string{"host", s.lab.Edge.Outside[1], "--ports", fmt.Sprint(lab.HTTPPort), "--pin", s.pins}, args...)
		_, err := s.lab.Start(ctx, s.at, "host", args...)
		return err
	}
}

// bySplit makes the station an edge, with its server behind it.
func bySplit(ctx context.Context, s *station) (err error) {
	if err := lab.Supported("split"); err != nil {
		return &evaluation.Missing{Why: err.Error()}
	}
	s.at, s.target = s.lab.Server.Namespace, s.lab.Server.IPv4
	s.guard, err = s.lab.Defend(ctx, "split")
	return err
}

// pressure is how many SYNs come in a second.
type pressure lab.Rate

// A generator that has nothing to do looks at the clock all the time, and both
// CPUs may be one core: without a flood it has next to nothing to do.
const noFlood pressure = 1

const fullFlood = pressure(lab.MaxRate)

func (p pressure) String() string {
	switch p {
	case noFlood:
		return "no flood"
	case fullFlood:
		return "as many SYNs as there can be"
	}
	return synRate(float64(p))
}

// synRate writes a rate as people read it.
func synRate(rate float64) string { return strings.TrimSpace(evaluation.Short(rate)) + " SYN/s" }

// value is where it stands on an axis.
func (p pressure) value() float64 {
	if p == noFlood {
		return 0
	}
	return float64(p)
}

// offeredWithin is how far from what it is to be a flood may be.
const offeredWithin = 0.15

// errUneven says that the flood was not what it was to be.
var errUneven = errors.New("something else wants the generator's CPU")

// unevenLimit is how often a flood is tried.
const unevenLimit = 4

// even measures again if something else has had the generator's CPU meanwhile.
func even(measure func() (evaluation.Figures, error)) (f evaluation.Figures, err error) {
	for range unevenLimit {
		if f, err = measure(); !errors.Is(err, errUneven) {
			break
		}
	}
	return f, err
}

// sound tells whether so many SYNs were offered as there were to be.
func (p pressure) sound(offered float64) error {
	wanted := float64(p)
	if p == noFlood || p == fullFlood || offered > wanted*(1-offeredWithin) && offered < wanted*(1+offeredWithin) {
		return nil
	}
	return fmt.Errorf("%s were to be offered, and it was %s: %w", p, synRate(offered), errUneven)
}

// flood begins to flood the station, for so long at most.
func (s *station) flood(p pressure, limit time.Duration) (*lab.Flood, error) {
	return s.lab.StartFlood(lab.FloodOptions{Rate: lab.Rate(p), Target: s.target, Limit: limit})
}

// counts are the generator's and the sink's at one time.
func (s *station) counts(flood *lab.Flood) (counts, error) {
	offered, err := flood.Offered()
	if err != nil {
		return counts{}, err
	}
	back, err := s.sink.Counts()
	return counts{at: time.Now(), offered: offered, answered: back.SYNACKs}, err
}

// stations are made when they are needed, and are there until close.
type stations map[string]*station

func (all stations) get(ctx context.Context, name string, defend stationed) (*station, error) {
	if s := all[name]; s != nil {
		return s, nil
	}
	s, err := newStation(ctx, defend)
	if err != nil {
		return nil, err
	}
	all[name] = s
	return s, nil
}

func (all stations) close() error {
	var errs []error
	for _, s := range all {
		errs = append(errs, s.close())
	}
	clear(all)
	return errors.Join(errs...)
}
