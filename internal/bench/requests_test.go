package bench

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"smartcookie/internal/evaluation"
)

// bothEfforts are what trials are planned for.
var bothEfforts = []evaluation.Effort{evaluation.Full, evaluation.Quick}

func panelOf(t *testing.T, all []evaluation.Panel, id string) evaluation.Panel {
	t.Helper()
	i := slices.IndexFunc(all, func(p evaluation.Panel) bool { return p.ID == id })
	if i < 0 {
		t.Fatalf("no panel %s", id)
	}
	return all[i]
}

func seriesOf(t *testing.T, p evaluation.Panel, subject string) evaluation.Series {
	t.Helper()
	i := slices.IndexFunc(p.Series, func(s evaluation.Series) bool { return s.Subject == subject })
	if i < 0 {
		t.Fatalf("%s has no %s", p.ID, subject)
	}
	return p.Series[i]
}

func TestEverybodyComesFirst(t *testing.T) {
	first := make(map[int]string)
	turns([]string{"one", "two", "three"}, 3, func(s string, round int) {
		if first[round] == "" {
			first[round] = s
		}
	})
	if first[0] != "one" || first[1] != "two" || first[2] != "three" {
		t.Errorf("first in their rounds: %v", first)
	}
}

func TestNoRequestsAreMeasuredTwice(t *testing.T) {
	for _, effort := range bothEfforts {
		for _, e := range []evaluation.Experiment{Requests(), Linux()} {
			seen, rounds := make(map[evaluation.CellID]bool), make(map[string]int)
			for _, c := range e.Prepare(effort).Cells {
				if seen[c.CellID] || c.Takes <= 0 || c.Measure == nil {
					t.Errorf("%s, %s: %s is planned twice, or takes no time", e.ID, effort, c.CellID)
				}
				seen[c.CellID] = true
				rounds[c.Subject+c.Case]++
			}
			if len(rounds) == len(seen) && effort == evaluation.Full {
				t.Errorf("%s has one round", e.ID)
			}
		}
	}
}

// everyCell has for each cell of a trial what figures says.
func everyCell(cells []evaluation.Cell, figures func(evaluation.CellID) evaluation.Figures) evaluation.Taken {
	taken := make(evaluation.Taken)
	for _, c := range cells {
		taken[c.CellID] = figures(c.CellID)
	}
	return taken
}

func TestThroughputIsDrawnAgainstTheMost(t *testing.T) {
	for _, effort := range bothEfforts {
		x := newRequests(effort)
		taken := everyCell(x.cells(), func(id evaluation.CellID) evaluation.Figures {
			f := evaluation.Figures{transactions: 5000 + float64(id.Round), answered: 1_000_000}
			switch {
			case id.Case == noFlood.String() && id.Subject == splitOwn:
				f[transactions] = 8000
			case id.Case == noFlood.String():
				f[transactions] = 10_000
			case id.Subject == passiveHost || id.Subject == noProgramAgain:
				f[transactions] *= 0.9
			}
			switch {
			case id.Subject == hostOwn && id.Case == fullFlood.String():
				f[answered] = 3_000_000 // less than it answers of fewer
			case id.Subject == hostOwn:
				f[answered] = 4_000_000
			}
			return f
		})
		panels := x.panels(taken)
		points := seriesOf(t, panelOf(t, panels, "e5-shares"), splitOwn).Points
		if len(points) != len(x.pressures)-1 { // what came at full rate is no rate
			t.Fatalf("%s: points %v", effort, points)
		}
		if points[0].X != 0 || points[0].Median != 80 {
			t.Errorf("%s: without a flood %+v, want 80%% of the most at 0", effort, points[0])
		}
		last := points[len(points)-1]
		if want := 100 * float64(x.pressures[len(points)-1]) / 4e6; last.X != want || math.Abs(last.Median-50) > 0.1 {
			t.Errorf("%s: last %+v, want 50%% at %v%%", effort, last, want)
		}
		if got := seriesOf(t, panelOf(t, panels, "e5-absorbed-ratio"), hostOwn).Points[0]; got.Median != 4 || len(got.Rounds) != x.rounds {
			t.Errorf("%s: absorbed %+v, want 4 times as much in %d rounds", effort, got, x.rounds)
		}
		waits := panelOf(t, panels, "e5-passive")
		if got := seriesOf(t, waits, passiveHost).Points[0]; math.Abs(got.Median-0.9) > 1e-9 || len(got.Rounds) != x.calmRounds {
			t.Errorf("%s: passive %+v, want 0.9", effort, got)
		}
		if first := waits.Series[0]; first.Subject != noProgramAgain || math.Abs(first.Points[0].Median-0.9) > 1e-9 {
			t.Errorf("%s: first %+v, want chance", effort, first)
		}
		if got := seriesOf(t, waits, alwaysHost).Points[0]; got.Median != 1 {
			t.Errorf("%s: always on %+v, want 1", effort, got)
		}
	}
}

