package host

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const bucketBurst = 100 * time.Millisecond // BUCKET_BURST_NS of bpf/lib/bucket.h

// Whatever the clock does between two tries, no stretch of time gives more
// tokens than its length and one burst allow, and who waits for an interval
// gets one.
func TestBucketGivesNoMoreThanItsRate(t *testing.T) {
	const tries = 2000
	random := newRandom(t)
	for _, perSecond := range []int{1, 7, 10, 1000, 10_000} {
		interval := time.Second / time.Duration(perSecond)
		times := make([]time.Duration, tries)
		line := fmt.Sprintf("bucket %d", interval)
		for i, now := 0, time.Hour; i < tries; i++ {
			switch random.IntN(50) {
			case 0:
				now += 2 * interval
			default:
				now += time.Duration(random.Int64N(int64(interval / 2)))
			}
			times[i] = now
			line += fmt.Sprintf(" %d", now)
		}
		taken := run(t, []string{line})[0]
		if len(taken) != tries || !strings.Contains(taken, "0") {
			t.Fatalf("%d a second: %q", perSecond, taken)
		}
		var at []time.Duration
		for i, now := range times {
			if taken[i] == '1' {
				at = append(at, now)
			} else if i > 0 && now-times[i-1] >= interval {
				t.Errorf("%d a second: no token after %s", perSecond, now-times[i-1])
			}
		}
		withinRate(t, interval, at)
	}
}

func withinRate(t *testing.T, interval time.Duration, at []time.Duration) {
	t.Helper()
	for first := range at {
		for last := first; last < len(at); last++ {
			passed := at[last] - at[first]
			if most := int((passed+bucketBurst+interval-1)/interval) + 1; last-first+1 > most {
				t.Fatalf("every %s: %d tokens in %s, at most %d", interval, last-first+1, passed, most)
			}
		}
	}
}
