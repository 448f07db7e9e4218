package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Case is one run: a defence, a flood and a benign load at the same time.
type Case struct {
	Defence  string
	Flood    Rate // 0: none
	Kind     Kind // of the flood's packets
	Profile  Profile
	Duration time.Duration
	IPv6     bool
	Load     LoadOptions // URL and Duration are filled in
	// Steps happen while the load runs, in this order.
	Steps []Step
	// Progress, if not nil, is called several times a second.
	Progress func(Sample)
}

// Step is something that happens in the middle of a case.
type Step struct {
	After time.Duration // from the begin of the load, to a quarter of a second
	Do    func(*Lab) error
}

// Sample is how a case stands.
type Sample struct {
	Elapsed  time.Duration
	Offered  float64 // packets per second since the last sample
	Answered float64
	Benign   LoadReport
}

// sampleEvery is how often Progress is called.
const sampleEvery = 250 * time.Millisecond

// A flood fills the server's queue of half-open connections before the load
// begins: this many packets, or this long.
const (
	settlePackets = 20_000
	settleLimit   = 2 * time.Second
)

// Run makes one case: it starts server and defence, lets the flood settle,
// measures while the load runs, and stops them all.
func (l *Lab) Run(ctx context.Context, c Case) (report Report, err error) {
	server, err := l.StartServer(ctx)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	guard, err := l.Defend(ctx, c.Defence)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, guard.Stop()) }()
	sink, err := l.NewSink()
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	run := &run{lab: l, option: c, guard: guard, sink: sink, server: append(guard.onServer(), server)}
	defer func() { err = errors.Join(err, run.stopFlood()) }()
	if err := run.startFlood(ctx); err != nil {
		return Report{}, err
	}
	return run.measure(ctx)
}

// run is a case under way.
type run struct {
	lab    *Lab
	option Case
	guard  *Guard
	flood  *Flood        // nil without a flood
	begun  time.Duration // when the flood's first packets were seen, monotonic
	sink   *Sink
	server []*Process // that run on the server
}

// reading is the state of all counters at one time.
type reading struct {
	at      time.Time
	offered uint64
	sink    SinkCounts
	busy    time.Duration // CPU time of the server's processes
}

func (r *run) startFlood(ctx context.Context) error {
	if r.option.Flood == 0 {
		return nil
	}
	var err error
	r.flood, err = r.lab.StartFlood(FloodOptions{
		Kind:    r.option.Kind,
		Rate:    r.option.Flood,
		Profile: r.option.Profile,
		IPv6:    r.option.IPv6,
		Limit:   r.option.Duration + time.Minute,
	})
	if err != nil {
		return err
	}
	return r.settle(ctx)
}

func (r *run) settle(ctx context.Context) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	limit := time.NewTimer(settleLimit)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.flood.Done():
			return errors.Join(r.stopFlood(), errors.New("the flood has ended by itself"))
		case <-limit.C:
			return nil
		case <-ticker.C:
			offered, err := r.flood.Offered()
			if offered > 0 && r.begun == 0 {
				r.begun = monotonic()
			}
			if err != nil || offered >= settlePackets {
				return err
			}
		}
	}
}

func (r *run) stopFlood() error {
	if r.flood == nil {
		return nil
	}
	flood := r.flood
	r.flood = nil
	return flood.Stop()
}

func (r *run) read() (now reading, err error) {
	now.at = time.Now()
	if r.flood != nil {
		if now.offered, err = r.flood.Offered(); err != nil {
			return reading{}, err
		}
	}
	if now.sink, err = r.sink.Counts(); err != nil {
		return reading{}, err
	}
	now.busy, err = cpuTime(r.server)
	return now, err
}

