package e2e

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

// crowd is how many connections are busy, and how many idle, when an agent
// comes.
const crowd = 1000

// crowded is a server with connections that began before any defence.
type crowded struct {
	lab  *lab.Lab
	idle []*talk
	busy *transfers
}

func newCrowded(t *testing.T) crowded {
	t.Helper()
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	serveEcho(t, l)
	if err := l.Server.Sysctl("net.ipv4.tcp_syncookies", "1"); err != nil {
		t.Fatal(err)
	}
	talks := newTalks(t, l, 2*crowd)
	busy := startTransfers(t.Context(), talks[crowd:])
	t.Cleanup(busy.stop)
	return crowded{lab: l, idle: talks[:crowd], busy: busy}
}

// atLeast wants a verdict to have happened so often, and none against a
// connection that lives.
func atLeast(t *testing.T, d *daemon, verdict string, want uint64) {
	t.Helper()
	verdicts := d.verdicts(t)
	if verdicts[verdict] < want {
		t.Errorf("%s: %s only %d times: %v", d.name, verdict, verdicts[verdict], verdicts)
	}
	for _, cut := range []string{"drop_bad_cookie", "drop_unverified_rst", "drop_unverified_synack"} {
		if verdicts[cut] > 0 {
			t.Errorf("%s: %s %d times", d.name, cut, verdicts[cut])
		}
	}
}

func TestEdgeThatStartsOrRestartsCutsNoConnection(t *testing.T) {
	c := newCrowded(t)
	split := newHalves(t, c.lab, labKeys(t, c.lab), "learn: 0s", "learn: 8s\ngeneration: 20s")
	split.start(t)
	allAnswer(t, "idle connections while the edge learns", c.idle)
	atLeast(t, split.edge, "pass_learning", crowd)
	eventually(t, 15*time.Second, "the learning time ends", func() bool { return !learns(t, split.edge) })
	allAnswer(t, "idle connections after the edge has learnt", c.idle)

	split.edge.kill(t)
	allAnswer(t, "idle connections without an edge daemon", c.idle)
	split.edge.start(t)
	if learns(t, split.edge) || !bytes.Contains(split.edge.process.Log(), []byte("learning=0s")) {
		t.Errorf("the edge learns anew: %s", split.edge.process.Log())
	}
	allAnswer(t, "idle connections after a restart of the edge", c.idle)
	finishLoad(t, "new connections", startLoad(t, c.lab, lab.LoadOptions{Duration: time.Second}))
	c.busy.finish(t)
	atLeast(t, split.edge, "pass_verified", crowd)
}

// learns tells whether unknown flows still pass an edge.
func learns(t *testing.T, edge *daemon) bool {
	t.Helper()
	_, clock := agentClock(t, edge)
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		t.Fatal(err)
	}
	const learnUntilAt = 16 // in struct agent_clock
	return now.Nano() < int64(binary.NativeEndian.Uint64(clock[learnUntilAt:]))
}

// The idle connections have not spoken since the agent came: to it they are
// like any that has been silent for more than two generations.
func TestHostThatStartsCutsNoConnection(t *testing.T) {
	c := newCrowded(t)
	host := newHost(t, c.lab)
	host.start(t)
	finishLoad(t, "new connections", startLoad(t, c.lab, lab.LoadOptions{Duration: 2 * time.Second}))
	if long() {
		waitGenerations(t, host, 2, 3*time.Minute)
	}
	allAnswer(t, "idle connections", c.idle)
	atLeast(t, host, "pass_socket", crowd)
	host.kill(t)
	host.start(t)
	allAnswer(t, "idle connections after a restart", c.idle)
	c.busy.finish(t)
}
