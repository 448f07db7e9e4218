package metrics

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/keys"
)

// nowhere is a daemon of which nothing is pinned: every read fails.
func nowhere(t testing.TB) Sources {
	t.Helper()
	return Sources{
		Pins: t.TempDir(), Agents: []string{dataplane.EdgeAgent, dataplane.ServerAgent, dataplane.HostAgent, dataplane.ProxyAgent},
		Clocks: func() keys.Reading { return keys.Reading{} },
	}
}

func handler(t testing.TB, log io.Writer) http.Handler {
	t.Helper()
	return newHandler(newCollector(nowhere(t), slog.New(slog.NewTextHandler(log, nil))))
}

func ask(h http.Handler, method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w
}

func TestFailingReadIsAMetricAndOneLine(t *testing.T) {
	var log bytes.Buffer
	h := handler(t, &log)
	for range 3 {
		w := ask(h, http.MethodGet, Path)
		if w.Code != http.StatusOK {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
		for _, want := range []string{
			`smartcookie_scrape_success{agent="edge",part="verdicts"} 0`,
			`smartcookie_scrape_success{agent="server",part="keys"} 0`,
			"smartcookie_build_info{",
			"process_resident_memory_bytes ",
		} {
			if !strings.Contains(w.Body.String(), want) {
				t.Errorf("no %s", want)
			}
		}
	}
	if n := strings.Count(log.String(), "part=edge/verdicts"); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, log.String())
	}
}

func TestPortAnswersNothingButMetrics(t *testing.T) {
	h := handler(t, io.Discard)
	for _, test := range []struct {
		method, target string
		code           int
	}{
		{http.MethodGet, Path, http.StatusOK},
		{http.MethodHead, Path, http.StatusOK},
		{http.MethodGet, Path + "?name[]=a&debug=1", http.StatusOK},
		{http.MethodPost, Path, http.StatusMethodNotAllowed},
		{http.MethodPut, Path, http.StatusMethodNotAllowed},
		{http.MethodDelete, Path, http.StatusMethodNotAllowed},
		{http.MethodOptions, Path, http.StatusMethodNotAllowed},
		{http.MethodTrace, Path, http.StatusMethodNotAllowed},
		{http.MethodConnect, Path, http.StatusMethodNotAllowed},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/metrics/", http.StatusNotFound},
		{http.MethodGet, "//metrics", http.StatusNotFound},
		{http.MethodGet, "/Metrics", http.StatusNotFound},
		{http.MethodGet, "/metrics/../metrics", http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", http.StatusNotFound},
		{http.MethodGet, "/debug/vars", http.StatusNotFound},
		{http.MethodPost, "/-/reload", http.StatusNotFound},
		{http.MethodGet, "/v1/keys", http.StatusNotFound},
	} {
		if w := ask(h, test.method, test.target); w.Code != test.code {
			t.Errorf("%s %s: %d, want %d", test.method, test.target, w.Code, test.code)
		} else if w.Code != http.StatusOK && w.Body.Len() > 40 {
			t.Errorf("%s %s: %q", test.method, test.target, w.Body)
		}
	}
}

// serving starts a server on loopback and returns where it is.
func serving(t *testing.T) string {
	t.Helper()
	l, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l.Show(nowhere(t))
	t.Cleanup(l.Close)
	return l.listener.Addr().String()
}

// raw sends bytes and returns the status line of what comes back, which is nothing
// where the server hangs up.
func raw(t *testing.T, at, request string) string {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, request) // it may hang up before the end
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line)
}

