package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// site is a lab with a defence at work and an HTTP server behind it, which is
// measured under floods, one after the other.
type site struct {
	lab  *lab.Lab
	sink *lab.Sink
	away time.Duration // of the clients, a round trip
	met  int           // clients that have come so far
	undo []func() error
}

// guarded is a way to defend a site.
type guarded struct {
	defence string // of the lab
	// besides is what the lab does not know; nil: nothing.
	besides func(context.Context, *site) error
}

// openSite makes one whose clients are near.
func openSite(ctx context.Context, g guarded) (*site, error) {
	if err := lab.Supported(g.defence); err != nil {
		return nil, &evaluation.Missing{Why: err.Error()}
	}
	s := &site{}
	if err := s.open(ctx, g); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *site) open(ctx context.Context, g guarded) (err error) {
	if s.lab, err = lab.New(lab.Options{Wire: &badwire.Faults{}}); err != nil {
		return err
	}
	s.undo = append(s.undo, s.lab.Close)
	if err := s.lab.Rewire(badwire.Faults{}); err != nil {
		return err
	}
	if s.sink, err = s.lab.NewSink(); err != nil {
		return err
	}
	s.undo = append(s.undo, s.sink.Close)
	server, err := s.lab.StartServer(ctx)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, server.Stop)
	guard, err := s.lab.Defend(ctx, g.defence)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, guard.Stop)
	if g.besides == nil {
		return nil
	}
	return g.besides(ctx, s)
}

// moveClients puts so much between the clients and the site; the flood has no such
// way. 0: they are as near as links make them.
func (s *site) moveClients(away time.Duration) error {
	if s.away == away {
		return nil
	}
	s.away = away
	return s.lab.Rewire(badwire.Faults{Delay: away / 2})
}

func (s *site) close() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// besideSynproxy has the edge's kernel answer by SYNPROXY.
func besideSynproxy(ctx context.Context, s *site) error {
	scale, err := windowScale(s.lab.Server.Namespace)
	if err != nil {
		return err
	}
	server := netip.AddrPortFrom(s.lab.Server.IPv4, lab.HTTPPort)
	undo, err := startSynproxy(ctx, s.lab.Edge.Namespace, "forward", server, scale)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, undo)
	return nil
}

// siege is a flood and the requests beside it.
type siege struct {
	away     time.Duration // of the clients, a round trip
	flood    lab.Rate      // 0: none
	rate     int           // requests per second
	duration time.Duration
	timeout  time.Duration // of a request
	body     int           // bytes that it asks for
	// apart is how long it takes each client to come again: each comes twice.
	apart time.Duration
	again bool // who is reset tries once more, at once
}

// settle is how long a flood fills queues before the first request.
const settle = 100 * time.Millisecond

// crowdSize is how many clients a lab has addresses for.
const crowdSize = 1<<16 - 1

// endured is what a site has shown.
type endured struct {
	benign            lab.LoadReport
	offered, answered float64 // SYN/s
	wire              badwire.Counts
}

// endure has clients that the site has not met make requests beside a flood.
func (s *site) endure(ctx context.Context, c siege) (shown endured, err error) {
	if err := s.moveClients(c.away); err != nil {
		return shown, err
	}
	if c.flood == 0 {
		err = s.serve(ctx, c, &shown)
		return shown, err
	}
	flood, err := s.lab.StartFlood(lab.FloodOptions{Rate: c.flood, Limit: c.duration + time.Minute})
	if err != nil {
		return shown, err
	}
	defer func() { err = errors.Join(err, flood.Stop()) }()
	if err := wait(ctx, settle); err != nil {
		return shown, err
	}
	before, err := s.tally(flood)
	if err != nil {
		return shown, err
	}
	if err := s.serve(ctx, c, &shown); err != nil {
		return shown, err
	}
	after, err := s.tally(flood)
	seconds := after.at.Sub(before.at).Seconds()
	shown.offered = float64(after.offered-before.offered) / seconds
	shown.answered = float64(after.answered-before.answered) / seconds
	return shown, err
}

// tally counts what was sent, and what came back: SYN-ACKs, or the challenges of
// who sends none.
func (s *site) tally(flood *lab.Flood) (counts, error) {
	offered, err := flood.Offered()
	if err != nil {
		return counts{}, err
	}
	back, err := s.sink.Counts()
	return counts{at: time.Now(), offered: offered, answered: back.SYNACKs + back.TCP}, err
}

// load is what the clients of a siege do, who are none of those before.
func (c siege) load(met int) (options lab.LoadOptions, meets int) {
	const visits = 2
	batch := max(1, int(float64(c.rate)*c.apart.Seconds()))
	requests := int(float64(c.rate) * c.duration.Seconds())
	batches := (requests + visits*batch - 1) / (visits * batch)
	return lab.LoadOptions{
		Rate: c.rate, Duration: c.duration, Timeout: c.timeout, Workers: c.workers(),
		Crowd: lab.Crowd4, Batch: batch, Visits: visits, Skip: met, Again: c.again,
	}, batches * batch
}

// workers are as many as there can be requests under way: none waits for one.
func (c siege) workers() int { return int(float64(c.rate)*c.timeout.Seconds()) + c.rate/10 }

func (s *site) serve(ctx context.Context, c siege, shown *endured) error {
	options, meets := c.load(s.met)
	if s.met += meets; s.met > crowdSize {
		return fmt.Errorf("%d clients are more than a lab has addresses for", s.met)
	}
	options.URL = s.lab.URL(false) + strconv.Itoa(c.body)
	before := s.wire()
	load, err := s.lab.StartLoad(ctx, options)
	if err != nil {
		return err
	}
	if shown.benign, err = load.Wait(); err != nil {
		return err
	}
	after := s.wire()
	shown.wire = badwire.Counts{Passed: after.Passed - before.Passed, Late: after.Late - before.Late, Overload: after.Overload - before.Overload}
	return nil
}

// wire is what the clients' wire has done so far, in both directions.
func (s *site) wire() badwire.Counts {
	if s.lab.Wire == nil {
		return badwire.Counts{}
	}
	both := s.lab.Wire.Counts()
	return both[0].Plus(both[1])
}
