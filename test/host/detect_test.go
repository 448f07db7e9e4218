package host

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// The detector's phases and causes, as in contract.h.
const (
	passive = iota
	grace
	active
	leaving
)

const (
	bySYNs = 1 << iota
	byUnfinished
	byHalfOpen
)

// What contract.h fixes.
const (
	slots       = 16
	slot        = time.Second / slots
	graceTime   = 3 * time.Second
	leaveTime   = 3 * time.Second
	mostT2      = 16
	mostHalf    = 1 << 20
	shareFrom   = 10 // a tenth of the SYNs' limit
	fadePerSlot = 128
)

type limits struct {
	syns, unfinished, halfOpen int
	calm                       time.Duration
}

var usual = limits{1000, 50, 400, 2 * time.Second}

// look is one reading of the tallies.
type look struct {
	at             time.Duration
	syns, finished int // in total
}

// seen is what the detector says after a look.
type seen struct {
	phase, cause, syns, unfinished, halfOpen int
	t2                                       time.Duration
}

// detect runs the data plane's detector.
func detect(t *testing.T, l limits, looks []look) []seen {
	t.Helper()
	var line strings.Builder
	fmt.Fprintf(&line, "detect %d %d %d %d", l.syns, l.unfinished, l.halfOpen, l.calm.Milliseconds())
	for _, k := range looks {
		fmt.Fprintf(&line, " %d,%d,%d", k.at, k.syns, k.finished)
	}
	words := strings.Fields(run(t, []string{line.String()})[0])
	if len(words) != len(looks) {
		t.Fatalf("%d results of %d looks", len(words), len(looks))
	}
	all := make([]seen, len(words))
	for i, word := range words {
		var ms int
		s := &all[i]
		if _, err := fmt.Sscanf(word, "%d:%d:%d:%d:%d:%d", &s.phase, &s.cause, &s.syns, &s.unfinished, &s.halfOpen, &ms); err != nil {
			t.Fatalf("%q: %v", word, err)
		}
		s.t2 = time.Duration(ms) * time.Millisecond
	}
	return all
}

// model is the detector in plain words: it keeps every look.
type model struct {
	limits
	looks    []look // differences, from the second on
	halfOpen int
	seen     seen
	since    time.Duration
	calmFrom time.Duration // -1: not calm
	offAt    time.Duration
	offs     int
	last     look
}

func (m *model) look(k look) seen {
	if m.last == (look{}) {
		m.last, m.calmFrom = k, -1
	} else {
		m.count(k)
	}
	m.decide(k.at)
	return m.seen
}

func (m *model) count(k look) {
	first := int(m.last.at / slot)
	now := int(k.at / slot)
	for range min(now-first, slots) {
		m.halfOpen -= (m.halfOpen + fadePerSlot - 1) / fadePerSlot
	}
	d := look{k.at, k.syns - m.last.syns, k.finished - m.last.finished}
	m.last = k
	m.looks = append(m.looks, d)
	most := mostHalf
	if m.limits.halfOpen > 0 && m.limits.halfOpen < most/2 {
		most = 2 * m.limits.halfOpen
	}
	m.halfOpen = min(max(m.halfOpen+d.syns-d.finished, 0), most)
	syns, finished := 0, 0
	for _, d := range m.looks {
		if int(d.at/slot) > now-slots {
			syns, finished = syns+d.syns, finished+d.finished
		}
	}
	m.seen.syns, m.seen.halfOpen, m.seen.unfinished = syns, m.halfOpen, 0
	if syns > finished {
		m.seen.unfinished = (syns - finished) * 100 / syns
	}
	m.seen.cause = m.cause(1)
}

func (m *model) cause(times int) (cause int) {
	s := &m.seen
	if s.syns*times >= m.syns {
		cause |= bySYNs
	}
	if m.unfinished > 0 && s.syns*times*shareFrom >= m.syns && s.unfinished*times >= m.unfinished {
		cause |= byUnfinished
	}
	if m.limits.halfOpen > 0 && s.halfOpen*times >= m.limits.halfOpen {
		cause |= byHalfOpen
	}
	return cause
}

func (m *model) enter(phase int, now time.Duration) {
	m.seen.phase, m.since, m.calmFrom = phase, now, -1
}

