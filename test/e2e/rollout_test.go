package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// rollOut is a split defence whose configuration changes while clients come
// and connections of every state before live on.
type rollOut struct {
	lab   *lab.Lab
	split halves
	texts map[*daemon]string // configurations, as they were at first
	talks []*talk
}

// newRollOut starts both halves until the edge enforces and the server is
// strict. Each edit is an old and a new piece of the configurations.
func newRollOut(t *testing.T, setup string, edits ...string) *rollOut {
	t.Helper()
	l := newLab(t, lab.Options{Setup: setup})
	startHTTP(t, l)
	serveEcho(t, l)
	edits = append(edits, "learn: 0s", "generation: 5s", "interfaces:", "strict: true\ninterfaces:")
	r := &rollOut{lab: l, split: newSpeaking(t, l, false, edits...), texts: make(map[*daemon]string)}
	for _, d := range r.split.list() {
		r.texts[d] = configOf(t, d)
	}
	r.split.start(t)
	awaitPhase(t, r.split.edge, "enforced", 30*time.Second)
	return r
}

// change starts a daemon anew with another configuration, while clients come
// and after some have come to stay.
func (r *rollOut) change(t *testing.T, what string, d *daemon, edits ...string) {
	t.Helper()
	r.talks = append(r.talks, newTalks(t, r.lab, 10)...)
	writeConfig(t, d, strings.NewReplacer(edits...).Replace(r.texts[d]))
	step(t, r.lab, what, func() {
		if err := d.process.Stop(); err != nil {
			t.Fatal(err)
		}
		d.start(t)
	})
	allAnswer(t, "connections from before: "+what, r.talks)
	step(t, r.lab, "after: "+what, func() {})
}

func TestModesChangeUnderLoad(t *testing.T) {
	beside(t)
	for _, setup := range []string{"native", "translate"} {
		for _, half := range []string{"edge", "server"} {
			if !long() && (setup == "native") != (half == "edge") {
				continue // each half and each setup once
			}
			t.Run(setup+" "+half, func(t *testing.T) {
				beside(t)
				r := newRollOut(t, setup)
				d := map[string]*daemon{"edge": r.split.edge, "server": r.split.server}[half]
				mode := []string{"    setup:", "    mode: off\n    setup:"} // the server's
				if half == "edge" {
					mode = []string{"mode: always", "mode: off"}
				}
				for round := range 2 {
					r.change(t, fmt.Sprintf("the %s is turned off, round %d", half, round), d, mode...)
					awaitPhase(t, r.split.edge, "unheard", 10*time.Second)
					answered := r.split.edge.verdicts(t)["answer_syn"]
					step(t, r.lab, "the "+half+" is off", func() {})
					if n := r.split.edge.verdicts(t)["answer_syn"]; n != answered {
						t.Errorf("the edge has answered %d SYNs", n-answered)
					}
					r.change(t, fmt.Sprintf("the %s is turned on, round %d", half, round), d)
					step(t, r.lab, "the edge begins to enforce", func() { awaitPhase(t, r.split.edge, "enforced", 30*time.Second) })
				}
				allAnswer(t, "connections of all times", r.talks)
			})
		}
	}
}

func TestSetupChangesUnderLoad(t *testing.T) {
	beside(t)
	r := newRollOut(t, "native")
	for _, setup := range []string{"translate", "native", "auto"} {
		r.change(t, "setup becomes "+setup, r.split.server, "setup: native", "setup: "+setup)
	}
	verdicts := r.split.server.verdicts(t)
	if verdicts["setup"] == 0 || verdicts["setup_translated"] == 0 {
		t.Errorf("connections are not of both kinds: %v", verdicts)
	}
}

// With `stop` clients are to wait; the other policies serve everybody, whether
// the agent's daemon falls silent or comes back.
func TestAgentFallsSilentUnderLoad(t *testing.T) {
	beside(t)
	for policy, phase := range map[string]string{"keep": "answer_syn", "pass": "pass_unheard"} {
		t.Run(policy, func(t *testing.T) {
			beside(t)
			r := newRollOut(t, "auto", "mode: always", "mode: always\n    silent: "+policy)
			r.talks = newTalks(t, r.lab, 20)
			r.split.server.kill(t)
			step(t, r.lab, "the agent falls silent", func() { awaitPhase(t, r.split.edge, "silent", 10*time.Second) })
			before := r.split.edge.verdicts(t)[phase]
			step(t, r.lab, "the agent is silent", func() {})
			if r.split.edge.verdicts(t)[phase] == before {
				t.Errorf("no %s", phase)
			}
			step(t, r.lab, "the agent comes back", func() { r.split.server.start(t) })
			step(t, r.lab, "the edge enforces again", func() { awaitPhase(t, r.split.edge, "enforced", 30*time.Second) })
			allAnswer(t, "connections from before", r.talks)
		})
	}
}

// Without control messages the order is the operator's: a service is turned on
// at the server first and off there last.
func TestModesChangeUnderLoadWithoutControlMessages(t *testing.T) {
	beside(t)
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	serveEcho(t, l)
	r := &rollOut{lab: l, split: newHalves(t, l, labKeys(t, l), "learn: 0s", "learn: 10s"), texts: make(map[*daemon]string)}
	for _, d := range r.split.list() {
		r.texts[d] = configOf(t, d)
	}
	r.split.start(t)
	eventually(t, 15*time.Second, "the learning time ends", func() bool { return !learns(t, r.split.edge) })
	r.change(t, "the edge is turned off", r.split.edge, "mode: always", "mode: off")
	r.talks = append(r.talks, unusedTalks(t, l, 10)...)
	r.change(t, "the edge is turned on", r.split.edge)
}

// unusedTalks are connections of which no edge has seen an ACK from the server.
func unusedTalks(t *testing.T, l *lab.Lab, count int) []*talk {
	t.Helper()
	talks := make([]*talk, count)
	noErrors(t, "open connections", forEach(talks, func(i int, _ *talk) error {
		conn, err := dial(t.Context(), l.Client.Namespace, echoAddress(l, i%2 == 1))
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close() })
		talks[i] = &talk{conn: conn, random: rand.NewChaCha8([32]byte{byte(i)})}
		return nil
	}))
	return talks
}

// configOf reads a daemon's configuration.
func configOf(t *testing.T, d *daemon) string {
	t.Helper()
	text, err := os.ReadFile(d.args[len(d.args)-1])
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// writeConfig replaces it; the daemon reads it when it starts.
func writeConfig(t *testing.T, d *daemon, text string) {
	t.Helper()
	if err := os.WriteFile(d.args[len(d.args)-1], []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Turned off first, an agent can be taken off at any time: the kernel has native
// connections as its own.
func TestAgentThatIsOffIsDetachedUnderLoad(t *testing.T) {
	beside(t)
	r := newRollOut(t, "native")
	r.change(t, "the server is turned off", r.split.server, "    setup:", "    mode: off\n    setup:")
	awaitPhase(t, r.split.edge, "unheard", 10*time.Second)
	step(t, r.lab, "the agent is taken off", func() { r.split.server.detach(t) })
	step(t, r.lab, "there is no agent", func() {})
	allAnswer(t, "connections from before", r.talks)
	writeConfig(t, r.split.server, r.texts[r.split.server])
	step(t, r.lab, "the agent is back", func() { r.split.server.start(t) })
	step(t, r.lab, "the edge begins to enforce", func() { awaitPhase(t, r.split.edge, "enforced", 30*time.Second) })
	allAnswer(t, "connections of all times", r.talks)
}
