package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
)

// Go's listeners are MPTCP, from which the kernel makes no connection of a
// cookie: the agent sees that in the packet and translates.
func TestMPTCPListenerIsServed(t *testing.T) {
	for _, shape := range []shape{splitRoute, hostShape, tenantShape} {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{Setup: "auto"}, protection{})
			serveGo(t, l.Server.Namespace)
			for _, ipv6 := range []bool{false, true} {
				for range 5 {
					mustGreet(t, l.Client.Namespace, url(l, ipv6, "/"))
				}
			}
			counted(t, l, agentOf(shape), "setup_translated", "pass_translated", "drop_own_synack")
			if n := verdictsOf(t, l, agentOf(shape))["setup"]; n != 0 {
				t.Errorf("%d native setups at an MPTCP listener", n)
			}
		})
	}
}

func agentOf(s shape) string {
	if s.host {
		return "host"
	}
	return "server"
}

// serveGo is Go's HTTP server as it is by default.
func serveGo(t *testing.T, at *lab.Namespace) {
	t.Helper()
	var config net.ListenConfig
	if !config.MultipathTCP() {
		t.Fatal("Go listens with plain TCP: GODEBUG must not say multipathtcp=0")
	}
	var listener net.Listener
	err := at.Do(func() (err error) {
		listener, err = config.Listen(t.Context(), "tcp", ":80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello\n") }),
	}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
}

// A plain listener is set up natively, and costs no translation.
func TestAutoIsNativeWhereTheKernelAllows(t *testing.T) {
	l := deploy(t, splitRoute, lab.Options{Setup: "auto"}, protection{})
	startNginx(t, l)
	mustGreet(t, l.Client.Namespace, url(l, false, "/hello"))
	if v := verdictsOf(t, l, "server"); v["setup"] == 0 || v["setup_translated"]+v["pass_translated"] != 0 {
		t.Errorf("translated although native works: %v", v)
	}
}

// Errors of routers quote numbers that the server's kernel has never sent.
func TestPathMTUIsFoundOnTranslatedConnections(t *testing.T) {
	need(t, "nginx", "curl")
	l := deploy(t, splitRoute, lab.Options{Setup: "translate"}, protection{})
	root := startNginx(t, l)
	runIn(t, l.Edge.Namespace, "ip", "link", "set", l.Edge.Outside[0], "mtu", "1400")
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			before := verdictsOf(t, l, "server")
			sum := randomFile(t, filepath.Join(root, "file"), 1<<20)
			downloadIs(t, l, ipv6, sum)
			after := verdictsOf(t, l, "server")
			if after["setup_translated"] == before["setup_translated"] || after["pass_error"] == before["pass_error"] {
				t.Errorf("nothing was tested: %v", after)
			}
		})
	}
}

// SACK blocks and timestamps are translated too, or loss would stall a transfer.
func TestTranslatedTransfersSurviveLoss(t *testing.T) {
	need(t, "nginx", "curl", "nft")
	l := deploy(t, splitRoute, lab.Options{Setup: "translate"}, protection{})
	root := startNginx(t, l)
	for _, at := range []*lab.Namespace{l.Client.Namespace, l.Server.Namespace} {
		runIn(t, at, "nft", "add table inet loss; add chain inet loss in { type filter hook input priority 0; }; "+
			"add rule inet loss in meta l4proto tcp numgen random mod 100 == 0 drop")
	}
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			sum := randomFile(t, filepath.Join(root, "file"), 20<<20)
			downloadIs(t, l, ipv6, sum)
			uploadIs(t, l, ipv6, root, sum)
		})
	}
	counted(t, l, "server", "setup_translated")
}