func TestNothingTakenIsNothingDrawn(t *testing.T) {
	for _, panels := range [][]evaluation.Panel{newRequests(evaluation.Quick).panels(nil), newLinuxAlone(evaluation.Quick).panels(nil)} {
		for _, p := range panels {
			if len(p.Series) > 0 {
				t.Errorf("%s: %v", p.ID, p.Series)
			}
		}
	}
}

func TestFloodsHaveNames(t *testing.T) {
	for p, want := range map[pressure]string{noFlood: "no flood", 250_000: "250 k SYN/s", fullFlood: "as many SYNs as there can be"} {
		if got := p.String(); got != want {
			t.Errorf("%d: %q, want %q", p, got, want)
		}
	}
}

func TestFloodOfAnotherRateSaysNothing(t *testing.T) {
	for _, test := range []struct {
		at      pressure
		offered float64
		sound   bool
	}{
		{100_000, 100_000, true}, {100_000, 86_000, true}, {100_000, 84_000, false}, {100_000, 116_000, false},
		{noFlood, 0, true}, {noFlood, 3, true}, {fullFlood, 1e6, true},
	} {
		if err := test.at.sound(test.offered); (err == nil) != test.sound {
			t.Errorf("%s, %v offered: %v", test.at, test.offered, err)
		}
	}
}

func TestSomethingIsShownOfEverybody(t *testing.T) {
	requests, linux := newRequests(evaluation.Quick), newLinuxAlone(evaluation.Quick)
	figures := func(id evaluation.CellID) evaluation.Figures {
		f := shareOut([]stack{{0, nil}}, nil, 1)
		for _, name := range []string{transactions, answered, answeredPerS, requestsServed, "offered_per_s"} {
			f[name] = 1
		}
		return f
	}
	for _, x := range []struct {
		cells  []evaluation.Cell
		panels func(evaluation.Taken) []evaluation.Panel
	}{{requests.cells(), requests.panels}, {linux.cells(), linux.panels}} {
		var shown []string
		for _, p := range x.panels(everyCell(x.cells, figures)) {
			for _, s := range p.Series {
				shown = append(shown, s.Subject)
			}
		}
		for _, c := range x.cells {
			if !slices.ContainsFunc(shown, func(name string) bool { return strings.Contains(name, c.Subject) }) {
				t.Errorf("nothing is shown of %s", c.Subject)
			}
		}
	}
}

func TestUnevenFloodIsTriedAgain(t *testing.T) {
	for failures, want := range map[int]int{0: 1, 2: 3, 9: unevenLimit} {
		tries := 0
		_, err := even(func() (evaluation.Figures, error) {
			tries++
			if tries <= failures {
				return nil, pressure(100).sound(1)
			}
			return nil, nil
		})
		if tries != want || (err != nil) != (failures >= unevenLimit) {
			t.Errorf("%d failures: %d tries, %v", failures, tries, err)
		}
	}
	tries, broken := 0, errors.New("broken")
	if _, err := even(func() (evaluation.Figures, error) { tries++; return nil, broken }); tries != 1 || !errors.Is(err, broken) {
		t.Errorf("what is broken otherwise was tried %d times: %v", tries, err)
	}
}

// Whoever waits answers no SYN, and whoever is always on all: the experiment sees
// to that itself.
func TestTransactionsAreMadeThroughEachDefence(t *testing.T) {
	needRoot(t)
	x := newRequests(evaluation.Quick)
	defer func() {
		if err := x.stations.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, p := range waiting() {
		f, err := x.calm(t.Context(), p)
		if err != nil || f[transactions] <= 0 {
			t.Errorf("%s: %v, %v", p.name, f, err)
		}
	}
	for _, p := range defended() {
		f, err := x.flooded(t.Context(), p, fullFlood)
		if err != nil || f[answered] <= 0 || f[answered] > 1.01*f["offered_per_s"] {
			t.Errorf("%s: %v, %v", p.name, f, err)
		}
	}
}
