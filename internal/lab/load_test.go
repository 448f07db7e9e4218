package lab

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestClientsOfACrowdComeInBatches(t *testing.T) {
	for _, test := range []struct {
		name    string
		options LoadOptions
		want    string
	}{
		{
			"as there are requests in a second", LoadOptions{Rate: 2},
			"0.1+ 0.2+ 0.1 0.2 0.1 0.2 0.1 0.2 0.3+ 0.4+",
		},
		{
			"as asked for", LoadOptions{Rate: 2, Batch: 3, Visits: 2, Skip: 254},
			"0.255+ 1.0+ 1.1+ 0.255 1.0 1.1 1.2+ 1.3+ 1.4+ 1.2",
		},
	} {
		test.options.Crowd = Crowd4
		test.options.defaults()
		var all []string
		for n := range 10 {
			v := test.options.visit(n)
			text := strings.TrimPrefix(v.from.String(), "10.100.")
			if v.first {
				text += "+"
			}
			all = append(all, text)
		}
		if got := strings.Join(all, " "); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// Else a late tick has clients come whom the next load, which skips this one's, takes
// for new.
func TestNoMoreRequestsAreDueThanThereAre(t *testing.T) {
	options := LoadOptions{Rate: 100, Duration: 500 * time.Millisecond}
	for at, want := range map[time.Duration]int{100 * time.Millisecond: 10, 500 * time.Millisecond: 50, time.Second: 50} {
		if got := options.wanted(nil, 0, at); got != want {
			t.Errorf("after %s: %d, want %d", at, got, want)
		}
	}
}

func TestPercentilesNeedRequestsToTellThem(t *testing.T) {
	var c contactRecord
	for ms := range 1_000 {
		c.latencies = append(c.latencies, time.Duration(ms+1)*time.Millisecond)
	}
	slices.Reverse(c.latencies)
	got := c.report()
	want := ContactReport{OK: 1_000, P50: 500, P90: 900, P99: 990, P999: 999, Max: 1_000}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	c.latencies = c.latencies[:9]
	if got := c.report(); got.P90 != 0 || got.P50 != 5 {
		t.Errorf("nine requests tell %+v", got)
	}
}

func TestServerAnswersAsLongAsAskedFor(t *testing.T) {
	for path, want := range map[string]struct{ status, length int }{
		"/": {http.StatusOK, len("served\n")}, "/14500": {http.StatusOK, 14_500}, "/0": {http.StatusOK, 0},
		"/150000": {http.StatusOK, 150_000}, "/1099511627777": {http.StatusNotFound, -1}, "/x": {http.StatusNotFound, -1},
	} {
		answer := httptest.NewRecorder()
		greet(answer, httptest.NewRequest(http.MethodGet, path, nil))
		if answer.Code != want.status || want.length >= 0 && answer.Body.Len() != want.length {
			t.Errorf("%s: status %d, %d bytes", path, answer.Code, answer.Body.Len())
		}
	}
}
