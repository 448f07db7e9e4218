package dataplane

import (
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"smartcookie/internal/cookie"
)

// surveyed is an edge whose maps are pinned, as an attached one's are.
func surveyed(t *testing.T, change ...func(*EdgeConfig)) (edgeAgent, *Survey) {
	t.Helper()
	root, pins := ownPins(t, EdgeAgent)
	loaded := loadedEdgeAt(t, pins, change...)
	e := agentOf(t, loaded)
	if err := errors.Join(loaded.writeModes(nil, nil), pinMaps(pins, map[string]*ebpf.Map{
		"counters": e.counters, "labels": e.labels, "services": e.services, "detectors": e.Detectors,
		"tallies": e.Tallies, "clock": e.clock, "keys": e.tables.keys, "filter": e.Filter, "filter_lines": e.FilterLines,
		"transmit_failures": e.edgeObjects.TransmitFailures, "agents": e.Agents,
	})); err != nil {
		t.Fatal(err)
	}
	return e, NewSurvey(root, EdgeAgent)
}

func TestSurveyCountsByServiceAndVerdict(t *testing.T) {
	e, s := surveyed(t)
	cpus := ebpf.MustPossibleCPU()
	type at struct {
		service uint32
		verdict int
	}
	stride := uint32(edgeVerdictVERDICT_STRIDE)
	want := map[at]uint64{{0, 0}: 1, {1, 3}: 2, {2, len(VerdictNames()) - 1}: 3, {uint32(len(services)), 5}: 4}
	for where, n := range maps.All(map[at]uint64{{uint32(len(services)) + 1, 1}: 5, {1000, 1}: 6}) {
		e.setCounter(where.service*stride+uint32(where.verdict), n, cpus)
	}
	for where, n := range want {
		e.setCounter(where.service*stride+uint32(where.verdict), n, cpus)
	}
	got := make(map[at]uint64)
	if err := s.Verdicts(uint32(len(services)), func(service uint32, verdict int, count uint64) {
		got[at{service, verdict}] = count
	}); err != nil {
		t.Fatal(err)
	}
	for where := range want {
		want[where] *= uint64(cpus)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func (e edgeAgent) setCounter(key uint32, each uint64, cpus int) {
	e.t.Helper()
	perCPU := make([]uint64, cpus)
	for i := range perCPU {
		perCPU[i] = each
	}
	if err := e.counters.Put(key, perCPU); err != nil {
		e.t.Fatal(err)
	}
}

func TestSurveyNamesServicesAsTheyAreNumbered(t *testing.T) {
	_, s := surveyed(t)
	states, err := s.Services()
	if err != nil || len(states) != len(services) {
		t.Fatalf("%d services: %v", len(states), err)
	}
	for i := range states {
		if states[i].ID != uint32(i+1) || states[i].Name != services[i].Name || domains[states[i].Domain] != services[i].Domain {
			t.Errorf("%+v", states[i])
		}
	}
}

func TestSurveyFindsTheLastKey(t *testing.T) {
	e, s := surveyed(t)
	const ahead = 100 // as newEdge has them
	for _, from := range []uint64{1, 100, 255, 1 << 40} {
		for _, n := range []uint64{0, 1, 2, 57, ahead} {
			e.clearKeys()
			var slots []cookie.Slot
			for epoch := from - 1; epoch < from+n; epoch++ { // and one that is past
				slots = append(slots, slotOf(epoch, cookie.SipHash, 7))
			}
			slots = append(slots, cookie.Slot{Epoch: from + n}) // there is none, it says
			e.writeKeys(domainHalf, slots...)
			e.writeKeys(domainMain, slotOf(from+n, cookie.SipHash, 7)) // somebody else's
			if until, err := s.KeysUntil(domainHalf, from, ahead); err != nil || until != from+n {
				t.Errorf("%d keys from %d on: until %d, %v", n, from, until, err)
			}
		}
	}
}

func TestSurveyEstimatesTheFilter(t *testing.T) {
	const made, added = 40_000, 300_000 // far too many: every fourth stranger is let in
	e, s := surveyed(t, func(c *EdgeConfig) { c.Flows = made })
	twin := newFilterTwin(e)
	lines := int(e.FilterLines.MaxEntries())
	for i := range uint64(added) {
		twin.Add(numberedFlow(i, i%2 == 0))
	}
	e.writeTwin(twin)
	e.writePosition(twin)
	f, err := s.Filter()
	if err != nil {
		t.Fatal(err)
	}
	wantNear(t, "current flows", f.Flows(f.Current), added, 0.05)
	wantNear(t, "capacity", float64(f.Capacity()), made, 0.01)
	if f.Older != 0 {
		t.Errorf("the older generation has %v", f.Older)
	}
	met := e.falsePositives(twin, func(i uint64) cookie.Flow { return numberedFlow(i, true) }, 20_000)
	wantNear(t, "false positives", f.FalsePositive, met, 0.1)

	twin.After(uint64(lines) / 2) // the sweep has passed half of the lines
	e.writePosition(twin)
	if f, err = s.Filter(); err != nil {
		t.Fatal(err)
	}
	wantNear(t, "halves", f.Older, f.Current, 0.05)
}

func wantNear(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if got < want*(1-share) || got > want*(1+share) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestSurveyOfAFullFilterIsFinite(t *testing.T) {
	f := FilterFill{Lines: 1000}
	for g := range 2 {
		line := edgeFilterLine{}
		for i := range line.Word[g] {
			line.Word[g][i] = ^uint64(0)
		}
		f.add(&line, g, 2)
	}
	if n := f.Flows(f.Current); f.Current != 1 || f.FalsePositive != 1 || n < 32_000 || n > 1e6 {
		t.Errorf("%+v: %v flows", f, n)
	}
}

func TestSurveyOfNothingIsAnError(t *testing.T) {
	needRoot(t)
	s := NewSurvey("/sys/fs/bpf/smartcookie_nowhere", EdgeAgent)
	if s.Attached() {
		t.Error("something is attached")
	}
	_, services := s.Services()
	_, clock := s.Clock()
	_, programs := s.Programs()
	for _, err := range []error{services, clock, programs, s.Verdicts(1, nil)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	}
	if counts, err := s.ControlCounts(); counts != nil || err != nil {
		t.Errorf("%v, %v", counts, err)
	}
}

// Who counts what a list has, counts what is left of it.
func TestOccupancyIsWhatTheLastSweepHasLeft(t *testing.T) {
	e := loadedEdge(t)
	if got := e.Occupancies(); len(got) != 0 {
		t.Errorf("before any sweep: %v", got)
	}
	if err := e.lists.Add(Deny, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("2001:db8::/32")}, 0); err != nil {
		t.Fatal(err)
	}
	if err := e.lists.Add(Allow, []netip.Prefix{netip.MustParsePrefix("192.0.2.9/32")}, time.Nanosecond); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the coarse clock has gone on", func() bool { n, err := e.SweepLists(); return n == 1 || err != nil })
	want := map[string]int{"deny4": 2, "deny6": 1, "allow4": 0, "allow6": 0}
	for _, o := range e.Occupancies() {
		if n, ok := want[o.Table]; !ok || n != o.Entries || o.Capacity != int(edgeSourceLimitsLISTED_MAX) {
			t.Errorf("%+v, want %d", o, n)
		}
		delete(want, o.Table)
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
}
