package e2e

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// startFlood floods the server until the test ends.
func startFlood(t *testing.T, l *lab.Lab, rate lab.Rate) {
	t.Helper()
	flood, err := l.StartFlood(lab.FloodOptions{Rate: rate, Limit: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := flood.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestIdleConnectionsOutliveFiveGenerationsOfSilence(t *testing.T) {
	beside(t)
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			beside(t)
			l := newLab(t, lab.Options{})
			serveEcho(t, l)
			startHTTP(t, l)
			// No return traffic refreshes the filter: only announcements do.
			split := newSpeaking(t, l, ipv6, "learn: 0s", "learn: 0s\ngeneration: 5s\nreturn_traffic: false")
			split.start(t)
			awaitPhase(t, split.edge, "enforced", 30*time.Second)
			talks := newTalks(t, l, 200)
			startFlood(t, l, 20_000)
			waitGenerations(t, split.edge, 5, time.Minute)
			allAnswer(t, "after five generations of silence", talks)
			if n := split.edge.verdicts(t)["pass_learning"]; n > 0 {
				t.Logf("%d packets passed while handshakes were given grace", n)
			}
			finishLoad(t, "new connections", startLoad(t, l, lab.LoadOptions{Duration: time.Second}))
		})
	}
}

func TestRestartedEdgeLearnsEverythingWithinTwoSeconds(t *testing.T) {
	l := newLab(t, lab.Options{})
	serveEcho(t, l)
	split := newSpeaking(t, l, false, "learn: 0s", "generation: 20s")
	split.start(t)
	talks := newTalks(t, l, 500)
	startFlood(t, l, 20_000)
	split.edge.reboot(t)
	split.edge.start(t)
	begin := time.Now()
	awaitPhase(t, split.edge, "grace", 2*time.Second) // a whole announcement has come
	t.Logf("%d connections known %s after the edge was ready", len(talks), time.Since(begin))
	eventually(t, 5*time.Second, "the daemon has counted them", func() bool {
		return split.edge.verdicts(t)["control_learned"] >= uint64(len(talks))
	})
	allAnswer(t, "after the edge's restart", talks)
	if n := split.edge.verdicts(t)["pass_verified"]; n < uint64(len(talks)) {
		t.Errorf("only %d packets were of flows in the filter", n)
	}
}

func TestOutsideDoesNotReachTheControlSocket(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	split := newSpeaking(t, l, false)
	split.start(t)
	awaitPhase(t, split.edge, "grace", 10*time.Second)
	send := func(from *lab.Namespace, to netip.AddrPort, times int) {
		if err := from.Do(func() error {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			if err != nil {
				return err
			}
			defer conn.Close()
			for range times {
				_, _ = conn.Write([]byte("no message")) // refused: ICMP says so
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	edge := controlAt(l, 1, false)
	send(l.Client.Namespace, edge, 100)
	send(l.Server.Namespace, edge, 7)
	eventually(t, 5*time.Second, "what the inside sends is refused and counted", func() bool {
		return split.edge.verdicts(t)["control_refused_length"] >= 7
	})
	if n := split.edge.verdicts(t)["control_refused_length"]; n != 7 {
		t.Errorf("%d messages refused, 7 were sent from the inside and 100 from the outside", n)
	}
}

// The table follows the kernel's sockets by their events alone: the walk over
// the sockets, which would mend it, comes only once an edge is heard.
func TestTableOfConnectionsFollowsTheSockets(t *testing.T) {
	l := newLab(t, lab.Options{})
	serveEcho(t, l)
	split := newSpeaking(t, l, false)
	split.server.start(t)
	table := pinnedMap(t, split.server, dataplane.ServerAgent, "established")
	entries := func() (n int) {
		var key []byte
		var round uint32
		for all := table.Iterate(); all.Next(&key, &round); {
			n++
		}
		return n
	}
	talks := newTalks(t, l, 50)
	eventually(t, 5*time.Second, "all connections are in the table", func() bool { return entries() == len(talks) })
	for _, talk := range talks[10:] {
		talk.conn.Close()
	}
	eventually(t, 5*time.Second, "closed connections have left it", func() bool { return entries() == 10 })
}
