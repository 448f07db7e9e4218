package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"smartcookie/internal/evaluation"
)

// inventedExperiments have a cell each, which does what the test says.
func inventedExperiments(measure func(ctx context.Context, id string) (evaluation.Figures, error)) []evaluation.Experiment {
	var all []evaluation.Experiment
	for _, id := range []string{"E1", "E2"} {
		cell := evaluation.CellID{Subject: "a defence with a name that is longer than most", Case: "flood"}
		all = append(all, evaluation.Experiment{
			ID: id, Title: "invented", Reproduces: "nothing", Question: "Does it run?",
			Prepare: func(evaluation.Effort) *evaluation.Trial {
				return &evaluation.Trial{
					Cells: []evaluation.Cell{{CellID: cell, Takes: time.Second, Measure: func(ctx context.Context) (evaluation.Figures, error) {
						return measure(ctx, id)
					}}},
					Panels: func(t evaluation.Taken) []evaluation.Panel {
						return []evaluation.Panel{{
							ID: "rate-" + strings.ToLower(id), Title: "Rate", Kind: evaluation.Bars,
							X: evaluation.Axis{Label: "defence"}, Y: evaluation.Axis{Label: "SYN/s"},
							Series: evaluation.Bar(cell.Subject, true, t.Rounds(cell.Subject, cell.Case, "rate"), nil),
						}}
					},
				}
			},
		})
	}
	return all
}

func rateOf(context.Context, string) (evaluation.Figures, error) {
	return evaluation.Figures{"rate": 1234567}, nil
}

func TestBenchTellsWhatItMeasuresAndWhereTheReportIs(t *testing.T) {
	c, dir := newConsole(), t.TempDir()
	options := benchOptions{quick: true, out: dir}
	if err := options.evaluate(t.Context(), c.env, inventedExperiments(rateOf), "none"); err != nil {
		t.Fatal(err)
	}
	if got, want := c.stderr.String(), "E2  2 of 2, 0 s left  a defence with a name that is longer than most, flood, round 1\n"; !strings.HasSuffix(got, want) {
		t.Errorf("progress %q, want its end %q", got, want)
	}
	report := filepath.Join(dir, "report.html")
	if _, err := os.Stat(report); err != nil {
		t.Error(err)
	}
	out := c.stdout.String()
	for _, want := range []string{"E1: invented", "Rate: SYN/s", "* a defence with a name that is longer than…   1.23 M   1.23 M   1.23 M\n", "\nReport: " + report + "\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	for line := range strings.Lines(strings.Split(out, "Report:")[0]) {
		if utf8.RuneCountInString(line) > 81 {
			t.Errorf("more than 80 columns: %q", line)
		}
	}
	c.stderr.Reset()
	if err := options.evaluate(t.Context(), c.env, inventedExperiments(nil), "none"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(c.stderr.String(), "--out DIR measures again") {
		t.Errorf("a run without a cell: %q", c.stderr.String())
	}
}

func TestBenchRunsWhatIsAskedForAndKeepsTheRest(t *testing.T) {
	c, dir := newConsole(), t.TempDir()
	var measured []string
	all := inventedExperiments(func(ctx context.Context, id string) (evaluation.Figures, error) {
		measured = append(measured, id)
		return rateOf(ctx, id)
	})
	for _, only := range []string{"e2", "E1"} {
		if err := (benchOptions{only: []string{only}, out: dir}).evaluate(t.Context(), c.env, all, "none"); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(measured, ","); got != "E2,E1" {
		t.Errorf("measured %s", got)
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil || !bytes.Contains(text, []byte(`id="rate-e1"`)) || !bytes.Contains(text, []byte(`id="rate-e2"`)) {
		t.Errorf("%v; the report lacks one of both", err)
	}
	if out := c.stdout.String(); strings.Count(out, "E2: invented") != 1 {
		t.Errorf("the second run tells of what it was not asked for: %s", out)
	}
}

func TestBenchSaysWhatFailedAndHowToGoOn(t *testing.T) {
	c, dir := newConsole(), t.TempDir()
	fails := inventedExperiments(func(context.Context, string) (evaluation.Figures, error) { return nil, errors.New("no\nanswer") })
	err := (benchOptions{only: []string{"E1"}, out: dir}).evaluate(t.Context(), c.env, fails, "none")
	if err == nil || exitCode(err) != exitError || !strings.Contains(err.Error(), "not everything could be measured (1)") {
		t.Errorf("a failed cell: %v", err)
	}
	if !strings.Contains(c.stderr.String(), "round 1: no; answer\n") {
		t.Errorf("no line for the cell: %q", c.stderr.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	ends := inventedExperiments(func(ctx context.Context, _ string) (evaluation.Figures, error) { cancel(); return nil, ctx.Err() })
	err = (benchOptions{out: dir}).evaluate(ctx, c.env, ends, "none")
	if err == nil || exitCode(err) != exitError || !strings.Contains(err.Error(), "goes on from here") {
		t.Errorf("an interrupted run: %v", err)
	}
}

func TestBenchRefusesWhatItDoesNotKnow(t *testing.T) {
	c := newConsole()
	for _, u := range []struct {
		options benchOptions
		want    string
	}{
		{benchOptions{only: []string{"E9"}}, `no such experiment: "E9"; there are E1, E2, and testrun`},
		{benchOptions{only: []string{""}}, `no such experiment: ""`},
	} {
		u.options.out = t.TempDir()
		err := u.options.evaluate(t.Context(), c.env, inventedExperiments(rateOf), "none")
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), u.want) {
			t.Errorf("%+v: %v, want %q", u.options, err, u.want)
		}
	}
	dir := t.TempDir()
	for _, quick := range []bool{false, true} {
		err := benchOptions{quick: quick, out: dir}.evaluate(t.Context(), c.env, inventedExperiments(rateOf), "none")
		if quick && (err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--out:")) {
			t.Errorf("a quick run in a full one's directory: %v", err)
		}
	}
	for _, u := range []benchOptions{{only: []string{"testrun", "E1"}}, {only: []string{"server"}, quick: true}, {only: []string{"server"}, out: "x"}, {only: []string{"testrun"}, trace: "x"}} {
		if err := u.hotPath(t.Context(), c.env); err == nil || exitCode(err) != exitUsage {
			t.Errorf("%+v: %v", u, err)
		}
	}
}

func TestBenchTakesItsTrafficFromAFile(t *testing.T) {
	if benign, err := (benchOptions{}).benign(); err != nil || benign.MeanBytes() < 14_000 {
		t.Errorf("without a file: %v, %v", benign, err)
	}
	if benign, err := (benchOptions{trace: "../traffic/testdata/small.pcap"}).benign(); err != nil || benign.Name() != "small.pcap" {
		t.Errorf("a capture: %v, %v", benign, err)
	}
	if _, err := (benchOptions{trace: "bench_test.go"}).benign(); err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), "--trace: bench_test.go") {
		t.Errorf("no traffic: %v", err)
	}
}

func TestProgressOnATerminalIsOneLine(t *testing.T) {
	var out bytes.Buffer
	line := &progressLine{out: &out, columns: 40}
	for done := range 2 {
		line.show(evaluation.Progress{Experiment: "E1", Done: done, Total: 2, Left: 100 * time.Second, Cell: evaluation.CellID{Subject: "ours", Case: "100 k SYN/s"}})
	}
	if err := line.finish(); err != nil {
		t.Fatal(err)
	}
	want := "\r\x1b[KE1  1 of 2, 2 min left  ours, 100 k SY…" + "\r\x1b[KE1  2 of 2, 2 min left  ours, 100 k SY…\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
