package evaluation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// clock goes a second further each time that it is read.
func clock() func() time.Time {
	at := time.Unix(1_700_000_000, 0)
	return func() time.Time { at = at.Add(time.Second); return at }
}

// invented is an experiment whose cells take what the test says.
type invented struct {
	measured []CellID
	fails    map[CellID]error
	closed   int
	come     bool // who was absent
}

func (v *invented) experiment() Experiment {
	return Experiment{
		ID: "E0", Title: "invented", Reproduces: "nothing", Question: "Does it run?",
		Prepare: func(Effort) *Trial {
			trial := &Trial{Notes: []string{"A note."}, Close: func() error { v.closed++; return nil }, Panels: v.panels}
			for round := range 3 {
				for _, subject := range []string{"ours", "peer", "absent"} {
					trial.Cells = append(trial.Cells, v.cell(CellID{subject, "flood", round}))
				}
			}
			return trial
		},
	}
}

func (v *invented) cell(id CellID) Cell {
	return Cell{CellID: id, Takes: 2 * time.Second, Measure: func(context.Context) (Figures, error) {
		v.measured = append(v.measured, id)
		if id.Subject == "absent" && !v.come {
			return nil, &Missing{"it is not installed"}
		}
		return Figures{"syn_per_s": float64(len(id.Subject)*1000 + id.Round)}, v.fails[id]
	}}
}

func (v *invented) panels(t Taken) []Panel {
	bars := Panel{ID: "e0-rate", Title: "Rate", Kind: Bars, X: Axis{Label: "defence"}, Y: Axis{Label: "SYN/s"}, Note: "One core."}
	lines := Panel{ID: "e0-served", Title: "Served", Kind: Lines, X: Axis{Label: "SYN/s", Log: true}, Y: Axis{Label: "%"}}
	for _, subject := range []string{"ours", "peer", "absent"} {
		rounds := t.Rounds(subject, "flood", "syn_per_s")
		bars.Series = append(bars.Series, Bar(subject, subject == "ours", rounds, &Paper{"1.3 M", "figure <5>", "a switch"})...)
		if point, ok := PointOf(1000, rounds); ok {
			again := point
			again.X = 1e6
			lines.Series = append(lines.Series, Series{Subject: subject, Ours: subject == "ours", Points: []Point{point, again}})
		}
	}
	return []Panel{bars, lines}
}

func runInvented(t *testing.T, dir string, v *invented, progress func(Progress)) (Results, error) {
	t.Helper()
	return Run(t.Context(), Options{Dir: dir, Effort: Quick, Traffic: "none", Experiments: []Experiment{v.experiment()}, Progress: progress, Now: clock()})
}

func TestRunsTakeTurnsAndTellWhatIsLeft(t *testing.T) {
	v, left := &invented{}, []time.Duration(nil)
	results, err := runInvented(t, t.TempDir(), v, func(p Progress) { left = append(left, p.Left) })
	if err != nil {
		t.Fatal(err)
	}
	if len(v.measured) != 7 || v.closed != 1 { // who is absent is asked once
		t.Errorf("measured %v, closed %d times", v.measured, v.closed)
	}
	// Cells are thought to take two seconds and take one: who is absent, too.
	want := []time.Duration{18 * time.Second, 8 * time.Second, 7 * time.Second, 4 * time.Second, 3 * time.Second, 2 * time.Second, time.Second}
	if !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	o := results.Experiments[0]
	if point := o.Panels[0].Series[0].Points[0]; point.Median != 4001 || point.Min != 4000 || point.Max != 4002 {
		t.Errorf("rounds 4000 to 4002 became %+v", point)
	}
	if len(o.Absent) != 1 || o.Absent[0] != (Absence{"absent", "it is not installed"}) {
		t.Errorf("absent %v", o.Absent)
	}
}

