package bench

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"smartcookie/internal/evaluation"
	"smartcookie/internal/filter"
)

func testKey(t *testing.T) filter.Key {
	t.Helper()
	key, err := filter.NewKey(rand.NewChaCha8([32]byte{7}))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// needRoot skips what loads programs; where the tests must run it fails.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("missing: root")
	}
	t.Skip("missing: root")
}

func TestFiltersOfTheKernelAreThoseInGo(t *testing.T) {
	needRoot(t)
	const lines, flows, probes = 1000, 20_000, 50_000
	key := testKey(t)
	k, err := loadFiltersKernel(lines, key)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	ours := filter.NewBlocked(key, lines)
	for generation := range uint64(2) {
		if err := k.turn(generation); err != nil {
			t.Fatal(err)
		}
		if err := k.run(k.programs.OursAdd, generation*flows, flows); err != nil {
			t.Fatal(err)
		}
		ours.After(generation * lines)
		for i := range uint64(flows) {
			ours.Add(flowNumbered(generation*flows + i))
		}
	}
	memory, err := k.collection.Maps["filter_lines"].Memory()
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, memory.Size())
	if _, err := memory.ReadAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(content[:lines*filter.LineBytes], ours.Bytes()) {
		t.Error("the lines differ")
	}
	paper := partitioned(key, filter.PaperArrayBits, 0, 30*flows)
	if err := k.writePapers(paper); err != nil {
		t.Fatal(err)
	}
	if n, err := k.asker(k.programs.PaperHasAll)(0, 30*flows); err != nil || n != 30*flows {
		t.Errorf("the kernel has %d of %d flows of the paper's filter: %v", n, 30*flows, err)
	}
	for name, both := range map[string][2]asked{
		"ours":  {ask(ours.Has), {positives: k.asker(k.programs.OursHas)}},
		"paper": {ask(paper.Has), {positives: k.asker(k.programs.PaperHasAll)}},
	} {
		want, _ := both[0].positives(strangers, probes)
		got, err := both[1].positives(strangers, probes)
		if err != nil || got != want || want == 0 {
			t.Errorf("%s: %d strangers are let in by the kernel, %d by the model: %v", name, got, want, err)
		}
	}
}

// The keys are the same in every run, and so are the figures.
func TestMeasuredFiltersAreNearTheirFormulas(t *testing.T) {
	needRoot(t)
	x := newFilterSweep(evaluation.Quick)
	for _, s := range x.subjects {
		for _, l := range []load{{100_000, filter.PaperBytes}, {100_000, 2 * filter.PaperBytes}} {
			if s.only != nil && !s.only(l) {
				continue
			}
			got, err := x.measure(t.Context(), s, l, 0)
			if err != nil {
				t.Fatal(err)
			}
			want := s.formula(l)
			spread := 5 * math.Sqrt(want/got["probes"])
			if rate := got["positives"] / got["probes"]; math.Abs(rate-want) > spread {
				t.Errorf("%s, %v: %.3g, the formula says %.3g", s.name, l, rate, want)
			}
		}
	}
}

func TestNoFalsePositiveIsAnUpperBound(t *testing.T) {
	x := newFilterSweep(evaluation.Quick)
	taken := make(evaluation.Taken)
	for _, c := range x.cells() {
		taken[c.CellID] = evaluation.Figures{"positives": 0, "probes": 1e6}
		if c.Subject == papersFilter || c.Subject == papersBPF {
			taken[c.CellID]["positives"] = 76_600
		}
	}
	for _, p := range x.panels(taken) {
		for _, s := range p.Series {
			for _, point := range s.Points {
				if strings.HasSuffix(s.Subject, ", at most") != (point.Median == 100*3/2e6) {
					t.Errorf("%s, %s: %v", p.ID, s.Subject, point)
				}
				if point.Median <= 0 {
					t.Errorf("%s, %s: %v cannot be drawn", p.ID, s.Subject, point)
				}
			}
		}
	}
}

func TestEachFilterIsMeasuredOnceInARound(t *testing.T) {
	x := newFilterSweep(evaluation.Quick)
	seen := make(map[evaluation.CellID]bool)
	for _, c := range x.cells() {
		if seen[c.CellID] {
			t.Errorf("%v twice", c.CellID)
		}
		seen[c.CellID] = true
	}
	for _, id := range []evaluation.CellID{
		{Subject: papersFilter, Case: load{filter.PaperFlows, filter.PaperBytes}.String(), Round: 1},
		{Subject: oursBPF, Case: sizedFor(10_000).String()},
	} {
		if !seen[id] {
			t.Errorf("%v is not measured", id)
		}
	}
}
