package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// idleShape is a way to prove that silent connections outlive anything.
type idleShape struct {
	asymmetric bool // no edge sees what the server says
	count      int  // connections
	syns, acks lab.Rate
}

// atOnce bounds how long a connection that was silent may take to answer.
const atOnce = 2 * time.Second

// Half of the connections are over IPv6, and half of each are translated.
func TestSilentConnectionsOutliveEverything(t *testing.T) {
	shapes := []idleShape{{false, 1000, 50_000, 10_000}, {true, 200, 10_000, 5_000}}
	if long() {
		shapes[0].count, shapes[1].count = 10_000, 2000
	}
	for _, s := range shapes {
		t.Run(map[bool]string{false: "symmetric", true: "asymmetric"}[s.asymmetric], func(t *testing.T) {
			f := newFleet(t, s)
			f.connect(t, s.count)
			f.flood(t, s)
			f.silence(t, 5)
			f.request(t, "after five generations of silence")
			f.move(t)
			f.lose(t)
			if s.asymmetric && !long() {
				return // daemons do not know what comes back past them
			}
			f.restart(t)
			f.forget(t)
			finishLoad(t, "new connections", startLoad(t, f.lab, lab.LoadOptions{Duration: time.Second}))
		})
	}
}

// move gives all flows to the second edge, which has forwarded half of them.
func (f *fleet) move(t *testing.T) {
	t.Helper()
	if err := f.lab.Move(1, 1); err != nil {
		t.Fatal(err)
	}
	if long() {
		f.silence(t, 1)
	}
	before := f.edges[1].verdicts(t)["pass_verified"]
	f.request(t, "after all have moved to the second edge")
	if n := f.edges[1].verdicts(t)["pass_verified"] - before; n < uint64(len(f.talks)) {
		t.Errorf("the second edge knew only %d packets", n)
	}
}

// lose kills the edge that has nearly all flows: routers have another way only
// if they use it.
func (f *fleet) lose(t *testing.T) {
	t.Helper()
	if err := f.lab.Move(0.98, 0); err != nil {
		t.Fatal(err)
	}
	f.request(t, "after nearly all have moved to the first edge")
	if err := f.lab.Kill(0); err != nil {
		t.Fatal(err)
	}
	f.edges[0].kill(t)
	f.edges = f.edges[1:]
	f.request(t, "after that has lost power")
}

// restart ends the daemons that are left, and begins them anew.
func (f *fleet) restart(t *testing.T) {
	t.Helper()
	edge := f.edges[0]
	edge.kill(t)
	f.request(t, "without an edge's daemon")
	edge.start(t)
	f.request(t, "after a restart of the edge's daemon")
	f.server.kill(t)
	f.request(t, "without the server's daemon")
	f.server.start(t)
	f.request(t, "after a restart of the server's daemon")

	edge.reboot(t)
	edge.start(t)
	begin := time.Now()
	awaitPhase(t, edge, "grace", atOnce) // a whole announcement has come
	t.Logf("an edge without a filter knows %d connections %s after it was ready", len(f.talks), time.Since(begin))
	f.request(t, "after a restart of an edge that has lost its filter")
	if n := edge.verdicts(t)["pass_verified"]; n < uint64(len(f.talks)) {
		t.Errorf("only %d packets were of flows in the new filter", n)
	}
	if n := f.counted(t, "pass_learning"); n > 0 {
		t.Errorf("%d packets passed only because handshakes were given grace", n)
	}

	awaitPhase(t, edge, "enforced", time.Minute)
	edge.kill(t)
	f.server.kill(t)
	edge.start(t)
	f.server.start(t)
	f.request(t, "after a restart of both daemons")
}

