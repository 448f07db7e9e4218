package bench_test

import (
	"strings"
	"testing"

	"smartcookie/internal/bench"
	"smartcookie/internal/evaluation"
)

// What is forged, guessed and searched must come out as it is on paper; how fast it
// goes is the machine's business.
func TestForgeryTakesCRCsAndNothingElse(t *testing.T) {
	need(t)
	e := bench.Forgery()
	results, err := evaluation.Run(t.Context(), evaluation.Options{Dir: t.TempDir(), Effort: evaluation.Quick, Experiments: []evaluation.Experiment{e}})
	if err != nil {
		t.Fatal(err)
	}
	for _, failed := range results.Failed() {
		t.Error(failed)
	}
	shown, notes := make(map[string]map[string]evaluation.Point), ""
	for _, panel := range results.Experiments[0].Panels {
		shown[panel.ID] = make(map[string]evaluation.Point)
		notes += panel.Note
		for _, s := range panel.Series {
			shown[panel.ID][s.Subject] = s.Points[0]
			t.Logf("%s, %s: %+v", panel.ID, s.Subject, s.Points[0])
		}
	}
	const crc, sip, half = "CRC32, ", "SipHash, ", "HalfSipHash, "
	for _, attack := range []string{"polynomial known", "linearity known"} {
		for subject, want := range map[string]float64{crc: 100, sip: 0, half: 0} {
			if point, ok := shown["e7-forged"][subject+attack]; !ok || point.Median != want {
				t.Errorf("%s%s: %v%% (%t), want %v%%", subject, attack, point.Median, ok, want)
			}
		}
	}
	for _, want := range []string{"Of the packets behind those, 100% passed", "one flow more, and 100% of its ACKs were taken again"} {
		if !strings.Contains(notes, want) {
			t.Errorf("it is not told that %q: %s", want, notes)
		}
	}
	for attack, want := range map[string]float64{"polynomial known": 2, "linearity known": 66} {
		if point := shown["e7-cost"][crc+attack]; point.Median != want {
			t.Errorf("%s takes %v packets, want %v", attack, point.Median, want)
		}
	}
	for _, subject := range []string{sip, half} {
		guessed, ok := shown["e7-guessed"][subject+"check alone"]
		if expected := shown["e7-guessed"][subject+"check alone, expected"]; !ok || expected.Median < 1 || guessed.Median > 10 {
			t.Errorf("%s%+v guesses are taken, %+v expected", subject, guessed, expected) // of a mean of 1 there are 11 once in 10⁸ runs
		}
	}
	for panel, want := range map[string]int{"e7-guessed": 6, "e7-keys": 2, "e7-search": 7} {
		if len(shown[panel]) != want {
			t.Errorf("%s has %d bars, want %d", panel, len(shown[panel]), want)
		}
	}
}
