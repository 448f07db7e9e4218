package bench

import (
	"math"
	"testing"
)

// The intervals are tabulated: Garwood 1936, and every table of exact 95% limits
// for counts since.
func TestIntervalsAreThoseOfTheTables(t *testing.T) {
	for k, want := range map[uint64][2]float64{
		0: {0, 3.689}, 1: {0.0253, 5.572}, 2: {0.242, 7.225}, 5: {1.623, 11.668}, 10: {4.795, 18.390},
		50: {37.111, 65.919}, 100: {81.364, 121.627},
	} {
		low, high := poissonInterval(k)
		if math.Abs(low-want[0]) > 6e-4 || math.Abs(high-want[1]) > 6e-4 {
			t.Errorf("%d events: %.4f to %.4f, the tables have %v", k, low, high, want)
		}
	}
}
