package traffic

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDefaultIsTheMeanThatThePaperGives(t *testing.T) {
	source := Default()
	if mean := source.MeanBytes(); math.Abs(mean-14500) > 50 || source.Rate() != 38500 {
		t.Errorf("%s", Describe(source))
	}
	if got, want := Describe(source), "mean of CAIDA 2018: 38500 flows/s, 14.5 kB each in the mean"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestScheduleHasTheRateAndMeanOfItsDistribution(t *testing.T) {
	source := Default()
	schedule, err := source.Schedule(Want{Rate: 2000, Duration: 100 * time.Second, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(schedule); math.Abs(float64(n)/200_000-1) > 0.01 {
		t.Errorf("%d flows, want about 200,000", n)
	}
	if mean := float64(schedule.Bytes()) / float64(len(schedule)); math.Abs(mean/14500-1) > 0.03 {
		t.Errorf("%.0f bytes in the mean", mean)
	}
	if !slices.IsSortedFunc(schedule, func(a, b Flow) int { return int(a.Start - b.Start) }) || schedule[len(schedule)-1].Start >= 100*time.Second {
		t.Error("not in order, or too long")
	}
	// Of independent arrivals the gaps' deviation is their mean.
	squares, mean := 0.0, 100.0/float64(len(schedule))
	for i, f := range schedule[1:] {
		squares += math.Pow((f.Start-schedule[i].Start).Seconds()-mean, 2)
	}
	if deviation := math.Sqrt(squares / float64(len(schedule))); math.Abs(deviation/mean-1) > 0.02 {
		t.Errorf("gaps deviate by %v times their mean", deviation/mean)
	}
	again, err := source.Schedule(Want{Rate: 2000, Duration: 100 * time.Second, Seed: 1})
	if err != nil || !slices.Equal(schedule, again) {
		t.Error("the same seed makes another schedule")
	}
	other, err := source.Schedule(Want{Rate: 2000, Duration: 100 * time.Second, Seed: 2})
	if err != nil || slices.Equal(schedule, other) {
		t.Error("another seed makes the same schedule")
	}
}

func TestGapsSayHowOftenFlowsBegin(t *testing.T) {
	source, err := readDistribution([]byte("name: even\nsizes: {0: 5, 1: 5}\ngaps: {0: 10ms, 1: 10ms}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(source.Rate()-100) > 1e-6 || source.MeanBytes() != 5 {
		t.Errorf("%s", Describe(source))
	}
	schedule, err := source.Schedule(Want{Rate: 50, Duration: 99 * time.Millisecond})
	if err != nil || len(schedule) != 4 || schedule[1].Start.Round(time.Microsecond) != 40*time.Millisecond || schedule[1].Bytes != 5 {
		t.Errorf("%v, %v", schedule, err)
	}
}

func TestQuantilesAreMetAndTheirMeanIsExact(t *testing.T) {
	q := quantiles{{0, 0}, {0.5, 100}, {0.9, 100}, {1, 10000}}
	for share, want := range map[float64]float64{0: 0, 0.25: 50, 0.5: 100, 0.7: 100, 0.95: 1000, 1: 10000} {
		if got := q.at(share); math.Abs(got-want) > 1e-6 {
			t.Errorf("%v: %v, want %v", share, got, want)
		}
	}
	sum, n := 0.0, 1_000_000
	for i := range n {
		sum += q.at((float64(i) + 0.5) / float64(n))
	}
	if got := q.mean(); math.Abs(got/(sum/float64(n))-1) > 1e-4 {
		t.Errorf("mean %v, by adding %v", got, sum/float64(n))
	}
}

func TestWrongDescriptionsAreRefused(t *testing.T) {
	good := "name: x\nrate: 10\nsizes: {0: 1, 1: 2}\n"
	for text, want := range map[string]string{
		good + "size: 3\n":                                   "size",
		strings.Replace(good, "name: x\n", "", 1):            "name: missing",
		strings.Replace(good, "rate: 10", "rate: -1", 1):     "rate: -1",
		strings.Replace(good, "rate: 10", "rate: .nan", 1):   "rate: NaN",
		strings.Replace(good, "{0: 1, 1: 2}", "{0: 1}", 1):   "sizes: want the least at 0",
		strings.Replace(good, "{0: 1, 1: 2}", "{}", 1):       "sizes: want the least at 0",
		strings.Replace(good, "0: 1,", "0: 3,", 1):           "sizes: 1: less than at 0",
		strings.Replace(good, "0: 1,", "0: -3,", 1):          "sizes: 0: -3; want at least 0",
		strings.Replace(good, "1: 2}", "1: 2, 1.5: 3}", 1):   "sizes: 1.5: a share is from 0 to 1",
		good + "gaps: {0: 1s, 1: 2s}\n":                      "give one of both",
		"name: x\nsizes: {0: 1, 1: 2}\ngaps: {0: 0s, 1: 0s}": "all are next to nothing",
		"name: [": "[",
	} {
		if source, err := readDistribution([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, %v, want %q", text, source, err, want)
		}
	}
}

func TestSchedulesAreBounded(t *testing.T) {
	for _, w := range []Want{{Duration: time.Hour}, {Duration: 0}, {Duration: time.Second, Rate: -1}, {Duration: time.Second, Rate: math.NaN()}, {Duration: time.Second, Rate: math.Inf(1)}} {
		if schedule, err := Default().Schedule(w); err == nil {
			t.Errorf("%+v: %d flows", w, len(schedule))
		}
	}
}
