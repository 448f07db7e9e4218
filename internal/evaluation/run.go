package evaluation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Options are how a run is made.
type Options struct {
	Dir         string // of the results
	Effort      Effort
	Experiments []Experiment
	Only        []string         // experiments to be measured; empty: all
	Traffic     string           // what benign traffic is like; runs with other traffic are others
	Progress    func(Progress)   // before each cell; nil: none
	Now         func() time.Time // nil: time.Now
}

// Progress is how a run stands.
type Progress struct {
	Experiment  string
	Cell        CellID
	Done, Total int // cells
	Left        time.Duration
}

// planned is an experiment of a run.
type planned struct {
	Experiment
	trial    *Trial
	chosen   bool // to be measured by this start
	failures []Failure
	failed   map[CellID]bool
}

// run is a run under way.
type run struct {
	Options
	store *store
	plan  []*planned

	// What the cells of this start were thought to take, and took.
	thought, took time.Duration
}

// Run measures what is not in the directory yet, writes all of it there, and
// returns the results: those of experiments that were measured there earlier, too.
// The error of a cell does not end the run, the context does: what has been
// measured by then is written all the same.
func Run(ctx context.Context, o Options) (results Results, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &run{Options: o}
	if r.store, err = openStore(o.Dir, header{SchemaVersion, o.Effort.String(), o.Traffic, ThisMachine(), o.Now().UTC()}); err != nil {
		return Results{}, err
	}
	defer func() { err = errors.Join(err, r.store.file.Close()) }()
	for _, e := range o.Experiments {
		chosen := len(o.Only) == 0 || slices.Contains(o.Only, e.ID)
		if !chosen && !r.store.knows(e.ID) {
			continue
		}
		r.plan = append(r.plan, &planned{Experiment: e, trial: e.Prepare(o.Effort), chosen: chosen, failed: make(map[CellID]bool)})
	}
	for _, p := range r.plan {
		if err = r.measure(ctx, p); err != nil {
			break
		}
	}
	results = r.results()
	return results, errors.Join(err, results.write(o.Dir))
}

func (r *run) measure(ctx context.Context, p *planned) (err error) {
	if !p.chosen {
		return nil
	}
	if p.trial.Close != nil {
		defer func() { err = errors.Join(err, p.trial.Close()) }()
	}
	for _, c := range p.trial.Cells {
		if r.store.has(p.ID, c.CellID) {
			continue
		}
		r.tell(p, c)
		if err := r.cell(ctx, p, c); err != nil {
			return err
		}
	}
	return nil
}

// cell measures one. What it could not is told, and tried again by the next run;
// what ended because the run was to end is no failure.
func (r *run) cell(ctx context.Context, p *planned, c Cell) error {
	begun := r.Now()
	figures, err := c.Measure(ctx)
	took := r.Now().Sub(begun)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		err = figures.check()
	}
	kept := record{Experiment: p.ID, CellID: c.CellID, Figures: figures, Seconds: took.Seconds()}
	var missing *Missing
	switch {
	case errors.As(err, &missing):
		kept.Figures, kept.Absent = nil, missing.Why
	case err != nil:
		p.failures = append(p.failures, Failure{Cell: c.CellID.String(), Error: err.Error()})
		p.failed[c.CellID] = true
		return nil
	default:
		r.thought, r.took = r.thought+c.Takes, r.took+took
	}
	if err := r.store.keep(kept); err != nil {
		return fmt.Errorf("%s, %s: %w", p.ID, c.CellID, err)
	}
	return nil
}

// tell says what comes now, and how long the rest may take: as the cells are
// thought to, corrected by how wrong that was so far.
func (r *run) tell(p *planned, c Cell) {
	if r.Progress == nil {
		return
	}
	now := Progress{Experiment: p.ID, Cell: c.CellID}
	for _, p := range r.plan {
		if !p.chosen {
			continue
		}
		for _, c := range p.trial.Cells {
			now.Total++
			if r.store.has(p.ID, c.CellID) || p.failed[c.CellID] {
				now.Done++
			} else {
				now.Left += c.Takes
			}
		}
	}
	if r.thought > 0 {
		now.Left = time.Duration(float64(now.Left) * float64(r.took) / float64(r.thought))
	}
	r.Progress(now)
}

func (r *run) results() Results {
	all := Results{
		Schema: SchemaVersion, Effort: r.Effort.String(), Traffic: r.Traffic, Machine: r.store.header.Machine,
		Started: r.store.header.Started, Ended: r.Now().UTC(), Experiments: []Outcome{},
	}
	for _, p := range r.plan {
		all.Experiments = append(all.Experiments, r.outcome(p))
	}
	return all
}

func (r *run) outcome(p *planned) Outcome {
	o := Outcome{
		ID: p.ID, Title: p.Title, Reproduces: p.Reproduces, Question: p.Question, Planned: len(p.trial.Cells),
		Notes: append([]string{}, p.trial.Notes...), Panels: []Panel{}, Absent: []Absence{}, Failures: append([]Failure{}, p.failures...),
	}
	for _, c := range p.trial.Cells {
		if r.store.done(p.ID, c.CellID) {
			o.Measured++
		}
	}
	for _, panel := range p.trial.Panels(r.store.kept[p.ID]) {
		if len(panel.Series) > 0 { // of nothing there is no plot
			o.Panels = append(o.Panels, panel)
		}
	}
	absent := r.store.absent[p.ID]
	for _, subject := range slices.Sorted(maps.Keys(absent)) {
		o.Absent = append(o.Absent, Absence{Subject: subject, Why: absent[subject]})
	}
	return o
}

// Failed lists the cells that could not be measured.
func (r Results) Failed() (all []string) {
	for _, e := range r.Experiments {
		for _, f := range e.Failures {
			all = append(all, fmt.Sprintf("%s: %s: %s", e.ID, f.Cell, f.Error))
		}
	}
	return all
}
