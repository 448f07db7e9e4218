package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// reuseCase is a run of short connections from few local ports.
type reuseCase struct {
	defence  string
	ipv6     bool
	duration time.Duration
	ports    int
}

const (
	reuseRate  = 1000 // connections per second
	reuseDelay = 10 * time.Millisecond
	// Whatever else the machine does only adds to a latency: the best of so
	// many runs counts.
	reuseRuns = 3
)

// reuseCases are all in full, or the first one alone: the others then use so
// few ports that these come back as often.
func reuseCases() []reuseCase {
	cases := []reuseCase{{defence: "split"}, {defence: "host"}, {defence: "split", ipv6: true}, {defence: "host", ipv6: true}}
	for i := range cases {
		cases[i].duration, cases[i].ports = 3*time.Second, 750
		if i == 0 || long() {
			cases[i].duration, cases[i].ports = 20*time.Second, 5000
		}
	}
	return cases
}

func TestPortsThatComeBackDuringTimeWaitConnectAtOnce(t *testing.T) {
	for _, c := range reuseCases() {
		t.Run(fmt.Sprintf("%s, IPv6 %t", c.defence, c.ipv6), func(t *testing.T) {
			l := newLab(t, lab.Options{})
			startHTTP(t, l)
			if err := l.Client.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("20000 %d", 20000+c.ports-1)); err != nil {
				t.Fatal(err)
			}
			for run := 1; ; run++ {
				plain, defended := c.run(t, l, "kernel"), c.run(t, l, c.defence)
				t.Logf("without: %s", plain)
				t.Logf("%s: %s", c.defence, defended)
				if defended.p99() <= plain.p99()+reuseDelay {
					return
				}
				if run == reuseRuns {
					t.Fatalf("p99 is %s, without the defence %s", defended.p99(), plain.p99())
				}
			}
		})
	}
}

// run wants every request to succeed, with any defence or none.
func (c reuseCase) run(t *testing.T, l *lab.Lab, defence string) *outcome {
	t.Helper()
	guard, err := l.Defend(t.Context(), defence)
	if err != nil {
		t.Fatal(err)
	}
	result := shortRequests(context.Background(), l.Client.Namespace, httpAddress(l, c.ipv6), reuseRate, c.duration)
	if len(result.failures) > 0 {
		t.Fatalf("%s: %s: %v", defence, result, result.failures[0])
	}
	verdicts, err := guard.ServerVerdicts()
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Stop(); err != nil {
		t.Fatal(err)
	}
	// Otherwise no port came back during TIME_WAIT, and this shows nothing.
	if defence != "kernel" && verdicts["requeue_timewait"] < uint64(len(result.latencies))/4 {
		t.Fatalf("only %d of %d connections met one in TIME_WAIT: %v", verdicts["requeue_timewait"], len(result.latencies), verdicts)
	}
	return result
}