func TestInterruptedRunGoesOn(t *testing.T) {
	dir, v := t.TempDir(), &invented{}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, Options{Dir: dir, Effort: Quick, Traffic: "none", Experiments: []Experiment{v.experiment()}, Now: clock(), Progress: func(p Progress) {
		if p.Done == 5 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || v.closed != 1 {
		t.Fatalf("%v, closed %d times", err, v.closed)
	}
	name := filepath.Join(dir, cellsFile)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	half := bytes.TrimSuffix(text, []byte("\n")) // as if it was ended while it wrote
	if err := os.WriteFile(name, half[:len(half)-5], 0o644); err != nil {
		t.Fatal(err)
	}
	if page, err := os.ReadFile(filepath.Join(dir, ReportFile)); err != nil || !strings.Contains(string(page), "So far 5 of 9 cells") {
		t.Errorf("%v; the report does not say how far the run came", err)
	}
	before := len(v.measured)
	results, err := runInvented(t, dir, v, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Kept whole were two cells; the line of who is absent was cut, and the cell that
	// was under way is none.
	if again := len(v.measured) - before; before != 4 || again != 5 {
		t.Errorf("%d cells before, %d again: %v", before, again, v.measured)
	}
	if rounds := results.Experiments[0].Panels[0].Series[1].Points[0].Rounds; len(rounds) != 3 {
		t.Errorf("rounds of the peer: %v", rounds)
	}
	before = len(v.measured)
	_, err = runInvented(t, dir, v, nil)
	if again := v.measured[before:]; err != nil || !slices.Equal(again, []CellID{{"absent", "flood", 0}}) { // it may have come
		t.Errorf("a complete run measures again: %v, %v", again, err)
	}
	v.come, before = true, len(v.measured)
	results, err = runInvented(t, dir, v, nil)
	if again := v.measured[before:]; err != nil || len(again) != 3 || len(results.Experiments[0].Absent) > 0 {
		t.Errorf("who was absent and has come is not measured: %v, %v", again, err)
	}
}

func TestAnotherRunsDirectoryIsRefused(t *testing.T) {
	dir, v := t.TempDir(), &invented{}
	if _, err := runInvented(t, dir, v, nil); err != nil {
		t.Fatal(err)
	}
	_, err := Run(t.Context(), Options{Dir: dir, Effort: Full, Traffic: "none", Experiments: []Experiment{v.experiment()}, Now: clock()})
	if !errors.Is(err, ErrOtherRun) || !strings.Contains(err.Error(), "its effort is quick, not full") {
		t.Errorf("a full run in a quick one's directory: %v", err)
	}
}

func TestFailedCellIsToldAndTriedAgain(t *testing.T) {
	dir, id := t.TempDir(), CellID{"peer", "flood", 1}
	v, last := &invented{fails: map[CellID]error{id: errors.New("no answer")}}, Progress{}
	results, err := runInvented(t, dir, v, func(p Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	if failed := results.Failed(); !slices.Equal(failed, []string{"E0: peer, flood, round 2: no answer"}) {
		t.Errorf("failed: %q", failed)
	}
	if last.Done != 8 || last.Total != 9 {
		t.Errorf("before the last cell %d of %d are done", last.Done, last.Total)
	}
	v.fails, v.measured = nil, nil
	results, err = runInvented(t, dir, v, nil)
	if err != nil || !slices.Equal(v.measured, []CellID{{"absent", "flood", 0}, id}) || len(results.Failed()) > 0 {
		t.Errorf("%v; measured %v, failed %q", err, v.measured, results.Failed())
	}
}

func TestTwoRunsDoNotShareADirectory(t *testing.T) {
	dir := t.TempDir()
	_, err := Run(t.Context(), Options{Dir: dir, Traffic: "none", Now: clock(), Progress: func(Progress) {
		if _, err := runInvented(t, dir, &invented{}, nil); err == nil || !strings.Contains(err.Error(), "another run is at work") {
			t.Errorf("a second run: %v", err)
		}
	}, Experiments: []Experiment{(&invented{}).experiment()}})
	if err != nil {
		t.Error(err)
	}
}

func TestRatiosAreOfTheSameRound(t *testing.T) {
	taken := Taken{
		{"ours", "flood", 0}: {"pps": 10}, {"ours", "flood", 2}: {"pps": 30}, {"ours", "flood", 3}: {"pps": 40}, {"ours", "none", 9}: {"pps": 1},
		{"peer", "flood", 0}: {"pps": 5}, {"peer", "flood", 1}: {"pps": 1}, {"peer", "flood", 2}: {"pps": 10},
	}
	if got := taken.Rounds("ours", "flood", "pps"); !slices.Equal(got, []float64{10, 30, 40}) {
		t.Errorf("rounds %v", got)
	}
	if got := taken.RatioRounds("ours", "peer", "flood", "pps"); !slices.Equal(got, []float64{2, 3}) {
		t.Errorf("ratios %v", got)
	}
}

func TestSummaryFitsOnATerminal(t *testing.T) {
	var text strings.Builder
	results := everyKind()
	if err := results.WriteSummary(&text, nil); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if utf8.RuneCountInString(line) > 81 {
			t.Errorf("more than 80 columns: %q", line)
		}
	}
	if strings.Count(text.String(), "is better)") != 6 {
		t.Errorf("the summary does not say what is better: %s", text.String())
	}
}

func TestWhatIsNoNumberIsAFailure(t *testing.T) {
	e := Experiment{ID: "E0", Title: "x", Reproduces: "x", Question: "x", Prepare: func(Effort) *Trial {
		return &Trial{
			Cells: []Cell{{CellID: CellID{Subject: "ours"}, Measure: func(context.Context) (Figures, error) { return Figures{"ratio": math.Inf(1)}, nil }}},
			Panels: func(t Taken) []Panel {
				return []Panel{{ID: "none", Title: "x", Kind: Bars, Series: Bar("ours", true, t.Rounds("ours", "", "ratio"), nil)}}
			},
		}
	}}
	results, err := Run(t.Context(), Options{Dir: t.TempDir(), Traffic: "none", Experiments: []Experiment{e}, Now: clock()})
	if err != nil || !slices.Equal(results.Failed(), []string{"E0: ours, , round 1: ratio is no number: +Inf"}) {
		t.Errorf("%v, failed %q", err, results.Failed())
	}
	if panels := results.Experiments[0].Panels; len(panels) != 0 {
		t.Errorf("a plot of nothing: %+v", panels)
	}
}

// checkSchema fails the test if the JSON is not what the schema says.
func checkSchema(t *testing.T, text []byte) {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile("results.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%v", err)
	}
}

func TestWhatIsWritten(t *testing.T) {
	dir := t.TempDir()
	if _, err := runInvented(t, dir, &invented{}, nil); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	checkSchema(t, []byte(read("results.json")))
	var results Results
	if err := json.Unmarshal([]byte(read("results.json")), &results); err != nil {
		t.Fatal(err)
	}
	for name, wants := range map[string][]string{
		"E0.csv":      {"e0-rate,ours,true,0,4001,4000,4002,3,1.3 M,figure <5>,a switch\n"},
		"E0.md":       {"| ours | 4 k | 4 k – 4 k | 3 | 1.3 M | figure <5> | a switch |", "Missing: absent (it is not installed).", "| peer | 4 k (4 k – 4 k) | 4 k (4 k – 4 k) |"},
		"report.html": {`<figure id="e0-rate">`, `<figure id="e0-served">`, "figure &lt;5&gt;", "Missing: absent", "This was a quick run", "var(--s0)"},
	} {
		for _, want := range wants {
			if text := read(name); !strings.Contains(text, want) {
				t.Errorf("%s has no %q", name, want)
			}
		}
	}
	if html := read("report.html"); strings.Contains(html, "#0101") || strings.Contains(html, "http") && strings.Contains(html, "src=") {
		t.Error("the report has a colour of the drawing's, or needs another file")
	}
}

func TestNumbersForPeople(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 1: "1", 0.0456: "0.0456", 7.06e-5: "7.1e-5", 1e-12: "1e-12", 3.42e18: "3.4e18", 1e20: "1e20", 9.99e14: "999 T", -1e-4: "-1e-4", 999.6: "1 k", 1234: "1.23 k", 1_234_567: "1.23 M", 999_960: "1 M",
		-12.345: "-12.3", 1.4e9: "1.4 G", 130: "130", 0.999: "0.999", 3e12: "3 T", 2.5e17: "2.5e17", 1e24: "1e24",
	} {
		if got := Short(x); got != want {
			t.Errorf("%v: %q, want %q", x, got, want)
		}
	}
}