func (m *model) decide(now time.Duration) {
	if m.seen.phase != passive {
		if m.cause(2) != 0 {
			m.calmFrom = -1
		} else if m.calmFrom < 0 {
			m.calmFrom = now
		}
	}
	passed := (now - m.since) / time.Millisecond * time.Millisecond
	switch m.seen.phase {
	case passive:
		if m.seen.cause == 0 {
			return
		}
		quick := m.offs > 0 && m.seen.t2 > 0 && now-m.offAt < m.seen.t2
		m.seen.t2 = map[bool]time.Duration{false: m.calm, true: min(2*m.seen.t2, mostT2*m.calm)}[quick]
		m.enter(grace, now)
	case grace:
		if passed >= graceTime {
			m.enter(active, now)
		}
	case active:
		if m.calmFrom >= 0 && now-m.calmFrom >= m.seen.t2 {
			m.enter(leaving, now)
		}
	case leaving:
		if m.seen.cause != 0 {
			m.enter(active, now)
		} else if passed >= leaveTime {
			m.offs, m.offAt = m.offs+1, now
			m.enter(passive, now)
		}
	}
}

// traffic makes looks every 10 ms of SYNs and finished handshakes per second.
type traffic struct {
	looks []look
	now   look
	debt  [2]float64
}

func newTraffic() *traffic { return &traffic{now: look{at: time.Hour}} }

func (f *traffic) flow(syns, finished float64, d time.Duration) *traffic {
	for end := f.now.at + d; f.now.at < end; {
		f.now.at += 10 * time.Millisecond
		f.debt[0] += syns / 100
		f.debt[1] += finished / 100
		f.now.syns += int(f.debt[0])
		f.now.finished += int(f.debt[1])
		f.debt[0] -= float64(int(f.debt[0]))
		f.debt[1] -= float64(int(f.debt[1]))
		f.looks = append(f.looks, f.now)
	}
	return f
}

// phases are the phases in their order, with the time from the first look.
func phases(looks []look, all []seen) (list []int, at []time.Duration) {
	last := passive
	for i, s := range all {
		if s.phase != last {
			list, at, last = append(list, s.phase), append(at, looks[i].at-looks[0].at), s.phase
		}
	}
	return list, at
}

func TestEachLimitSwitchesAlone(t *testing.T) {
	never := limits{1 << 30, 0, 0, time.Second}
	for name, row := range map[string]struct {
		limits         limits
		syns, finished float64
		cause          int
	}{
		"SYNs, all of them finished":        {limits{1000, 0, 0, time.Second}, 1100, 1100, bySYNs},
		"SYNs below the limit":              {limits{1000, 0, 0, time.Second}, 950, 0, 0},
		"half of the handshakes unfinished": {limits{1000, 50, 0, time.Second}, 300, 140, byUnfinished},
		"fewer than half":                   {limits{1000, 50, 0, time.Second}, 300, 180, 0},
		"too few SYNs to say":               {limits{1000, 50, 0, time.Second}, 90, 0, 0},
		"many half-open, slowly":            {limits{1 << 30, 0, 400, time.Second}, 100, 0, byHalfOpen},
		"half-open that fade":               {limits{1 << 30, 0, 400, time.Second}, 40, 0, 0},
		"nothing is looked at":              {never, 100_000, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTraffic().flow(row.syns, row.finished, 20*time.Second)
			all := detect(t, row.limits, f.looks)
			list, _ := phases(f.looks, all)
			if on := len(list) > 0; on != (row.cause != 0) {
				t.Fatalf("switched on: %t, at the end %+v", on, all[len(all)-1])
			}
			for i, s := range all {
				if s.phase != passive {
					if s.cause != row.cause {
						t.Errorf("cause %d, want %d: %+v after %s", s.cause, row.cause, s, f.looks[i].at-f.looks[0].at)
					}
					break
				}
			}
		})
	}
}

// A server meets no more SYNs of a flood than its limit, however fast they come.
func TestFloodIsSeenAtTheLimit(t *testing.T) {
	for _, rate := range []float64{1500, 10_000, 1e6} {
		f := newTraffic().flow(100, 100, 2*time.Second)
		begin := len(f.looks)
		f.flow(rate, 0, 2*time.Second)
		for i, s := range detect(t, limits{1000, 0, 0, time.Second}, f.looks) {
			if s.phase == passive {
				continue
			}
			let := f.looks[i].syns - f.looks[begin-1].syns
			if perLook := int(rate / 100); i < begin || let > 1000+perLook {
				t.Errorf("%.0f SYN/s: seen after %d", rate, let)
			}
			break
		}
	}
}

