package bench

import (
	"math"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
	"smartcookie/internal/traffic"
)

func subjectOf(t *testing.T, name string, kind lab.Kind) cpuSubject {
	t.Helper()
	for _, s := range cpuSubjects() {
		if s.name == name && s.flood == kind {
			return s
		}
	}
	t.Fatalf("no %s under %v", name, kind)
	return cpuSubject{}
}

// What is counted is checked, not how long it takes.
func TestFloodReachesTheServerAsFiltersSay(t *testing.T) {
	needRoot(t)
	x := newCPUSweep(evaluation.Quick, traffic.Default())
	x.measure = 300 * time.Millisecond
	defer func() {
		if err := x.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		name  string
		kind  lab.Kind
		share float64 // of the offered that comes to the server
	}{
		{kernelAlone, lab.SYN, 1},
		{jaqenLike, lab.SYN, 0.0766},
		{serverAlone, lab.ACK, 1},
		{papersSplit, lab.ACK, 0.0766},
		{oursSplit, lab.ACK, 1e-4},
		{oursSplit, lab.SYN, 0},
	} {
		f, err := x.take(t.Context(), subjectOf(t, c.name, c.kind), 50_000, 0)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		reached, want := f["reached_per_s"]/f["offered_per_s"]*f["offered"], c.share*f["offered"]
		chance := 6*math.Sqrt(want) + want/10 // counters are not read all at once
		if f["offered"] == 0 || math.Abs(reached-want) > chance {
			t.Errorf("%s: %.0f of %.0f packets reached the server", c.name, reached, f["offered"])
		}
		if c.share > 0.01 && (f["handled_per_s"] == 0 || f["kernel_cpu_percent"] == 0) {
			t.Errorf("%s: nothing was handled: %v", c.name, f)
		}
		if f["benign_percent"] == 0 && c.share < 0.5 {
			t.Errorf("%s: no benign request was served", c.name)
		}
	}
}

func TestFiguresOfWhatWasNotTheCaseAreRefused(t *testing.T) {
	s := subjectOf(t, jaqenLike, lab.SYN)
	figures := func(name string, value float64) evaluation.Figures {
		f := evaluation.Figures{
			"offered": 1e6, "offered_per_s": 1e6, "reached_per_s": 76_600, "handled_per_s": 76_600, "benign_percent": 100, "cpu_percent": 20,
		}
		f[name] = value
		return f
	}
	if good := figures("offered", 1e6); s.wrong(good) != nil || !s.steady(good, 1e6) {
		t.Errorf("good figures: %v", s.wrong(good))
	}
	for name, value := range map[string]float64{"reached_per_s": 9e4, "handled_per_s": 0, "benign_percent": 0} {
		if s.wrong(figures(name, value)) == nil {
			t.Errorf("%s of %v is taken", name, value)
		}
	}
	for name, value := range map[string]float64{"offered_per_s": 9e5, "handled_per_s": 7e4, "benign_percent": 90} {
		if s.steady(figures(name, value), 1e6) {
			t.Errorf("%s of %v is not measured again", name, value)
		}
	}
}

func TestPointStandsWhereThatMuchWasOffered(t *testing.T) {
	for _, c := range []struct{ offered, want float64 }{{999_000, 1e6}, {951_000, 1e6}, {943_210, 940_000}, {3456, 3500}, {0, 0}} {
		if got := offeredAt(1_000_000, []float64{c.offered}); got != c.want {
			t.Errorf("%v offered: at %v, want %v", c.offered, got, c.want)
		}
	}
}

// taken has for every cell CPU time of 10% without a flood, and with one 4 µs for
// each packet that reaches the server.
func takenOf(x *cpuSweep) evaluation.Taken {
	taken := make(evaluation.Taken)
	for _, c := range x.cells() {
		f := evaluation.Figures{"cpu_percent": 10}
		if c.Case != calmCase {
			f = evaluation.Figures{"cpu_percent": 10 + 20, "offered_per_s": 1e6, "reached_per_s": 50_000, "handled_per_s": 51_000}
		}
		taken[c.CellID] = f
	}
	return taken
}

func TestCPUPanelsBeginWithoutAFlood(t *testing.T) {
	x := newCPUSweep(evaluation.Full, traffic.Default())
	panels := x.panels(takenOf(x))
	if len(panels) != 4 {
		t.Fatalf("%d panels", len(panels))
	}
	for _, p := range panels[:2] {
		if len(p.Series) != 4 {
			t.Errorf("%s has %d series", p.ID, len(p.Series))
		}
		for _, s := range p.Series {
			if len(s.Points) != 1+len(x.rates) || s.Points[0].X != 0 || s.Points[0].Median != 10 || s.Points[1].Median != 30 {
				t.Errorf("%s, %s: %v", p.ID, s.Subject, s.Points)
			}
		}
	}
	for _, s := range panels[2].Series {
		if got := s.Points[0].Median; math.Abs(got-5) > 1e-9 {
			t.Errorf("%s: %v%% reach the server", s.Subject, got)
		}
	}
	for _, s := range panels[3].Series {
		if got := s.Points[0].Median; math.Abs(got-4000) > 1e-9 {
			t.Errorf("%s: %v ns for a packet", s.Subject, got)
		}
	}
}

func TestCPUWithoutFiguresHasNoPanels(t *testing.T) {
	x := newCPUSweep(evaluation.Quick, traffic.Default())
	if panels := x.panels(evaluation.Taken{}); len(panels) > 0 {
		t.Errorf("%d panels of nothing", len(panels))
	}
	for _, note := range x.notes() {
		if strings.Contains(note, "%!") {
			t.Errorf("%q", note)
		}
	}
}
