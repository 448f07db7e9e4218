package bench

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// group is a cell's site.
func group(c evaluation.Cell) place { return place{c.Round, c.Subject} }

func TestLatencyMakesEachSiteOnceARound(t *testing.T) {
	for effort, limit := range map[evaluation.Effort]time.Duration{evaluation.Quick: 35 * time.Second, evaluation.Full: 10 * time.Minute} {
		cells := Latency().Prepare(effort).Cells
		seen, groups, attacked := map[evaluation.CellID]bool{}, map[place]bool{}, map[place]bool{}
		last, takes := place{}, time.Duration(0)
		for _, c := range cells {
			if seen[c.CellID] {
				t.Errorf("%s: %s comes twice", effort, c.CellID)
			}
			seen[c.CellID] = true
			if peace := strings.Contains(c.Case, attackName(0)); peace && attacked[group(c)] {
				t.Errorf("%s: %s comes after an attack", effort, c.CellID)
			} else if !peace {
				attacked[group(c)] = true
			}
			if g := group(c); g != last {
				if groups[g] {
					t.Errorf("%s: the site of %s is made twice", effort, c.CellID)
				}
				groups[g], last = true, g
			}
			takes += c.Takes
		}
		if t.Logf("%s: %d cells, %s", effort, len(cells), takes); takes > limit || takes < limit/3 {
			t.Errorf("%s takes %s", effort, takes)
		}
	}
}

func TestSubjectsTakeTurnsAsTheFirst(t *testing.T) {
	first := map[int]string{}
	for _, c := range Latency().Prepare(evaluation.Full).Cells {
		if _, ok := first[c.Round]; !ok {
			first[c.Round] = c.Subject
		}
	}
	if len(first) < 2 || first[0] == first[1] {
		t.Errorf("rounds begin with %v", first)
	}
}

func TestClientsOfASiegeComeTwiceAndAreNew(t *testing.T) {
	c := siege{rate: 500, duration: 1200 * time.Millisecond, apart: 600 * time.Millisecond, timeout: 2 * time.Second}
	options, meets := c.load(7)
	if options.Batch != 300 || options.Visits != 2 || options.Skip != 7 || meets != 300 || options.Workers < 1000 {
		t.Errorf("%+v meets %d", options, meets)
	}
	c.apart = 500 * time.Millisecond // 600 requests end within the second batch's first ones
	if options, meets = c.load(0); options.Batch != 250 || meets != 500 {
		t.Errorf("%+v meets %d", options, meets)
	}
}

func contact(requests, ok uint64, ms float64) lab.ContactReport {
	return lab.ContactReport{Requests: requests, OK: ok, P50: ms, P90: 2 * ms, P99: 3 * ms}
}

func report(first, later lab.ContactReport, missed uint64) lab.LoadReport {
	return lab.LoadReport{Requests: first.Requests + later.Requests, OK: first.OK + later.OK, First: first, Later: later, Missed: missed}
}

func TestFiguresOfASiege(t *testing.T) {
	e := endured{
		benign: report(contact(100, 99, 10), contact(90, 19, 1), 10), offered: 200, answered: 50,
		wire: badwire.Counts{Passed: 1000, Late: 5},
	}
	got, err := e.figures(siege{flood: 200})
	want := evaluation.Figures{
		servedPercent: 59, "first_p50_ms": 10, "first_p90_ms": 20, offeredRate: 200, answeredPercent: 25, latePercent: 0.5,
	}
	if err != nil || len(got) != len(want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for name, value := range want {
		if math.Abs(got[name]-value) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got[name], value)
		}
	}
}

func TestSiegesThatSayNothingAreRefused(t *testing.T) {
	all := contact(100, 100, 1)
	challenged := all
	challenged.Repeated = 100
	refused := report(all, contact(100, 0, 0), 0)
	refused.Errors = map[string]uint64{"refused": 100}
	for name, test := range map[string]struct {
		c siege
		e endured
		w string // in the error; empty: none
	}{
		"no later ones":       {siege{}, endured{benign: report(all, lab.ContactReport{}, 0)}, "0 later ones"},
		"nobody comes again":  {siege{flood: 1}, endured{benign: report(contact(100, 0, 0), lab.ContactReport{}, 0)}, ""},
		"a failure in peace":  {siege{}, endured{benign: report(all, contact(100, 79, 1), 0)}, "179 of 200"},
		"missed in peace":     {siege{}, endured{benign: report(all, all, 30)}, "200 of 230"},
		"a failure in war":    {siege{flood: 1}, endured{benign: report(all, contact(100, 7, 1), 0)}, ""},
		"known clients":       {siege{again: true}, endured{benign: report(all, all, 0)}, "were known"},
		"challenged clients":  {siege{again: true}, endured{benign: report(challenged, all, 0)}, ""},
		"no server":           {siege{flood: 1}, endured{benign: refused}, "there is no server"},
		"an overloaded wire":  {siege{}, endured{benign: report(all, all, 0), wire: badwire.Counts{Overload: 1}}, "lost 1 frames"},
		"nobody was answered": {siege{flood: 1}, endured{benign: report(contact(9, 0, 0), contact(9, 0, 0), 0)}, ""},
	} {
		_, err := test.e.figures(test.c)
		if (err == nil) != (test.w == "") || err != nil && !strings.Contains(err.Error(), test.w) {
			t.Errorf("%s: %v, want %q", name, err, test.w)
		}
	}
}