// forget shows that it is the announcements by which they live: without any
// the edge forgets flows as it should, until the agent is back.
func (f *fleet) forget(t *testing.T) {
	t.Helper()
	sample := f.talks[:20]
	f.server.kill(t)
	f.silence(t, 2)
	for i, err := range forEach(sample, func(_ int, s *talk) error { return s.say(100, time.Second/2) }) {
		if err == nil {
			t.Errorf("connection %d lives although nothing keeps it in the filter", i)
		}
	}
	f.server.start(t)
	// What each has said meanwhile is sent again, and comes back first.
	noErrors(t, "when the agent is back", forEach(sample, func(_ int, s *talk) error {
		return s.hear(requestLimit)
	}))
}

// fleet is two edges and a server that all speak to each other, and the
// connections through them.
type fleet struct {
	lab    *lab.Lab
	edges  []*daemon
	server *daemon
	talks  []*talk
}

// idleAgent is the server's agent; its edges are 1 and 2.
const idleAgent = 21

// translatedPort has an echo server whose connections are translated, unlike
// those of echoPort.
const translatedPort = 8017

// newFleet starts it, until both edges enforce.
func newFleet(t *testing.T, s idleShape) *fleet {
	t.Helper()
	l := newLab(t, lab.Options{Edges: 2, Asymmetric: s.asymmetric})
	startHTTP(t, l)
	startEchoes(t, l)
	f := prepareFleet(t, l, "learn: 0s", fmt.Sprintf("generation: 5s\nreturn_traffic: %t", !s.asymmetric))
	f.server.start(t)
	for _, edge := range f.edges {
		edge.start(t)
	}
	for _, edge := range f.edges {
		awaitPhase(t, edge, "enforced", 30*time.Second)
	}
	return f
}

// quietly are the services of the silent connections: floods go to another, so
// that whatever is counted here is about these connections.
const quietly = `  - name: quiet
    prefixes: [%[1]s, "%[2]s"]
    ports: [%[3]d]
  - name: translated
    prefixes: [%[1]s, "%[2]s"]
    ports: [%[4]d]
    setup: translate
`

var quietServices = []uint32{2, 3}

func prepareFleet(t *testing.T, l *lab.Lab, edits ...string) *fleet {
	t.Helper()
	keys, f := labKeys(t, l), &fleet{lab: l}
	services := fmt.Sprintf(quietly, l.Server.IPv4, l.Server.IPv6, echoPort, translatedPort)
	server := controlAt(l, 2, false)
	heard := ""
	for i, host := range l.Edges() {
		name, at := []string{"edge", "edge2"}[i], edgeControlAt(i)
		text := l.EdgeConfig(keys) + services + fmt.Sprintf(
			"control:\n  listen: \"%s\"\n  id: %d\n  agents:\n    - id: %d\n      address: \"%s\"\n      protects: [%s, \"%s\"]\n",
			at, i+1, idleAgent, server, l.Server.IPv4, l.Server.IPv6)
		heard += fmt.Sprintf("    - id: %d\n      address: \"%s\"\n", i+1, at)
		f.edges = append(f.edges, daemonWith(t, l, host.Namespace, name, "edge", text, edits...))
	}
	text := l.ServerConfig(keys) + services + fmt.Sprintf("control:\n  listen: \"%s\"\n  id: %d\n  edges:\n%s", server, idleAgent, heard)
	f.server = daemonWith(t, l, l.Server.Namespace, "server", "server", text, edits...)
	return f
}

// edgeControlAt is where an edge of two speaks: in its own inside network.
func edgeControlAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, byte(21 + i), 2}), controlPort)
}

// connect opens connections and uses each once.
func (f *fleet) connect(t *testing.T, count int) {
	t.Helper()
	f.talks = make([]*talk, count)
	t.Cleanup(func() {
		for _, talk := range f.talks {
			if talk != nil {
				talk.conn.Close()
			}
		}
	})
	ports := []uint16{echoPort, translatedPort}
	noErrors(t, "open connections", forEach(f.talks, func(i int, _ *talk) error {
		to := netip.AddrPortFrom(f.lab.Server.Addr(i%2 == 1), ports[i/2%2])
		conn, err := dial(t.Context(), f.lab.Client.Namespace, to.String())
		if err != nil {
			return err
		}
		f.talks[i] = &talk{conn: conn, random: rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)})}
		return f.talks[i].say(100, requestLimit)
	}))
	verdicts := f.server.verdicts(t)
	if verdicts["setup_translated"] < uint64(count/2) || verdicts["setup"]+verdicts["setup_translated"] < uint64(count) {
		t.Errorf("%d connections are not of both kinds: %v", count, verdicts)
	}
}

