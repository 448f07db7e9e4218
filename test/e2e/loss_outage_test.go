package e2e

import (
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/keys"
	"smartcookie/internal/lab"
)

// A client whose line is dead from the SYN-ACK on believes itself connected,
// never sends a SYN again, and repeats its first data at about 0.2, 0.6, 1.5,
// 3.2, 6.6 and 13.5 s. The first of these behind the outage has to come while
// an edge accepts the cookie: one epoch at least, two at most.
func TestClientsThatSpeakFirstSurviveAnOutageBehindTheSYNACK(t *testing.T) {
	for _, outage := range []time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second} {
		t.Run(outage.String(), func(t *testing.T) {
			t.Parallel()
			outcome := throughOutage(t, outage)
			if failed := outcome.failed(); failed > 0 {
				t.Errorf("%d of %d clients did not get through, such as %v", failed, len(outcome.streams), outcome.example())
			}
		})
	}
}

const (
	outageRate   = 20                              // clients per second
	outageSpread = keys.EpochSeconds * time.Second // so that some begin late in an epoch
	outageLimit  = 40 * time.Second                // of one client
)

// throughOutage lets clients connect over an epoch's time, each with an outage
// of its own right behind its SYN-ACK.
func throughOutage(t *testing.T, outage time.Duration) *tally {
	t.Helper()
	l := newLab(t, lab.Options{Wire: &badwire.Faults{Delay: lossDelay}})
	splitRoute.protect(t, l, protection{ports: lossPorts})
	serveKinds(t, l)
	l.Wire.Outage(badwire.Outage{Match: badwire.IsSYNACK, For: outage, EachFlow: true})
	outcome := &tally{}
	requests(outageRate, outageSpread, func(n int) error {
		outcome.add(lossKinds[n%3].talkAcross(t.Context(), l, n%2 == 1, uint64(n), outageLimit))
		return nil
	})
	noOverload(t, l)
	wantOutages(t, l, outcome)
	t.Logf("%d of %d failed, first byte p50 %s, p99 %s, retransmits %.1f", outcome.failed(), len(outcome.streams),
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