func TestRequestsOutOfBoundsAreRefused(t *testing.T) {
	at := serving(t)
	for _, test := range []struct{ what, request, status string }{
		{"metrics", "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "200"},
		{"options of all", "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "404"},
		{"long headers", "GET /metrics HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", "431"},
		{"no HTTP", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "404"},
	} {
		if got := raw(t, at, test.request); !strings.Contains(got, " "+test.status) {
			t.Errorf("%s: %q, want %s", test.what, got, test.status)
		}
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	l, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var running, most atomic.Int64
	entered, release := make(chan struct{}, 2*connectionsMost), make(chan struct{})
	server := newServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		entered <- struct{}{}
		<-release
		running.Add(-1)
	}))
	go func() { _ = server.Serve(l.listener) }() // until it is closed
	t.Cleanup(func() { server.Close() })
	answers := make(chan string)
	for range 2 * connectionsMost {
		go func() {
			answers <- raw(t, l.listener.Addr().String(), "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		}()
	}
	for range connectionsMost {
		<-entered
	}
	for other, n := serving(t), 0; n < 100; n++ { // others would have come in meanwhile
		raw(t, other, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	}
	if n := most.Load(); n != connectionsMost {
		t.Errorf("%d at once, want %d", n, connectionsMost)
	}
	close(release)
	for range 2 * connectionsMost { // those that had to wait are served in the end
		if line := <-answers; !strings.Contains(line, " 200") {
			t.Errorf("%q", line)
		}
	}
}

func TestAgentInAnothersPlaceIsShown(t *testing.T) {
	l, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	for entries := 1; entries < 3; entries++ {
		s := nowhere(t)
		s.Tables = map[string]func() []dataplane.Occupancy{dataplane.EdgeAgent: func() []dataplane.Occupancy {
			return []dataplane.Occupancy{{Table: "deny4", Entries: entries, Capacity: 10}}
		}}
		l.Show(s)
		answer, err := http.Get("http://" + l.listener.Addr().String() + Path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if want := fmt.Sprintf(`smartcookie_table_entries{agent="edge",table="deny4"} %d`, entries); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("no %s: %v", want, err)
		}
	}
}

func TestServerHasTimeouts(t *testing.T) {
	s := newServer(http.NotFoundHandler())
	if s.ReadTimeout == 0 || s.WriteTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 {
		t.Errorf("something is not bounded: %+v", s)
	}
	if scrapeLimit >= writeLimit {
		t.Error("an answer that is late is cut, not refused")
	}
}

func TestNoAddressIsNoPort(t *testing.T) {
	l, err := Listen(netip.AddrPort{}, nil)
	if l != nil || err != nil {
		t.Fatalf("%v, %v", l, err)
	}
	l.Show(Sources{})
	l.Close()
}

func TestTakenPortIsAnError(t *testing.T) {
	at := netip.MustParseAddrPort(serving(t))
	if l, err := Listen(at, nil); err == nil || !strings.Contains(err.Error(), "listen for metrics: ") {
		t.Errorf("%v, %v", l, err)
	}
}

func FuzzHandler(f *testing.F) {
	h := handler(f, io.Discard)
	f.Add("GET", "/metrics", "a=b")
	f.Add("POST", "/metrics", "")
	f.Add("GET", "/%6d%65trics", "name[]=x")
	f.Add("GET", "*", "")
	f.Add("M\x00", "/..//metrics", "%")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		text := fmt.Sprintf("%s %s?%s HTTP/1.1\r\nHost: a\r\n\r\n", method, path, query)
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
		if err != nil {
			return // the server answers 400 by itself
		}
		r = r.WithContext(context.Background())
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		metrics := r.URL.Path == Path && (r.Method == http.MethodGet || r.Method == http.MethodHead)
		if (w.Code == http.StatusOK) != metrics {
			t.Errorf("%q: %d", text, w.Code)
		}
		if !metrics && w.Body.Len() > 40 {
			t.Errorf("%q: %q", text, w.Body)
		}
	})
}

// A name comes from a file, and a text of Prometheus is one of UTF-8.
func TestNameThatIsNoTextIsShownAllTheSame(t *testing.T) {
	to := make(chan prometheus.Metric, 1)
	emit(to, serviceMode, 1, "edge", "w\xffb\n\"", "always")
	if m := <-to; m == nil {
		t.Error("nothing")
	}
}

// What verdicts mean together names verdicts that there are, each with one meaning
// of a kind.
func TestMeaningsAreOfVerdictsThatThereAre(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range meanings {
		for _, verdict := range m.verdicts {
			if _, ok := dataplane.VerdictNumber(verdict); !ok {
				t.Errorf("no verdict %q", verdict)
			}
			for _, agent := range m.agents {
				key := fmt.Sprint(m.family.desc, agent, verdict)
				if seen[key] {
					t.Errorf("%s of %s is counted twice in %s", verdict, agent, m.family.desc)
				}
				seen[key] = true
			}
		}
	}
}

func TestNamesAreWhatPrometheusWants(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		missing(t, "promtool")
	}
	check := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	check.Stdin = ask(handler(t, io.Discard), http.MethodGet, Path).Body
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}
