package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
)

// A client whose line is dead from the SYN-ACK on believes itself connected,
// never sends a SYN again, and repeats its first data at about 0.2, 0.6, 1.5,
// 3.2, 6.6 and 13.5 s. The first of these behind the outage has to come while
// an edge accepts the cookie: one epoch at least, two at most.
func TestClientsThatSpeakFirstSurviveAnOutageBehindTheSYNACK(t *testing.T) {
	for _, test := range []struct {
		outage time.Duration
		epoch  string
	}{
		{2 * time.Second, "8s"},
		{5 * time.Second, "8s"},
		{10 * time.Second, "16s"},
	} {
		t.Run(test.outage.String(), func(t *testing.T) {
			t.Parallel()
			outcome := throughOutage(t, test.outage, test.epoch)
			if failed := outcome.failed(); failed > 0 {
				t.Errorf("%d of %d clients did not get through, such as %v", failed, len(outcome.streams), outcome.example())
			}
		})
	}
}

// The default epoch is too short for an outage of ten seconds: who began late
// in an epoch comes when its cookie is no longer accepted. None is harmed.
func TestOutageLongerThanAnEpochCostsTheLateOnes(t *testing.T) {
	if !long() {
		t.Skip("a figure for the manual, taken in the long form")
	}
	outcome := throughOutage(t, 10*time.Second, "8s")
	if holes := outcome.holes(); holes > 0 {
		t.Errorf("%d streams with a hole", holes)
	}
	t.Logf("%d of %d clients did not get through", outcome.failed(), len(outcome.streams))
}

const (
	outageRate   = 20               // clients per second
	outageSpread = 8 * time.Second  // at least one epoch of those by default
	outageLimit  = 40 * time.Second // of one client
)

// throughOutage lets clients connect over an epoch's time, each with an outage
// of its own right behind its SYN-ACK.
func throughOutage(t *testing.T, outage time.Duration, epoch string) *tally {
	t.Helper()
	l := newLab(t, lab.Options{Wire: &badwire.Faults{Delay: lossDelay}})
	keys := filepath.Join(l.Dir(), "epochs")
	smartcookie(t, l.Server.Namespace, "keys", "new", keys, "--epoch", epoch)
	splitRoute.protect(t, l, protection{ports: lossPorts, keys: keys})
	serveKinds(t, l)
	l.Wire.Outage(badwire.Outage{Match: badwire.IsSYNACK, For: outage, EachFlow: true})
	outcome := &tally{}
	requests(outageRate, outageSpread, func(n int) error {
		outcome.add(lossKinds[n%3].talkAcross(t.Context(), l, n%2 == 1, uint64(n), outageLimit))
		return nil
	})
	noOverload(t, l)
	wantOutages(t, l, outcome)
	t.Logf("epoch %s: %d of %d failed, first byte p50 %s, p99 %s, retransmits %.1f", epoch, outcome.failed(), len(outcome.streams),
		outcome.firstByte(0.5), outcome.firstByte(0.99), outcome.retransmits())
	return outcome
}

// wantOutages makes sure that every client had one: its ACK and data at least
// fell into it.
func wantOutages(t *testing.T, l *lab.Lab, outcome *tally) {
	t.Helper()
	both := l.Wire.Counts()
	if lost, want := both[0].Outage, uint64(2*len(outcome.streams)); lost < want {
		t.Errorf("%d packets of the clients fell into an outage, want %d at least", lost, want)
	}
}