func (f *fleet) flood(t *testing.T, s idleShape) {
	t.Helper()
	for kind, rate := range map[lab.Kind]lab.Rate{lab.SYN: s.syns, lab.ACK: s.acks} {
		flood, err := f.lab.StartFlood(lab.FloodOptions{Kind: kind, Rate: rate, Limit: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := flood.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// silence lets generations pass at every edge.
func (f *fleet) silence(t *testing.T, generations uint64) {
	t.Helper()
	begin := time.Now()
	for _, edge := range f.edges {
		left := generations - min(generations-1, uint64(time.Since(begin)/(5*time.Second)))
		waitGenerations(t, edge, left, time.Minute)
	}
}

// request lets every connection say something. All must answer at once, no edge
// may drop a packet of theirs, and hardly a segment may be sent again: a
// machine that stands still for 200 ms makes TCP do so.
func (f *fleet) request(t *testing.T, what string) {
	t.Helper()
	before := f.sentAgain(t)
	took := make([]time.Duration, len(f.talks))
	noErrors(t, what, forEach(f.talks, func(i int, talk *talk) error {
		begin := time.Now()
		defer func() { took[i] = time.Since(begin) }()
		return talk.say(100, atOnce)
	}))
	again := f.sentAgain(t) - before
	slices.Sort(took)
	t.Logf("%s: all %d answered, p99 %s, max %s, %d segments sent again",
		what, len(took), took[len(took)*99/100], took[len(took)-1], again)
	if again > len(f.talks)/100 {
		t.Errorf("%s: %d segments sent again", what, again)
	}
	for _, verdict := range []string{"drop_bad_cookie", "drop_no_key", "drop_silent"} {
		if n := f.counted(t, verdict); n > 0 {
			t.Errorf("%s: %s %d times against connections that live", what, verdict, n)
		}
	}
}

// sentAgain counts what the clients have retransmitted so far.
func (f *fleet) sentAgain(t *testing.T) (total int) {
	t.Helper()
	for _, talk := range f.talks {
		count, err := retransmitsOf(talk.conn)
		if err != nil {
			t.Fatal(err)
		}
		total += int(count)
	}
	return total
}

// counted is how often the edges had a verdict on packets of the silent
// connections' services.
func (f *fleet) counted(t *testing.T, verdict string) (total uint64) {
	t.Helper()
	const stride = 128 // VERDICT_STRIDE of contract.h
	for _, edge := range f.edges {
		counters := pinnedMap(t, edge, dataplane.EdgeAgent, "counters")
		for _, service := range quietServices {
			var perCPU []uint64
			key := service*stride + uint32(slices.Index(dataplane.VerdictNames(), verdict))
			if err := counters.Lookup(key, &perCPU); err != nil {
				t.Fatal(err)
			}
			for _, n := range perCPU {
				total += n
			}
		}
	}
	return total
}

// startEchoes serves both echo ports in a process of its own: what a process
// may open is not enough for both ends of all connections.
func startEchoes(t *testing.T, l *lab.Lab) {
	t.Helper()
	startChild(t, l.Server.Namespace, echoChild)
	for _, port := range []int{echoPort, translatedPort} {
		eventually(t, 10*time.Second, "the echo servers listen", func() bool {
			conn, err := dialIn(l.Server.Namespace, net.Dialer{}, fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				return false
			}
			conn.Close()
			return true
		})
	}
}
