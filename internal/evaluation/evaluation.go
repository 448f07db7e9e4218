// Package evaluation reproduces the experiments of the papers beside the peers
// of today, and writes what they show: raw figures, tables, and a report that a
// person can read without the papers.
//
// An experiment is a list of cells. Each measures one subject in one case and one
// round; cells of a round take turns, so that subjects see the same noise. What a
// cell has taken is kept at once: a run that is interrupted goes on from there.
package evaluation

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Effort is how long a run may take.
type Effort int

const (
	Full  Effort = iota // rounds enough for figures to be quoted
	Quick               // minutes: shows that everything runs, and the shape
)

func (e Effort) String() string {
	return map[Effort]string{Full: "full", Quick: "quick"}[e]
}

// Experiment answers one question with figures.
type Experiment struct {
	ID         string // E1
	Title      string
	Reproduces string // figures of the papers
	Question   string // that it answers
	// Prepare plans the cells. Nothing is measured, made or loaded yet.
	Prepare func(Effort) *Trial
}

// Trial is an experiment on its way.
type Trial struct {
	Cells []Cell // in the order in which they are measured
	// Panels makes of what the cells have taken what the report shows; some may be
	// missing.
	Panels func(Taken) []Panel
	// Notes say what ran where, and what differs from the papers.
	Notes []string
	// Close removes what the cells have made; nil: nothing.
	Close func() error
}

// CellID names a cell within its experiment.
type CellID struct {
	Subject string `json:"subject"` // a defence, a peer, a floor
	Case    string `json:"case"`
	Round   int    `json:"round"`
}

func (c CellID) String() string {
	return fmt.Sprintf("%s, %s, round %d", c.Subject, c.Case, c.Round+1)
}

// Cell is the smallest thing that is measured.
type Cell struct {
	CellID
	Takes   time.Duration // about
	Measure func(context.Context) (Figures, error)
}

// Figures are what a cell has taken, by a name that ends with the unit.
type Figures map[string]float64

// check finds what is no number, of which JSON has none and a report says nothing.
func (f Figures) check() error {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if math.IsNaN(f[name]) || math.IsInf(f[name], 0) {
			return fmt.Errorf("%s is no number: %v", name, f[name])
		}
	}
	return nil
}

// Missing is the error of a cell whose subject this machine does not have.
type Missing struct{ Why string }

func (m *Missing) Error() string { return m.Why }

// Taken are the figures of the cells that have been measured.
type Taken map[CellID]Figures

// Rounds are one figure of a subject in a case, round by round; rounds that were
// not measured are left out.
func (t Taken) Rounds(subject, in, figure string) []float64 {
	var all []float64
	for round := range t.rounds(subject, in) {
		if value, ok := t[CellID{subject, in, round}][figure]; ok {
			all = append(all, value)
		}
	}
	return all
}

// RatioRounds are a figure of one subject divided by the same of another one, for
// the rounds that have both.
func (t Taken) RatioRounds(of, by, in, figure string) []float64 {
	var all []float64
	for round := range t.rounds(of, in) {
		above, ok := t[CellID{of, in, round}][figure]
		below := t[CellID{by, in, round}][figure]
		if ok && below != 0 {
			all = append(all, above/below)
		}
	}
	return all
}

// rounds is how many a subject has in a case, with those between that are missing.
func (t Taken) rounds(subject, in string) (n int) {
	for id := range t {
		if id.Subject == subject && id.Case == in {
			n = max(n, id.Round+1)
		}
	}
	return n
}

// Ratios divides round by round, as far as both have rounds and there is something
// to divide by.
func Ratios(of, by []float64) []float64 {
	all := make([]float64, 0, min(len(of), len(by)))
	for i := range min(len(of), len(by)) {
		if by[i] != 0 {
			all = append(all, of[i]/by[i])
		}
	}
	return all
}
