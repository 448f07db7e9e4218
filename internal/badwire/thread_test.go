package badwire

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

type threadState struct {
	slack int
	cpus  unix.CPUSet
}

func stateOfThread(t *testing.T) (s threadState) {
	t.Helper()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err := errors.Join(err, unix.SchedGetaffinity(0, &s.cpus)); err != nil {
		t.Fatal(err)
	}
	s.slack = slack
	return s
}

// A wire's thread lives on, and serves others: what it has started would die with it.
func TestWireGivesItsThreadBackAsItWas(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := stateOfThread(t)
	w := &Wire{}
	for cpu := range 1024 {
		if before.cpus.IsSet(cpu) {
			w.cpus.Set(cpu) // one of those that there are
			break
		}
	}
	failure := errors.New("so it ended")
	err := (&run{wire: w}).exactly(func() error {
		if during := stateOfThread(t); during != (threadState{1, w.cpus}) {
			t.Errorf("at work: %+v", during)
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
	if after := stateOfThread(t); after != before {
		t.Errorf("given back: %+v, was %+v", after, before)
	}
}
