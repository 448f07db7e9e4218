package lab

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestQuantileIsARequestThatHappened(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1)*time.Millisecond)
	}
	for _, test := range []struct {
		sorted []time.Duration
		share  float64
		want   float64
	}{
		{nil, 0.5, 0},
		{hundred[:1], 0.99, 1},
		{hundred, 0.50, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
		{hundred[:3], 0.5, 2},
	} {
		if got := quantile(test.sorted, test.share); got != test.want {
			t.Errorf("%v of %d: %v, want %v", test.share, len(test.sorted), got, test.want)
		}
	}
}

func TestErrorsAreToldApart(t *testing.T) {
	for want, err := range map[string]error{
		"timeout":     os.ErrDeadlineExceeded,
		"refused":     fmt.Errorf("dial: %w", syscall.ECONNREFUSED),
		"reset":       fmt.Errorf("read: %w", syscall.ECONNRESET),
		"unreachable": syscall.EHOSTUNREACH,
		"other":       http.ErrNotSupported,
	} {
		if got := errorKind(err); got != want {
			t.Errorf("%v is %s, want %s", err, got, want)
		}
	}
	if got := errorKind(io.ErrUnexpectedEOF); got != "reset" {
		t.Errorf("a cut answer is %s", got)
	}
}

func TestOneLostRequestIsNotServedWhole(t *testing.T) {
	for want, load := range map[string]LoadReport{
		"-":      {},
		"0.0%":   {Requests: 5},
		"99.9%":  {Requests: 100_000, OK: 99_999},
		"100.0%": {Requests: 100_000, OK: 100_000},
	} {
		if got := served(load); got != want {
			t.Errorf("%d of %d is %s, want %s", load.OK, load.Requests, got, want)
		}
	}
}

func TestLinesFitATerminal(t *testing.T) {
	full := LoadReport{Requests: 99_999, OK: 99_999, P50: 1000, P99: 2000.1}
	var out strings.Builder
	report := Report{Defence: "kernel", Benign: full, Flood: FloodReport{OfferedPPS: 19.99e6, AnsweredPPS: 19.99e6}}
	if err := WriteTable(&out, []Report{report}); err != nil {
		t.Fatal(err)
	}
	NewScreen(&out, false).Show(Sample{Elapsed: time.Minute, Offered: 19.99e6, Answered: 19.99e6, Benign: full})
	for _, chapter := range story {
		fmt.Fprintf(&out, "0. %s\n", chapter.title)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
}

func TestScreenOverwritesInATerminalOnly(t *testing.T) {
	var terminal, file strings.Builder
	for _, screen := range []*Screen{NewScreen(&terminal, true), NewScreen(&file, false)} {
		for quarter := range 9 {
			screen.Show(Sample{Elapsed: time.Duration(quarter) * 250 * time.Millisecond})
		}
		if err := screen.Finish(); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(terminal.String(), "\n"); got != 1 {
		t.Errorf("a terminal got %d lines, want 1", got)
	}
	if got := strings.Count(file.String(), "\n"); got != 2 || strings.Contains(file.String(), "\x1b") {
		t.Errorf("a file got %q", file.String())
	}
}

// full is a disk without room.
type full struct{}

var errFull = errors.New("no room")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestScreenReportsThatItCannotWrite(t *testing.T) {
	screen := NewScreen(full{}, true)
	screen.Show(Sample{})
	if err := screen.Finish(); !errors.Is(err, errFull) {
		t.Errorf("got %v, want %v", err, errFull)
	}
}

func TestSetupsCountEveryWayToMakeAConnection(t *testing.T) {
	verdicts := map[string]uint64{"setup": 5, "setup_over_timewait": 2, "setup_over_stale": 1, "pass_syn": 100}
	if got := setups(verdicts); got != 8 {
		t.Errorf("got %d, want 8", got)
	}
}

func TestDefenceNamesAreChecked(t *testing.T) {
	for _, name := range Defences() {
		if err := KnowsDefence(name); err != nil {
			t.Error(err)
		}
	}
	if err := KnowsDefence("hope"); !errors.Is(err, ErrNoSuchDefence) {
		t.Errorf("got %v, want %v", err, ErrNoSuchDefence)
	}
}
