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

// reuseCases are all in full, or the first one alone; the others then have
// fewer ports, so that these come back too. (Linux takes every second port
// first.)
func reuseCases() []reuseCase {
	cases := []reuseCase{{defence: "split"}, {defence: "host"}, {defence: "split", ipv6: true}, {defence: "host", ipv6: true}}
	for i := range cases {
		cases[i].duration, cases[i].ports = 3*time.Second, 2000
		if i == 0 || long() {
			cases[i].duration, cases[i].ports = 20*time.Second, 5000
		}
	}
	return cases
}

func TestPortsThatComeBackDuringTimeWaitConnectAtOnce(t *testing.T) {
	for _, c := range reuseCases() {
		t.Run(fmt.Sprintf("%s, IPv6 %t", c.defence, c.ipv6), func(t *testing.T) {
			for run := 1; ; run++ {
				plain, defended := c.sideBySide(t)
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

// sideBySide runs without and with the defence at the same time, so that what
// else the machine does falls on both.
func (c reuseCase) sideBySide(t *testing.T) (plain, defended *outcome) {
	t.Helper()
	first, _ := c.prepare(t, "kernel")
	second, guard := c.prepare(t, c.defence)
	result := make(chan *outcome, 1)
	go func() { result <- c.run(first) }()
	defended = c.run(second)
	plain = <-result
	for defence, o := range map[string]*outcome{"without": plain, c.defence: defended} {
		if len(o.failures) > 0 {
			t.Fatalf("%s: %s: %v", defence, o, o.failures[0])
		}
	}
	verdicts, err := guard.ServerVerdicts()
	if err != nil {
		t.Fatal(err)
	}
	// Otherwise no port came back during TIME_WAIT, and this shows nothing.
	if verdicts["requeue_timewait"] < uint64(len(defended.latencies))/4 {
		t.Fatalf("only %d of %d connections met one in TIME_WAIT: %v", verdicts["requeue_timewait"], len(defended.latencies), verdicts)
	}
	return plain, defended
}

// prepare makes a lab whose client has few ports.
func (c reuseCase) prepare(t *testing.T, defence string) (*lab.Lab, *lab.Guard) {
	t.Helper()
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	if err := l.Client.Sysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("20000 %d", 20000+c.ports-1)); err != nil {
		t.Fatal(err)
	}
	guard, err := l.Defend(t.Context(), defence)
	if err != nil {
		t.Fatal(err)
	}
	return l, guard
}

func (c reuseCase) run(l *lab.Lab) *outcome {
	return requests(reuseRate, c.duration, func(int) error {
		return shortRequest(context.Background(), l.Client.Namespace, httpAddress(l, c.ipv6))
	})
}
