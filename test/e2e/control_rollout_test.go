package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// step does something while clients come, none of whom may be refused.
func step(t *testing.T, l *lab.Lab, what string, do func()) {
	t.Helper()
	load := startLoad(t, l, lab.LoadOptions{Duration: 3 * time.Second})
	do()
	finishLoad(t, what, load)
}

// detach takes a half off while its daemon runs, and waits for its end.
func (d *daemon) detach(t *testing.T) {
	t.Helper()
	if _, err := dataplane.Detach(d.pins()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, d.name+" notices and ends", func() bool {
		return strings.Contains(string(d.process.Log()), "msg=detached")
	})
}

func TestRollOutInAnyOrderRefusesNobody(t *testing.T) {
	beside(t)
	const strict = "interfaces:"
	for _, first := range []string{"agent", "edge"} {
		t.Run(first+" first", func(t *testing.T) {
			beside(t)
			l := newLab(t, lab.Options{})
			startHTTP(t, l)
			split := newSpeaking(t, l, false, "learn: 0s", "generation: 5s", strict, "strict: true\n"+strict)
			order := []*daemon{split.server, split.edge}
			if first == "edge" {
				order = []*daemon{split.edge, split.server}
			}
			step(t, l, "the first half starts", func() { order[0].start(t) })
			step(t, l, "there is one half", func() {})
			step(t, l, "the second half starts", func() { order[1].start(t) })
			step(t, l, "both halves get to know each other", func() { awaitPhase(t, split.edge, "enforced", 30*time.Second) })
			step(t, l, "the edge enforces", func() {})
			if n := split.edge.verdicts(t)["answer_syn"]; n == 0 {
				t.Error("the edge has answered no SYN")
			}
			split.server.kill(t)
			awaitPhase(t, split.edge, "silent", 10*time.Second)
			step(t, l, "the agent's daemon is gone", func() {})
			step(t, l, "the agent's daemon comes back", func() { split.server.start(t) })
			awaitPhase(t, split.edge, "enforced", 30*time.Second)
			step(t, l, "the edge is switched off", func() { split.edge.detach(t) })
			step(t, l, "there is no edge", func() {})
			step(t, l, "the agent is switched off", func() { split.server.detach(t) })
		})
	}
}

func TestPortsFollowTheirListeners(t *testing.T) {
	beside(t)
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	split := newSpeaking(t, l, false, "learn: 0s", "generation: 5s")
	split.start(t)
	awaitPhase(t, split.edge, "enforced", 30*time.Second)
	closed := netip.AddrPortFrom(l.Server.IPv4, closedPort).String()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if conn, err := dial(ctx, l.Client.Namespace, closed); err == nil {
		conn.Close()
		t.Error("a port on which nobody listens is answered")
	}
	if n := split.edge.verdicts(t)["drop_closed_port"]; n == 0 {
		t.Error("its SYN is not counted")
	}
	if err := l.Server.Do(func() error {
		listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", closedPort))
		if err == nil {
			t.Cleanup(func() { listener.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	conn, err := dial(t.Context(), l.Client.Namespace, closed)
	if err != nil {
		t.Fatalf("a new listener: %v", err)
	}
	conn.Close()
	status := smartcookie(t, split.edge.at, "status", "--pin", split.edge.pins())
	for _, part := range []string{"control_heard_state", "agent 21", "enforced", "agrees"} {
		if !strings.Contains(status, part) {
			t.Errorf("status does not say %q: %s", part, status)
		}
	}
}

func TestSilentAgentsServiceStopsOrPassesAsItIsTold(t *testing.T) {
	beside(t)
	for policy, verdict := range map[string]string{"stop": "drop_silent", "pass": "pass_unheard"} {
		t.Run(policy, func(t *testing.T) {
			beside(t)
			l := newLab(t, lab.Options{})
			startHTTP(t, l)
			serveEcho(t, l)
			// Nobody announces what is idle then: it is known for one generation.
			split := newSpeaking(t, l, false, "learn: 0s", "generation: 15s", "mode: always", "mode: always\n    silent: "+policy)
			split.start(t)
			awaitPhase(t, split.edge, "enforced", 30*time.Second)
			talks := newTalks(t, l, 20)
			split.server.kill(t)
			awaitPhase(t, split.edge, "silent", 10*time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			conn, err := dial(ctx, l.Client.Namespace, httpAddress(l, false))
			if (err == nil) != (policy == "pass") {
				t.Errorf("a new connection: %v", err)
			}
			if err == nil {
				conn.Close()
			}
			if split.edge.verdicts(t)[verdict] == 0 {
				t.Errorf("no %s", verdict)
			}
			allAnswer(t, "connections from before", talks)
		})
	}
}