// shownOf invents what all cells have taken: latencies are the protection's number
// in ms, and who costs most is never offered 800,000 SYN/s.
func shownOf(effort evaluation.Effort) (*latency, evaluation.Taken) {
	l := &latency{plan: planLatency(effort), all: protections()}
	taken := evaluation.Taken{}
	for _, c := range l.cells() {
		i := slices.IndexFunc(l.all, func(p *protection) bool { return p.name == c.Subject })
		f := evaluation.Figures{servedPercent: 100, offeredRate: 790_000, answeredPercent: 50}
		if i == 0 && strings.Contains(c.Case, "800 k") {
			f[offeredRate] = 630_000
		}
		if strings.Contains(c.Case, "1.6 M") || strings.Contains(c.Case, "as many") {
			f[offeredRate] = 1_600_000
		}
		for _, p := range percentiles {
			f[firstContacts+p.name], f[laterContacts+p.name] = float64(i+1), float64(i+1)
		}
		taken[c.CellID] = f
	}
	return l, taken
}

func TestLatencyPanels(t *testing.T) {
	id := regexp.MustCompile(`^[a-z0-9-]+$`)
	for _, effort := range []evaluation.Effort{evaluation.Quick, evaluation.Full} {
		l, taken := shownOf(effort)
		panels := map[string]evaluation.Panel{}
		for _, p := range l.panels(taken) {
			if _, twice := panels[p.ID]; twice || !id.MatchString(p.ID) || p.Title == "" || p.Y.Label == "" {
				t.Errorf("%s: panel %+v", effort, p)
			}
			for _, s := range p.Series {
				if len(s.Points) == 0 {
					t.Errorf("%s: %s has no points of %s", effort, p.ID, s.Subject)
				}
			}
			panels[p.ID] = p
		}
		for _, leg := range l.plan.legs {
			for _, g := range latencyGraphs("") {
				if p := l.graph(taken, g, leg); len(panels[p.ID].Series) != len(l.all) {
					t.Errorf("%s: %s has %d series", effort, p.ID, len(panels[p.ID].Series))
				}
			}
		}
		for _, want := range []string{"e2-quoted", "e2-tail-first", "e2-tail-later", "e2-answered-0", "e2-offered", "e2-extreme"} {
			if panels[want].ID == "" {
				t.Errorf("%s: no panel %s", effort, want)
			}
		}
		if empty := l.panels(evaluation.Taken{}); len(empty) > 0 {
			t.Errorf("%s: %d panels of nothing", effort, len(empty))
		}
	}
}

// One round of two in which something else took the CPU is no part of a figure.
func TestRoundsThatWereNotReachedHaveNoPart(t *testing.T) {
	l, taken := shownOf(evaluation.Full)
	id := evaluation.CellID{Subject: "split", Case: caseName(near, l.plan.quoted), Round: 0}
	taken[id][offeredRate] = 70_000
	for _, s := range l.quoted(taken).Series {
		want := 2
		if s.Subject == "split" {
			want = 1
		}
		if rounds := len(s.Points[0].Rounds); rounds != want {
			t.Errorf("%s has %d rounds, want %d", s.Subject, rounds, want)
		}
	}
}

func TestRatesThatWereNotReachedHaveNoPoint(t *testing.T) {
	l, taken := shownOf(evaluation.Full)
	for _, s := range l.graph(taken, answeredGraph, l.plan.legs[0]).Series {
		reached := slices.ContainsFunc(s.Points, func(p evaluation.Point) bool { return p.X == 800_000 })
		if want := s.Subject != l.all[0].name; reached != want {
			t.Errorf("%s: a point at 800,000 SYN/s: %t", s.Subject, reached)
		}
	}
}

// A machine without nft has the other defences.
func TestMissingPeerIsToldAsMissing(t *testing.T) {
	t.Setenv("PATH", "")
	_, err := startSynproxy(t.Context(), nil, "forward", flowsOf()[0].Destination, 7)
	var missing *evaluation.Missing
	if !errors.As(err, &missing) {
		t.Errorf("%v", err)
	}
}