func TestFloodThatEndsLeavesItsServicePassive(t *testing.T) {
	f := newTraffic().flow(100, 100, 2*time.Second).flow(50_000, 100, 5*time.Second).flow(100, 100, 20*time.Second)
	list, at := phases(f.looks, detect(t, limits{1000, 50, 0, 2 * time.Second}, f.looks))
	if fmt.Sprint(list) != fmt.Sprint([]int{grace, active, leaving, passive}) {
		t.Fatalf("phases %v at %v", list, at)
	}
	if ended := at[3] - 7*time.Second; ended < 5*time.Second || ended > 6100*time.Millisecond {
		t.Errorf("passive %s after the flood, want T2 (2s), %s, and the second that a figure looks back", ended, leaveTime)
	}
	if at[1]-at[0] != graceTime {
		t.Errorf("a grace of %s, want %s", at[1]-at[0], graceTime)
	}
}

// Between half of a limit and the limit nothing changes, in either direction.
func TestNothingSwitchesBetweenTheLimits(t *testing.T) {
	f := newTraffic().flow(700, 700, 10*time.Second).flow(5000, 700, 5*time.Second).flow(700, 700, 60*time.Second)
	all := detect(t, limits{1000, 0, 0, time.Second}, f.looks)
	list, at := phases(f.looks, all)
	if fmt.Sprint(list) != fmt.Sprint([]int{grace, active}) {
		t.Errorf("phases %v at %v", list, at)
	}
}

func TestQuickReturnsDoubleTheCalmTimeUpToABound(t *testing.T) {
	l := limits{1000, 50, 0, usual.calm}
	var t2 []time.Duration
	last := passive
	for _, s := range detect(t, l, quick(t, l)) {
		if s.phase == grace && last == passive {
			t2 = append(t2, s.t2)
		}
		last = s.phase
	}
	want := []time.Duration{2, 4, 8, 16, 32, 32, 2}
	for i := range want {
		want[i] *= time.Second
	}
	if fmt.Sprint(t2) != fmt.Sprint(want) {
		t.Errorf("T2 %v, want %v", t2, want)
	}
}

// quick is a flood that comes back at once when its service is passive, six
// times, and then once more after a long time. The model says when that is.
func quick(t *testing.T, l limits) []look {
	t.Helper()
	f, m := newTraffic(), &model{limits: l}
	step := func(syns float64) int {
		f.flow(syns, 0, 10*time.Millisecond)
		return m.look(f.looks[len(f.looks)-1]).phase
	}
	until := func(syns float64, phase int) {
		for range 100 * 120 {
			if step(syns) == phase {
				return
			}
		}
		t.Fatalf("phase %d is not reached", phase)
	}
	for range 6 {
		until(5000, active)
		until(0, passive)
	}
	for range 100 * 40 {
		step(0)
	}
	until(5000, active)
	return f.looks
}

func TestFloodDuringTheLeaveIsDefendedAtOnce(t *testing.T) {
	f := newTraffic().flow(10, 10, 2*time.Second).flow(5000, 0, 4*time.Second).flow(10, 10, 5*time.Second).flow(5000, 0, 3*time.Second)
	all := detect(t, limits{1000, 50, 0, 2 * time.Second}, f.looks)
	list, at := phases(f.looks, all)
	if fmt.Sprint(list) != fmt.Sprint([]int{grace, active, leaving, active}) {
		t.Errorf("phases %v at %v", list, at)
	}
}

// What the timer missed, because the machine slept, is neither a flood nor calm.
func TestLongPauseIsNoFlood(t *testing.T) {
	f := newTraffic().flow(100, 100, 2*time.Second)
	f.now.at += time.Hour
	f.flow(100, 100, 2*time.Second)
	all := detect(t, usual, f.looks)
	if list, at := phases(f.looks, all); len(list) > 0 {
		t.Errorf("phases %v at %v", list, at)
	}
}

func TestDetectorIsTheModel(t *testing.T) {
	random := newRandom(t)
	for range 30 {
		l := limits{
			syns: 1 + random.IntN(2000), unfinished: random.IntN(101), halfOpen: random.IntN(2000),
			calm: time.Second + time.Duration(random.IntN(3000))*time.Millisecond,
		}
		looks := randomLooks(random, l)
		m := &model{limits: l}
		for i, got := range detect(t, l, looks) {
			if want := m.look(looks[i]); got != want {
				t.Fatalf("%+v, look %d at %s: %+v, want %+v", l, i, looks[i].at, got, want)
			}
		}
	}
}

func randomLooks(random *rand.Rand, l limits) []look {
	f := newTraffic()
	for len(f.looks) < 12_000 {
		syns := float64(l.syns) * random.Float64() * []float64{0.1, 1, 3}[random.IntN(3)]
		f.flow(syns, syns*1.1*random.Float64(), time.Duration(random.IntN(8000))*time.Millisecond)
		if random.IntN(4) == 0 {
			f.now.at += time.Duration(random.Int64N(int64(2 * time.Second)))
		}
	}
	return f.looks
}