// Rules as ufw makes them lose connections that began without a SYN: the agent
// sees them and translates.
func TestStatefulFirewallIsLivedWith(t *testing.T) {
	need(t, "nginx", "curl", "nft")
	l := newLab(t, lab.Options{Setup: "auto"})
	runIn(t, l.Server.Namespace, "nft", "add table inet ufw; add chain inet ufw in { type filter hook input priority 0; policy drop; }; "+
		"add rule inet ufw in iif lo accept; add rule inet ufw in meta l4proto { icmp, ipv6-icmp } accept; "+
		"add rule inet ufw in ct state invalid drop; "+
		"add rule inet ufw in tcp flags & (fin|syn|rst|ack) != syn ct state new drop; "+
		"add rule inet ufw in ct state established,related accept; add rule inet ufw in tcp dport 80 ct state new accept")
	splitRoute.protect(t, l, protection{})
	root := startNginx(t, l)
	for _, ipv6 := range []bool{false, true} {
		mustGreet(t, l.Client.Namespace, url(l, ipv6, "/hello"))
		sum := randomFile(t, filepath.Join(root, "file"), 5<<20)
		downloadIs(t, l, ipv6, sum)
		uploadIs(t, l, ipv6, root, sum)
	}
	counted(t, l, "server", "setup_translated")
}

// When all places are taken, newcomers wait and nobody is thrown out; what ends
// makes room.
func TestTranslatedConnectionsBeyondTheLimitWait(t *testing.T) {
	const places = 20
	w := newWire(t, wireRoute, wireSettings{
		setup: "translate", server: fmt.Sprintf("translated: %d\n", places),
	})
	s := w.serve(t, wireEcho)
	var live []*wireFlow
	for n := range places {
		f := w.flow(t, n%2 == 1)
		f.connect(wireRequest)
		live = append(live, f)
	}
	before := w.verdicts(t)
	late := w.flow(t, false)
	late.open()
	setup := late.send(0, wireData, []byte(wireRequest))
	w.expect(t, before, wireVerdicts{"drop_flows_full": 1})
	for _, f := range live {
		f.send(len(wireRequest), wireData, []byte("more"))
		f.expectStream(wireRequest + "more")
	}
	live[0].send(len(wireRequest)+4, wireRST, nil)
	w.awaitState(t, live[0], "")
	eventually(t, 20*time.Second, "the ended connection makes room", func() bool { return w.flowsLive(t) < places })
	late.emit(setup)
	late.expectStream(wireRequest)
	if n := len(s.conns()); n != places+1 {
		t.Errorf("%d connections, want %d", n, places+1)
	}
}

// What fills the tables, strangers' handshakes or connections, and real
// handshakes beside them, neither harms a thousand that live nor outlasts itself.
func TestOverfilledTablesHarmNobodyThatLives(t *testing.T) {
	places, handshakes := 20_000, 2_000
	if long() {
		places, handshakes = 1_000_000, 1_000_000
	}
	l := newLab(t, lab.Options{Setup: "translate"})
	protect := strings.NewReplacer(fmt.Sprintf("ports: [%d]", lab.HTTPPort), fmt.Sprintf("ports: [%d, %d]", lab.HTTPPort, echoPort))
	file := fileOf(t, l, "server.yaml", protect.Replace(l.ServerConfig(keysOf(t, l)))+fmt.Sprintf("translated: %d\n", places))
	startAgent(t, l, l.Server.Namespace, "server", "-c", file)
	startAgent(t, l, l.Edge.Namespace, "edge", "-c", fileOf(t, l, "edge.yaml", protect.Replace(l.EdgeConfig(keysOf(t, l)))))
	startHTTP(t, l)
	serveEcho(t, l)
	live := startTransfers(t.Context(), newTalks(t, l, crowd))
	t.Cleanup(live.stop)

	fill(t, l, "half_open", 4*places, 0)
	if errs := newcomers(t, l, handshakes); len(errs) > 0 {
		t.Errorf("half-open strangers: %d of %d not served, such as %v", len(errs), handshakes, errs[0])
	}
	eventually(t, 3*time.Minute, "nobody is served beyond the limit, once the handshakes' places are taken", func() bool {
		fill(t, l, "flows", 2*places, 0)
		return len(newcomers(t, l, 50)) == 50
	})
	counted(t, l, "server", "drop_flows_full")
	live.finish(t)
	fill(t, l, "flows", 2*places, 1) // all are over now
	eventually(t, 60*time.Second, "there is room again", func() bool { return len(newcomers(t, l, 1)) == 0 })
}

