package e2e

import (
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// daemon is an agent that a test starts, kills and starts again.
type daemon struct {
	lab     *lab.Lab
	at      *lab.Namespace
	name    string
	args    []string
	process *lab.Process
}

func (d *daemon) start(t *testing.T) {
	t.Helper()
	process, err := d.lab.Start(t.Context(), d.at, d.name, append(d.args, "--pin", d.pins())...)
	if err != nil {
		t.Fatal(err)
	}
	d.process = process
}

func (d *daemon) kill(t *testing.T) {
	t.Helper()
	if err := d.process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// pins is where the agent keeps its maps and links.
func (d *daemon) pins() string { return d.lab.PinDir(d.name) }

func (d *daemon) verdicts(t *testing.T) map[string]uint64 {
	t.Helper()
	verdicts, err := dataplane.Verdicts(d.pins())
	if err != nil {
		t.Fatal(err)
	}
	return verdicts
}

// halves are the two daemons of a split defence.
type halves struct{ server, edge *daemon }

func (h halves) list() []*daemon { return []*daemon{h.server, h.edge} }

func (h halves) start(t *testing.T) {
	t.Helper()
	for _, d := range h.list() {
		d.start(t)
	}
}

func (h halves) kill(t *testing.T) {
	t.Helper()
	for _, d := range h.list() {
		d.kill(t)
	}
}

// noBadCookie wants that nobody met a cookie that was not valid.
func (h halves) noBadCookie(t *testing.T) {
	t.Helper()
	for _, d := range h.list() {
		for _, verdict := range []string{"drop_bad_cookie", "drop_no_key"} {
			if n := d.verdicts(t)[verdict]; n > 0 {
				t.Errorf("%s: %s %d times", d.name, verdict, n)
			}
		}
	}
}

// newHalves prepares a split defence of the lab's HTTP and echo ports. Each
// edit is an old and a new piece of the configurations.
func newHalves(t *testing.T, l *lab.Lab, keys string, edits ...string) halves {
	t.Helper()
	edits = append(edits, fmt.Sprintf("ports: [%d]", lab.HTTPPort), fmt.Sprintf("ports: [%d, %d]", lab.HTTPPort, echoPort))
	edit := strings.NewReplacer(edits...)
	write := func(name, content string) string {
		file, err := l.WriteFile(name+".yaml", edit.Replace(content))
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	return halves{
		server: &daemon{lab: l, at: l.Server.Namespace, name: "server", args: []string{"server", "-c", write("server", l.ServerConfig(keys))}},
		edge:   &daemon{lab: l, at: l.Edge.Namespace, name: "edge", args: []string{"edge", "-c", write("edge", l.EdgeConfig(keys))}},
	}
}

// labKeys returns the lab's own key file.
func labKeys(t *testing.T, l *lab.Lab) string {
	t.Helper()
	keys, err := l.Keys()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// newHost prepares the host shape for the lab's HTTP and echo ports.
func newHost(t *testing.T, l *lab.Lab) *daemon {
	t.Helper()
	// The peer of a veth port that answers by XDP_TX needs a program.
	if err := l.Edge.Pass(l.Edge.Inside); err != nil {
		t.Fatal(err)
	}
	args := []string{"host", l.Server.Port, "--ports", fmt.Sprintf("%d,%d", lab.HTTPPort, echoPort)}
	return &daemon{lab: l, at: l.Server.Namespace, name: "host", args: args}
}

// startHTTP starts the lab's HTTP server.
func startHTTP(t *testing.T, l *lab.Lab) {
	t.Helper()
	if _, err := l.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// startLoad starts benign clients for a time.
func startLoad(t *testing.T, l *lab.Lab, options lab.LoadOptions) *lab.Load {
	t.Helper()
	if options.URL == "" {
		options.URL = l.URL(false)
	}
	if options.Timeout == 0 {
		options.Timeout = requestLimit
	}
	load, err := l.StartLoad(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return load
}

// finishLoad waits for the load's end and wants every request answered.
func finishLoad(t *testing.T, what string, load *lab.Load) {
	t.Helper()
	report, err := load.Wait()
	if err != nil {
		t.Fatal(err)
	}
	allServed(t, what, report)
}

// pinnedMap opens a map of an agent; the test closes it.
func pinnedMap(t *testing.T, d *daemon, agent, name string) *ebpf.Map {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(d.pins(), agent, "maps", name), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// swept tells how many lines of its filter an edge has swept, and how many
// lines there are: in a generation it sweeps each once.
func swept(t *testing.T, edge *daemon) (swept, lines uint64) {
	t.Helper()
	var state []byte
	if err := pinnedMap(t, edge, dataplane.EdgeAgent, "filter").Lookup(uint32(0), &state); err != nil {
		t.Fatal(err)
	}
	// struct filter_state ends with it.
	position := binary.NativeEndian.Uint64(state[len(state)-8:]) // round << 32 | next line
	lines = uint64(pinnedMap(t, edge, dataplane.EdgeAgent, "filter_lines").MaxEntries())
	return position>>32*lines + position&math.MaxUint32, lines
}

// waitGenerations waits until an edge has swept its filter so many times from
// now on.
func waitGenerations(t *testing.T, edge *daemon, generations uint64, within time.Duration) {
	t.Helper()
	begin, lines := swept(t, edge)
	eventually(t, within, fmt.Sprintf("%d generations pass", generations), func() bool {
		now, _ := swept(t, edge)
		return now-begin > generations*lines
	})
}