// measure runs the load and reports what happened between its begin and end.
func (r *run) measure(ctx context.Context) (Report, error) {
	options := r.option.Load
	options.URL, options.Duration = r.lab.URL(r.option.IPv6), r.option.Duration
	options.Again = r.guard.defence.resets
	if options.Crowd = Crowd4; r.option.IPv6 {
		options.Crowd = Crowd6
	}
	first, err := r.read()
	if err != nil {
		return Report{}, err
	}
	load, err := r.lab.StartLoad(ctx, options)
	if err != nil {
		return Report{}, err
	}
	if err := r.watch(ctx, load.Done(), load.Report, first); err != nil {
		return Report{}, err
	}
	last, err := r.read()
	if err != nil {
		return Report{}, err
	}
	benign, err := load.Wait()
	if err != nil {
		return Report{}, err
	}
	report, err := r.report(benign, first, last)
	if err != nil {
		return Report{}, err
	}
	report.Detector, err = r.detector(ctx)
	return report, err
}

// watch samples until what is watched has ended.
func (r *run) watch(ctx context.Context, done <-chan struct{}, benign func() LoadReport, first reading) error {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	before := first
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-done:
			return nil
		case <-ticker.C:
			now, err := r.read()
			if err != nil {
				return err
			}
			if err := r.step(now.at.Sub(first.at)); err != nil {
				return err
			}
			if r.option.Progress != nil {
				r.option.Progress(sample(first, before, now, benign()))
			}
			before = now
		}
	}
}

// step does what is due.
func (r *run) step(elapsed time.Duration) error {
	for len(r.option.Steps) > 0 && r.option.Steps[0].After <= elapsed {
		due := r.option.Steps[0]
		r.option.Steps = r.option.Steps[1:]
		if err := due.Do(r.lab); err != nil {
			return err
		}
	}
	return nil
}

func sample(first, before, now reading, benign LoadReport) Sample {
	seconds := now.at.Sub(before.at).Seconds()
	return Sample{
		Elapsed:  now.at.Sub(first.at),
		Offered:  float64(now.offered-before.offered) / seconds,
		Answered: float64(now.sink.SYNACKs-before.sink.SYNACKs) / seconds,
		Benign:   benign,
	}
}

// FloodUntilDone floods until the options' limit or the end of the context,
// and shows how many packets are offered and answered per second.
func (l *Lab) FloodUntilDone(ctx context.Context, options FloodOptions, show func(Sample)) (err error) {
	sink, err := l.NewSink()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	flood, err := l.StartFlood(options)
	if err != nil {
		return err
	}
	run := &run{lab: l, flood: flood, sink: sink, option: Case{Progress: show}}
	defer func() { err = errors.Join(err, run.stopFlood()) }()
	first, err := run.read()
	if err != nil {
		return err
	}
	nothing := func() LoadReport { return LoadReport{} }
	if err := run.watch(ctx, flood.Done(), nothing, first); ctx.Err() == nil {
		return err
	}
	return nil // interrupted is a way to end it
}

func (r *run) report(benign LoadReport, first, last reading) (Report, error) {
	seconds := last.at.Sub(first.at).Seconds()
	back := last.sink.minus(first.sink)
	report := Report{
		Defence: r.option.Defence,
		IPv6:    r.option.IPv6,
		Seconds: seconds,
		Benign:  benign,
		Flood: FloodReport{
			Kind:        r.option.Kind.String(),
			Rate:        r.option.Flood.String(),
			Offered:     last.offered - first.offered,
			OfferedPPS:  float64(last.offered-first.offered) / seconds,
			Answered:    back.SYNACKs,
			AnsweredPPS: float64(back.SYNACKs) / seconds,
			Back:        back,
		},
		Wires: r.lab.wireCounts(),
	}
	edge, err := r.guard.EdgeVerdicts()
	if err != nil {
		return Report{}, fmt.Errorf("read the edge's verdicts: %w", err)
	}
	server, err := r.guard.ServerVerdicts()
	if err != nil {
		return Report{}, fmt.Errorf("read the server's verdicts: %w", err)
	}
	report.Edge.Verdicts = edge
	report.Server = ServerReport{
		Setups:     setups(server),
		Verdicts:   server,
		CPUPercent: 100 * (last.busy - first.busy).Seconds() / seconds,
	}
	return report, nil
}

// setups adds up the verdicts that made a connection.
func setups(verdicts map[string]uint64) (total uint64) {
	for name, n := range verdicts {
		if strings.HasPrefix(name, "setup") {
			total += n
		}
	}
	return total
}