// newcomers make so many connections, at most 50 at a time, and tell what kept
// any of them from being served.
func newcomers(t *testing.T, l *lab.Lab, count int) []error {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	turns := make(chan struct{}, 50)
	for i := range count {
		turns <- struct{}{}
		all.Go(func() {
			err := shortRequest(t.Context(), l.Client.Namespace, httpAddress(l, i%2 == 1))
			<-turns
			if err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return errs
}

// fill writes so many strangers, or as many as there is room for, into one of
// the tables of translated connections.
func fill(t *testing.T, l *lab.Lab, name string, strangers int, expiresNS uint64) {
	t.Helper()
	table, err := ebpf.LoadPinnedMap(filepath.Join(l.PinDir("server"), "server", "maps", name), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	const at = 36 - 4 // the ports
	keys, values := make([][36]byte, strangers), make([][32]byte, strangers)
	for i := range keys {
		binary.BigEndian.PutUint32(keys[i][at:], uint32(i))
		binary.NativeEndian.PutUint64(values[i][:], expiresNS)
		values[i][24] = 4 // TRANSLATION_ESTABLISHED
	}
	n, err := table.BatchUpdate(keys, values, nil)
	if err != nil && n == 0 {
		t.Fatalf("fill %s: %v", name, err)
	}
	t.Logf("%d strangers in %s", n, name)
}

// flowsLive counts the translated connections that the server has.
func (w *wireLab) flowsLive(t *testing.T) (n int) {
	t.Helper()
	flows, err := ebpf.LoadPinnedMap(filepath.Join(w.PinDir("server"), "server", "maps", "flows"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer flows.Close()
	var key [36]byte
	var value [32]byte
	for all := flows.Iterate(); all.Next(&key, &value); n++ {
	}
	return n
}

// A client that the edge does not guard may take over a port in TIME_WAIT by a
// SYN, and its connection is not translated.
func TestKernelHandshakeFollowsATranslatedConnection(t *testing.T) {
	w := newWire(t, wireRoute, wireSettings{setup: "translate"})
	wireFamilies(t, func(t *testing.T, v6 bool) {
		s := w.serve(t, wireEcho)
		old := w.flow(t, v6)
		wireTimeWait(old, s)
		w.awaitState(t, old, "TIME-WAIT")
		f := old.reuse()
		f.behind, f.isn = true, old.isn+1<<20
		before := w.verdicts(t)
		f.open()
		f.send(0, wireData, []byte(wireRequest))
		f.expectStream(wireRequest)
		w.expect(t, before, wireVerdicts{"pass_syn": 1, "setup": 0, "pass_translated": 0})
	})
}

// Live connections outlive the daemon, begin without it, and its successor knows
// them.
func TestTranslatedConnectionsSurviveTheDaemon(t *testing.T) {
	for _, test := range []struct {
		shape    wireShape
		settings wireSettings
	}{
		{wireRoute, wireSettings{setup: "translate"}},
		{wireTenant, wireSettings{inside: &badwire.Faults{Delay: tenantDelay}}},
	} {
		t.Run(test.shape.name, func(t *testing.T) {
			w := newWire(t, test.shape, test.settings)
			w.serve(t, wireEcho)
			f := w.flow(t, false)
			f.connect("one ")
			if err := w.daemon.Kill(); err != nil {
				t.Fatal(err)
			}
			f.send(4, wireData, []byte("two "))
			f.expectStream("one two ")
			w.flow(t, true).connect(wireRequest)
			keys, err := w.Keys()
			if err != nil {
				t.Fatal(err)
			}
			w.daemon = w.start(t, w.AgentHome(), "server", w.ServerConfig(keys))
			f.send(8, wireData, []byte("three"))
			f.expectStream("one two three")
			f.expectCookieIsISN()
		})
	}
}
