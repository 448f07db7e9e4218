package bench

import (
	"math"
	"strings"
	"testing"

	"smartcookie/internal/evaluation"
)

// takenByForgers is as a run would have left it.
var takenByForgers = evaluation.Taken{
	{Subject: byCRC, Case: knowsCRC}:           {"probes": 1, "taken_percent": 100, "known_percent": 100},
	{Subject: byCRC, Case: knowsLinearity}:     {"probes": 65, "taken_percent": 100, "next_epoch_taken_percent": 75},
	{Subject: bySipHash, Case: knowsLinearity}: {"probes": 65, "taken_percent": 0},
	{Subject: bySipHash, Case: guessCheck}:     {"guesses": 3 << 25, "macs": 9 << 24, "taken": 3, "expected": 2.25},
	{Subject: bySipHash, Case: guessCheck, Round: 1}: {
		"guesses": 3 << 25, "macs": 9 << 24, "taken": 2, "expected": 2.25,
	},
	{Subject: byHalfSipHash, Case: guessCheck}: {"guesses": 3 << 25, "macs": 9 << 24, "taken": 0, "expected": 2.25},
	{Subject: byHalfSipHash, Case: keySearch}:  {"keys_per_s": 5e7},
}

func TestWhatForgersHaveTakenBecomesPanels(t *testing.T) {
	type figure struct{ median, low, high float64 }
	want := map[string]map[string]figure{
		"e7-forged": {"CRC32, polynomial known": {100, 100, 100}, "CRC32, linearity known": {100, 100, 100}, "SipHash, linearity known": {}},
		"e7-cost": {
			"CRC32, polynomial known": {2, 2, 2}, "CRC32, linearity known": {66, 66, 66},
			"SipHash, guessed":      {6 << 25 / 5.0, 6 << 25 / 11.668, 6 << 25 / 1.623}, // the interval of five
			"either hash, expected": {1 << 27 / 3.0, 1 << 27 / 3.0, 1 << 27 / 3.0},
		},
		"e7-guessed": {
			"SipHash, check alone": {5, 1.623, 11.668}, "SipHash, check alone, expected": {4.5, 4.5, 4.5},
			"HalfSipHash, check alone": {0, 0, 3.689}, "HalfSipHash, check alone, expected": {2.25, 2.25, 2.25},
		},
		"e7-keys": {"HalfSipHash": {5e7, 5e7, 5e7}},
		"e7-search": {
			"an epoch, the life of a key": {5.07e-7, 5.07e-7, 5.07e-7},
			"HalfSipHash, 10⁹ keys/s":     {292.27, 292.27, 292.27}, "HalfSipHash, 10¹² keys/s": {0.29227, 0.29227, 0.29227},
			"HalfSipHash, one core here": {5845.4, 5845.4, 5845.4},
			"SipHash, 10⁹ keys/s":        {5.3914e21, 5.3914e21, 5.3914e21}, "SipHash, 10¹² keys/s": {5.3914e18, 5.3914e18, 5.3914e18},
		},
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-3*math.Abs(b) }
	for _, panel := range forgeryPanels(takenByForgers) {
		if len(panel.Series) != len(want[panel.ID]) {
			t.Errorf("%s has %d series, want %d", panel.ID, len(panel.Series), len(want[panel.ID]))
		}
		if panel.ID == "e7-forged" && !(strings.Contains(panel.Note, "opened 1 flow of its own where it knew the CRC's polynomial, and 65 where") &&
			strings.Contains(panel.Note, "Of the packets behind those, 100% passed") && strings.Contains(panel.Note, "one flow more, and 75% of its ACKs were taken again")) {
			t.Errorf("note %q", panel.Note)
		}
		for _, s := range panel.Series {
			expected, ok := want[panel.ID][s.Subject]
			if p := s.Points[0]; !ok || !near(p.Median, expected.median) || !near(p.Min, expected.low) || !near(p.Max, expected.high) {
				t.Errorf("%s, %s: %+v, want %+v", panel.ID, s.Subject, p, expected)
			}
		}
	}
}
