package bench_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"smartcookie/internal/bench"
	"smartcookie/internal/cli"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/traffic"
	"smartcookie/test/browser"
)

// The whole of the quick run, as somebody types it: every experiment, every
// defence, every file.
func TestQuickEvaluation(t *testing.T) {
	need(t, "nft")
	dir := t.TempDir()
	measureAll(t, dir)
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	checkSchema(t, text)
	var results evaluation.Results
	if err := json.Unmarshal(text, &results); err != nil {
		t.Fatal(err)
	}
	t.Logf("took %v", results.Ended.Sub(results.Started))
	planned := bench.Experiments(traffic.Default())
	if len(planned) != 7 || len(results.Experiments) != len(planned) {
		t.Fatalf("%d experiments, want %d, and E1 to E7", len(results.Experiments), len(planned))
	}
	var figures []string
	for i, o := range results.Experiments {
		figures = append(figures, checkOutcome(t, i+1, o, planned[i])...)
	}
	report, err := os.ReadFile(filepath.Join(dir, evaluation.ReportFile))
	if err != nil {
		t.Fatal(err)
	}
	browser.CheckAll(t, "quick", report, figures)
}

// measureAll gives the command again, as it says itself, if a cell was refused: what
// else the machine does may leave a flood too little of its CPU to say anything.
func measureAll(t *testing.T, dir string) {
	t.Helper()
	const tries = 4
	args := []string{"bench", "--quick", "--out", dir, "--trace", "../traffic/testdata/small.pcap"}
	for range tries {
		var progress, out bytes.Buffer
		code := cli.Run(t.Context(), args, strings.NewReader(""), &out, &progress)
		if code == 0 {
			t.Log(out.String())
			return
		}
		lines := strings.Split(strings.TrimSpace(progress.String()), "\n")
		t.Logf("exit code %d: %s", code, strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
	t.Errorf("not everything was measured in %d tries", tries)
}

func checkSchema(t *testing.T, text []byte) {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile("../evaluation/results.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Error(err)
	}
}

// checkOutcome wants every cell measured, nobody missing, and something shown of
// everybody. It returns the panels.
func checkOutcome(t *testing.T, n int, o evaluation.Outcome, e evaluation.Experiment) (panels []string) {
	t.Helper()
	if o.ID != fmt.Sprintf("E%d", n) || o.ID != e.ID || o.Measured != o.Planned || len(o.Absent) > 0 || len(o.Failures) > 0 || len(o.Panels) == 0 || len(o.Notes) == 0 {
		t.Errorf("%s: %d of %d cells, missing %v, failed %v, %d plots, %d notes",
			o.ID, o.Measured, o.Planned, o.Absent, o.Failures, len(o.Panels), len(o.Notes))
	}
	var shown []string
	for _, p := range o.Panels {
		panels = append(panels, p.ID)
		for _, s := range p.Series {
			shown = append(shown, s.Subject)
		}
	}
	for _, c := range e.Prepare(evaluation.Quick).Cells {
		if !slices.ContainsFunc(shown, func(name string) bool { return strings.Contains(name, c.Subject) }) {
			t.Errorf("%s: nothing is shown of %s", o.ID, c.Subject)
		}
	}
	return panels
}
