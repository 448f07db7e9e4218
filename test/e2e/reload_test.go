package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

const (
	reloadsOfABatch = 6 // beside one load, three of each daemon
	reloadTransfers = 100
	reloaded        = "msg=reloaded"
	reloadRefused   = "msg=\"reload refused"
)

// reloads is how many there are.
func reloads() int {
	if long() {
		return 1000
	}
	return 30
}

// write puts a text in the place of the daemon's configuration.
func (d *daemon) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(d.args[2], []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// logged counts lines with a mark.
func (d *daemon) logged(mark string) int { return bytes.Count(d.process.Log(), []byte(mark)) }

// reload has the daemon read its file, and waits for the mark of what came of it.
func (d *daemon) reload(t *testing.T, mark string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %s", d.name, d.process.Log())
		}
	})
	before := d.logged(mark)
	if err := unix.Kill(d.process.Pid(), unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, d.name+" logs "+mark, func() bool { return d.logged(mark) > before })
}

// neighbours are random services before those of a configuration: they come, go,
// change and change places.
func neighbours(random *rand.Rand, text string) string {
	var more strings.Builder
	for _, n := range random.Perm(30)[:1+random.IntN(20)] {
		strategy := []string{"split", "auth-cookie"}[random.IntN(2)]
		if n == 0 {
			strategy = "proxy" // the translator comes and goes
		}
		fmt.Fprintf(&more, "  - {name: n%d, prefixes: [198.51.100.%d], ports: [%d], mode: %s, strategy: %s}\n",
			n, n, 80+random.IntN(3), []string{"always", "auto", "off", "monitor"}[random.IntN(4)], strategy)
	}
	return strings.Replace(text, "services:\n", "services:\n"+more.String(), 1)
}

// idOf is the id of the lab's service at the agent of a daemon.
func idOf(t *testing.T, d *daemon) uint32 {
	t.Helper()
	states, err := dataplane.ReadStates(d.pins())
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(states, func(s dataplane.ServiceState) bool { return s.Name == "web" })
	if at < 0 {
		t.Fatalf("%s knows no service web", d.name)
	}
	return states[at].ID
}

func TestReloadsCostNoOtherServiceAConnection(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	serveEcho(t, l)
	split := newHalves(t, l, labKeys(t, l))
	split.start(t)
	busy := startTransfers(t.Context(), newTalks(t, l, reloadTransfers))
	t.Cleanup(busy.stop)
	if _, err := l.StartFlood(lab.FloodOptions{Rate: crashFlood / 3, Limit: time.Hour}); err != nil {
		t.Fatal(err)
	}
	texts := make(map[*daemon]string)
	for _, d := range split.list() {
		text, err := os.ReadFile(d.args[2])
		if err != nil {
			t.Fatal(err)
		}
		texts[d] = string(text)
	}
	ids := []uint32{idOf(t, split.server), idOf(t, split.edge)}
	for done := 0; done < reloads(); done += reloadsOfABatch {
		load := startLoad(t, l, lab.LoadOptions{Duration: 2 * time.Second})
		for range reloadsOfABatch / 2 {
			for _, d := range split.list() {
				d.write(t, neighbours(random, texts[d]))
				d.reload(t, reloaded)
			}
		}
		finishLoad(t, fmt.Sprintf("beside %d reloads", done+reloadsOfABatch), load)
	}
	for _, d := range split.list() {
		refusedReloads(t, d, texts[d])
	}
	stormOfReloads(t, split.edge, texts[split.edge])
	finishLoad(t, "after all reloads", startLoad(t, l, lab.LoadOptions{Duration: time.Second}))
	busy.finish(t)
	split.noBadCookie(t)
	if now := []uint32{idOf(t, split.server), idOf(t, split.edge)}; !slices.Equal(now, ids) {
		t.Errorf("the service that has stayed had ids %d and has %d", ids, now)
	}
	if n := split.edge.verdicts(t)["pass_learning"]; n > 0 {
		t.Errorf("%d unknown packets have passed to a service that has not changed", n)
	}
}

// refusedReloads wants that a wrong file changes nothing, and that its error says why.
func refusedReloads(t *testing.T, d *daemon, text string) {
	t.Helper()
	states, err := dataplane.ReadStates(d.pins())
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []struct{ old, new, says string }{
		{"    ports:", "    ports: [nonsense]\n    # :", "is no port"},
		{"keys:", "# more\nkeys: /somewhere/else #", "keys cannot be changed while the daemon runs"},
		{"  - name: web", "  - name: another\n    domain: none", "no key domain"},
	} {
		d.write(t, strings.Replace(text, wrong.old, wrong.new, 1))
		d.reload(t, reloadRefused)
		if d.logged(wrong.says) == 0 {
			t.Errorf("%s: no word of %q: %s", d.name, wrong.says, d.process.Log())
		}
	}
	now, err := dataplane.ReadStates(d.pins())
	if err != nil {
		t.Fatal(err)
	}
	named := func(s dataplane.ServiceState, o dataplane.ServiceState) bool { return s.ID == o.ID && s.Name == o.Name }
	if !slices.EqualFunc(states, now, named) {
		t.Errorf("%s: a wrong file has changed its services: %v, before %v", d.name, now, states)
	}
	d.write(t, text)
}

// stormOfReloads asks for many at once: few take place.
func stormOfReloads(t *testing.T, d *daemon, text string) {
	t.Helper()
	const storm, most = 100, 10
	before := d.logged(reloaded)
	d.write(t, strings.Replace(text, "services:\n", "services:\n  - {name: storm, prefixes: [198.51.100.77], ports: [80]}\n", 1))
	for range storm {
		if err := unix.Kill(d.process.Pid(), unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 30*time.Second, d.name+" has reloaded", func() bool { return d.logged("added=storm") > 0 })
	d.write(t, text)
	d.reload(t, "removed=storm")
	if n := d.logged(reloaded) - before; n > most {
		t.Errorf("%s: %d reloads of %d signals, want at most %d", d.name, n, storm+1, most)
	}
}
