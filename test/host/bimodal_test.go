package host

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// bimodal is the model of a port's mode (bpf/lib/bimodal.h), told as the paper
// does: by what happened, and when.
type bimodal struct {
	window, calm, most time.Duration
	syns               int

	floods  bool
	changes int
	nowCalm time.Duration
	seen    []time.Duration // SYNs of the window, which its first one opens
	pressed time.Duration   // last
	changed time.Duration
}

func (b *bimodal) event(what byte, now time.Duration) {
	pressure := what == 'q'
	if what == 's' {
		if len(b.seen) == 0 || now-b.seen[0] >= b.window {
			b.seen = nil
		}
		b.seen = append(b.seen, now)
		pressure = len(b.seen) >= b.syns
	}
	if pressure {
		b.pressed = now
	}
	switch {
	case pressure && !b.floods:
		quick := b.changes > 0 && now-b.changed < b.nowCalm
		b.nowCalm = map[bool]time.Duration{false: b.calm, true: min(2*b.nowCalm, b.most)}[quick]
		b.change(now)
	case b.floods && now-b.pressed >= b.nowCalm:
		b.change(now)
	}
}

func (b *bimodal) change(now time.Duration) {
	b.floods, b.changes, b.changed = !b.floods, b.changes+1, now
}

func (b *bimodal) String() string {
	return fmt.Sprintf("%d:%d:%d", bit(b.floods), b.nowCalm, b.changes)
}

const (
	bimodalWindow = 250 * time.Millisecond
	bimodalCalm   = time.Second
	bimodalMost   = 16 * bimodalCalm
	bimodalSYNs   = 5
)

func newBimodal() *bimodal {
	return &bimodal{window: bimodalWindow, calm: bimodalCalm, most: bimodalMost, syns: bimodalSYNs, nowCalm: bimodalCalm}
}

// modesOf runs the data plane's code through events, "s1500" being a SYN after
// 1500 ms, and returns what it says after each.
func modesOf(t *testing.T, events []string) []string {
	t.Helper()
	line := fmt.Sprintf("bimodal %d %d %d %d", bimodalWindow, bimodalSYNs, bimodalCalm, bimodalMost)
	for _, e := range events {
		line += fmt.Sprintf(" %c%d", e[0], atOf(t, e))
	}
	return strings.Fields(run(t, []string{line})[0])
}

// atOf is when an event happens: some time after the machine was started.
func atOf(t *testing.T, event string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(event[1:] + "ms")
	if err != nil {
		t.Fatal(err)
	}
	return time.Hour + d
}

func TestModesAreThoseOfTheModelWhateverHappens(t *testing.T) {
	random := newRandom(t)
	for range 200 {
		var events []string
		model, now := newBimodal(), 0
		for range 400 {
			switch random.IntN(12) {
			case 0:
				now += random.IntN(40_000)
			case 1, 2, 3:
				now += random.IntN(1500)
			default:
				now += random.IntN(100)
			}
			events = append(events, fmt.Sprintf("%c%d", "sssssssqt"[random.IntN(9)], now))
		}
		for i, got := range modesOf(t, events) {
			model.event(events[i][0], atOf(t, events[i]))
			if want := model.String(); got != want {
				t.Fatalf("after %v: %s, want %s", events[max(0, i-10):i+1], got, want)
			}
		}
	}
}

func TestModesChangeAsThePaperSays(t *testing.T) {
	calm := func(n int) string { return fmt.Sprint(int64(time.Duration(n) * time.Second)) }
	for _, test := range []struct {
		name, events, want string // what is said after the last event
	}{
		{"SYNs below the limit are no flood", "s0 s1 s2 s3 s250 s251 s252 s253", "0:" + calm(1) + ":0"},
		{"as many within T1 are", "s0 s50 s100 s150 s249", "1:" + calm(1) + ":1"},
		{"but not within a longer time", "s0 s50 s100 s150 s250", "0:" + calm(1) + ":0"},
		{"a full queue is a flood", "s0 q1", "1:" + calm(1) + ":1"},
		{"which is over after T2", "q0 t999 t1000", "0:" + calm(1) + ":2"},
		{"and not before", "q0 t999", "1:" + calm(1) + ":1"},
		{"nor while it presses", "q0 q900 t1800", "1:" + calm(1) + ":1"},
		{"SYNs below the limit do not press", "q0 s900 s901 t1000", "0:" + calm(1) + ":2"},
		{"a quick return doubles T2", "q0 t1000 q1500", "1:" + calm(2) + ":3"},
		{"a slow one does not", "q0 t1000 q2000", "1:" + calm(1) + ":3"},
		{"T2 doubles up to its bound",
			"q0 t1000 q1001 t3001 q3002 t7002 q7003 t15003 q15004 t31004 q31005 t47005 q47006", "1:" + calm(16) + ":13"},
		{"and is itself again after a long calm", "q0 t1000 q1500 t3500 q5500", "1:" + calm(1) + ":5"},
	} {
		said := modesOf(t, strings.Fields(test.events))
		if got := said[len(said)-1]; got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}
