package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

const onConfirm = "mode: always\n    admission: on-confirm"

// newConfirming starts a split defence that admits on confirmation, and waits
// until it stands.
func newConfirming(t *testing.T, l *lab.Lab, ipv6 bool, edits ...string) halves {
	t.Helper()
	split := newSpeaking(t, l, ipv6, append([]string{"mode: always", onConfirm}, edits...)...)
	split.start(t)
	awaitPhase(t, split.edge, "enforced", 30*time.Second)
	return split
}

func TestConnectionsAreAdmittedOnConfirmation(t *testing.T) {
	beside(t)
	for _, c := range []struct {
		setup string
		ipv6  bool
	}{{"native", false}, {"native", true}, {"translate", false}} {
		ipv6 := c.ipv6
		t.Run(c.setup+", agents speak "+family(ipv6), func(t *testing.T) {
			beside(t)
			l := newLab(t, lab.Options{Setup: c.setup})
			serveEcho(t, l)
			startHTTP(t, l)
			split := newConfirming(t, l, ipv6, "learn: 0s", "learn: 0s\ngeneration: 5s")
			talks := newTalks(t, l, 100) // IPv4 and IPv6 in turn
			allAnswer(t, "again", talks)
			eventually(t, 5*time.Second, "every setup was confirmed", func() bool {
				return split.edge.verdicts(t)["control_heard_confirm"] >= uint64(len(talks))
			})
			edge, server := split.edge.verdicts(t), split.server.verdicts(t)
			t.Logf("edge %v\nserver %v", edge, server)
			for verdict, want := range map[string]uint64{
				"pass_cookie": 0, "drop_busy": 0, "drop_too_long": 0, "control_unsent": 0, "control_refused_unasked": 0,
			} {
				if edge[verdict] != want {
					t.Errorf("edge: %s %d times", verdict, edge[verdict])
				}
			}
			if n := server["setup"] + server["setup_translated"]; n < uint64(len(talks)) {
				t.Errorf("the server has set up %d connections of %d", n, len(talks))
			}
			finishLoad(t, "HTTP", startLoad(t, l, lab.LoadOptions{Duration: time.Second}))
		})
	}
}

// insideOf is where an edge speaks whose network inside is not the server's.
func insideOf(t *testing.T, l *lab.Lab) string {
	t.Helper()
	var at netip.AddrPort
	if err := l.Edge.Do(func() error {
		device, err := net.InterfaceByName(l.Edge.Inside)
		if err != nil {
			return err
		}
		addresses, err := device.Addrs()
		if err != nil {
			return err
		}
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() {
				at = netip.AddrPortFrom(prefix.Addr(), controlPort)
			}
		}
		return nil
	}); err != nil || !at.IsValid() {
		t.Fatalf("the edge's address inside: %v", err)
	}
	return at.String()
}

// Return traffic keeps the filter full by itself; here nothing but
// confirmations does until the next announcement, ten seconds later.
func TestConfirmationsAloneAdmitWhereNoReturnTrafficPasses(t *testing.T) {
	beside(t)
	l := newLab(t, lab.Options{Asymmetric: true})
	serveEcho(t, l)
	split := newConfirming(t, l, false, "learn: 0s", "learn: 0s\ngeneration: 20s\nreturn_traffic: false",
		controlAt(l, 1, false).String(), insideOf(t, l))
	talks := newTalks(t, l, 50)
	allAnswer(t, "again", talks)
	edge := split.edge.verdicts(t)
	if edge["pass_verified"] < uint64(len(talks)) || edge["pass_cookie"] > 0 || edge["sent_setup"] < uint64(len(talks)) {
		t.Errorf("edge %v", edge)
	}
}

// forget empties an edge's filter, as a reboot would, and leaves it no reason to
// ask for an announcement.
func (d *daemon) forget(t *testing.T) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(d.pins(), dataplane.EdgeAgent, "maps", "filter_lines"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	memory, err := m.Memory()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := memory.WriteAt(make([]byte, memory.Size()), 0); err != nil {
		t.Fatal(err)
	}
}

func TestProbesFindConnectionsThatTheEdgeDoesNotKnow(t *testing.T) {
	beside(t)
	for _, probes := range []int{0, 1000} {
		t.Run(fmt.Sprint(probes, " probes a second"), func(t *testing.T) {
			beside(t)
			l := newLab(t, lab.Options{})
			serveEcho(t, l)
			split := newSpeaking(t, l, false, "learn: 0s", "learn: 0s\ngeneration: 20s",
				"mode: always", fmt.Sprintf("mode: always\n    probes: %d", probes))
			split.start(t)
			awaitPhase(t, split.edge, "enforced", 3*time.Minute)
			talks := newTalks(t, l, 20)
			made := split.server.verdicts(t)["setup"]
			heard := split.edge.verdicts(t)["control_heard_flows"]
			eventually(t, 20*time.Second, "an announcement, the last for ten seconds", func() bool {
				return split.edge.verdicts(t)["control_heard_flows"] > heard
			})
			split.edge.forget(t)
			if probes == 0 {
				for _, err := range forEach(talks, func(_ int, talk *talk) error { return talk.say(100, patience) }) {
					if err == nil {
						t.Error("an unknown flow passes")
					}
				}
				return
			}
			allAnswer(t, "known by probes", talks)
			eventually(t, 5*time.Second, "the agent has heard and confirmed probes", func() bool {
				want := uint64(len(talks))
				return split.server.verdicts(t)["control_heard_probe"] >= want && split.edge.verdicts(t)["control_heard_confirm"] >= want
			})
			if server := split.server.verdicts(t); server["setup"] > made {
				t.Errorf("probes have set up %d connections", server["setup"])
			}
		})
	}
}

func TestAgentRefusesSetupsForAnothersAddress(t *testing.T) {
	l := newLab(t, lab.Options{})
	another := l.Server.IPv4.Next()
	own := l.Server.IPv4.String()
	split := newConfirming(t, l, false, "learn: 0s", "learn: 0s\ngeneration: 5s",
		"prefixes: ["+own+"/32", "prefixes: ["+own+"/32, "+another.String()+"/32",
		"protects: ["+own, "protects: ["+own+", "+another.String())
	serveEcho(t, l)
	address := netip.AddrPortFrom(another, echoPort)
	eventually(t, 5*time.Second, "the edge knows that somebody listens", func() bool {
		conn, err := dialBy(t.Context(), net.Dialer{Timeout: patience}, l.Client.Namespace, address.String())
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	eventually(t, 5*time.Second, "the agent has refused it", func() bool {
		return split.server.verdicts(t)["control_refused_foreign"] > 0
	})
	edge, server := split.edge.verdicts(t), split.server.verdicts(t)
	if server["setup"] > 0 || edge["control_heard_confirm"] > 0 || edge["pass_verified"] > 0 {
		t.Errorf("edge %v, server %v", edge, server)
	}
}
