package e2e

import (
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// patience is how long a packet that is lost, and its repetition, are waited
// for.
const patience = time.Second

func TestFilterForgetsSilentFlowsAndKeepsOthersWithoutADaemon(t *testing.T) {
	beside(t)
	l := newLab(t, lab.Options{})
	serveEcho(t, l)
	split := newHalves(t, l, labKeys(t, l), "learn: 0s", "learn: 0s\ngeneration: 5s")
	split.start(t)
	talks := newTalks(t, l, 20)
	split.edge.kill(t)

	silent := talks[10:]
	busy := startTransfers(t.Context(), talks[:10])
	t.Cleanup(busy.stop)
	waitGenerations(t, split.edge, 2, 30*time.Second)
	busy.finish(t)
	if n := split.edge.verdicts(t)["drop_bad_cookie"]; n > 0 {
		t.Errorf("%d packets of flows with traffic were lost", n)
	}
	for _, err := range forEach(silent, func(_ int, talk *talk) error { return talk.say(100, patience) }) {
		if err == nil {
			t.Error("a flow that was silent for more than two generations is still verified")
		}
	}
	if n := split.edge.verdicts(t)["drop_bad_cookie"]; n < uint64(len(silent)) {
		t.Errorf("only %d packets of forgotten flows were lost", n)
	}
}
