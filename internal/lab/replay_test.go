package lab

import (
	"testing"
	"time"

	"smartcookie/internal/traffic"
)

func TestReplayedFlowsAreDueWhenTheyBegin(t *testing.T) {
	flows := traffic.Schedule{{Start: 0, Bytes: 5}, {Start: 10 * time.Millisecond, Bytes: 6}, {Start: 10 * time.Millisecond}}
	var options LoadOptions
	options.defaults()
	for _, c := range []struct {
		at           time.Duration
		issued, want int
	}{{0, 0, 1}, {9 * time.Millisecond, 1, 1}, {10 * time.Millisecond, 1, 3}, {time.Hour, 0, 3}} {
		if got := options.wanted(flows, c.issued, c.at); got != c.want {
			t.Errorf("at %v, %d made: %d, want %d", c.at, c.issued, got, c.want)
		}
	}
	if v := options.request(flows, 1); v.page != "6" {
		t.Errorf("%+v", v)
	}
	if v := options.request(nil, 1); v.page != "" {
		t.Errorf("%+v", v)
	}
}

func TestTraceIsReplayedThroughTheLab(t *testing.T) {
	lab := newLab(t, Options{})
	source, err := traffic.Open("../traffic/testdata/small.pcap")
	if err != nil {
		t.Fatal(err)
	}
	schedule, err := source.Schedule(traffic.Want{Duration: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lab.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	load, err := lab.StartReplay(t.Context(), schedule, LoadOptions{Crowd: Crowd4})
	if err != nil {
		t.Fatal(err)
	}
	report, err := load.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if n := uint64(len(schedule)); n != 24 || report.OK != n || report.Requests != n || report.Bytes != uint64(schedule.Bytes()) || report.P50 <= 0 {
		t.Errorf("%d flows of %d bytes became %+v", n, schedule.Bytes(), report)
	}
}
