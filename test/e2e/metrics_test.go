package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

const metricsPort = 9465

// scrape reads the metrics of a daemon as Prometheus does.
func scrape(t *testing.T, from *lab.Namespace, at netip.AddrPort) string {
	t.Helper()
	text, err := curl(from, fmt.Sprintf("http://%s/metrics", at))
	if err != nil {
		t.Fatalf("scrape %s: %v: %s", at, err, text)
	}
	return text
}

// sample returns a value of what was scraped; the labels are those of the text.
func sample(t *testing.T, text, series string) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		t.Errorf("no %s", series)
		return 0
	}
	value, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Error(err)
	}
	return value
}

// wantSound wants that promtool has nothing to say, and that every part was read.
func wantSound(t *testing.T, text string) {
	t.Helper()
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	parts := regexp.MustCompile(`(?m)^smartcookie_scrape_success\{(.*)\} (\S+)$`).FindAllStringSubmatch(text, -1)
	if len(parts) == 0 {
		t.Error("no part was read")
	}
	for _, p := range parts {
		if p[2] != "1" {
			t.Errorf("not read: %s", p[1])
		}
	}
}

// startPrometheus starts a real one that asks these daemons ten times a second.
func startPrometheus(t *testing.T, l *lab.Lab, at *lab.Namespace, targets ...netip.AddrPort) {
	t.Helper()
	var list []string
	for _, target := range targets {
		list = append(list, strconv.Quote(target.String()))
	}
	file := fileOf(t, l, "prometheus.yaml", fmt.Sprintf("global: {scrape_interval: 100ms, scrape_timeout: 100ms}\n"+
		"scrape_configs:\n  - job_name: smartcookie\n    static_configs: [{targets: [%s]}]\n", strings.Join(list, ", ")))
	command := at.Command(context.Background(), "prometheus", "--config.file="+file, "--storage.tsdb.path="+t.TempDir(),
		"--web.listen-address=127.0.0.1:9090", "--log.level=warn")
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait() // killed, as we meant it
		if t.Failed() {
			t.Logf("Prometheus: %s", log.String())
		}
	})
}

// queried returns what Prometheus answers to a query, by instance.
func queried(t *testing.T, at *lab.Namespace, query string) map[string]float64 {
	t.Helper()
	text, err := curl(at, "--get", "--data-urlencode", "query="+query, "http://127.0.0.1:9090/api/v1/query")
	if err != nil {
		return nil // it is starting
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	values := make(map[string]float64)
	for _, r := range answer.Data.Result {
		value, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		values[r.Metric["instance"]] = value
	}
	return values
}

func TestPrometheusSeesBothHalves(t *testing.T) {
	need(t, "curl", "prometheus", "promtool")
	beside(t)
	l := newLab(t, lab.Options{})
	edge := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), metricsPort)
	server := netip.AddrPortFrom(controlAt(l, 2, false).Addr(), metricsPort)
	h := newSpeaking(t, l, false, "learn: 0s", "learn: 0s\ngeneration: 5s",
		"outside:", fmt.Sprintf("metrics: %s\noutside:", edge), "interfaces:", fmt.Sprintf("metrics: %s\ninterfaces:", server))
	h.start(t)
	startHTTP(t, l)
	awaitPhase(t, h.edge, "enforced", 30*time.Second)
	if out, err := curl(l.Client.Namespace, l.URL(false)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	startPrometheus(t, l, l.Edge.Namespace, edge, server)
	eventually(t, time.Minute, "Prometheus has the edge's cookie and the server's setup", func() bool {
		valid := queried(t, l.Edge.Namespace, `sum by (instance) (smartcookie_cookies_total{result="valid"})`)
		made := queried(t, l.Edge.Namespace, `sum by (instance) (smartcookie_setups_total)`)
		return valid[edge.String()] >= 1 && made[server.String()] >= 1 && made[server.String()] == valid[server.String()]
	})

	text := scrape(t, l.Edge.Namespace, edge)
	wantSound(t, text)
	for series, holds := range map[string]func(float64) bool{
		`smartcookie_synacks_total{agent="edge",service="web"}`:                       func(n float64) bool { return n >= 1 },
		`smartcookie_service_mode{agent="edge",mode="always",service="web"}`:          func(n float64) bool { return n == 1 },
		`smartcookie_service_defended{agent="edge",service="web"}`:                    func(n float64) bool { return n == 1 },
		`smartcookie_keys_left_seconds{agent="edge",service="web"}`:                   func(n float64) bool { return n > 71*3600 && n < 73*3600 },
		`smartcookie_clock_error_seconds{agent="edge"}`:                               func(n float64) bool { return n > -8 && n < 8 },
		`smartcookie_filter_flows{agent="edge",generation="current"}`:                 func(n float64) bool { return n >= 0 },
		`smartcookie_filter_capacity_flows{agent="edge"}`:                             func(n float64) bool { return n >= 1000 },
		`smartcookie_peer_phase{agent="edge",peer="21",phase="enforced"}`:             func(n float64) bool { return n == 1 },
		`smartcookie_peer_disagrees{agent="edge",on="clock",peer="21"}`:               func(n float64) bool { return n == 0 },
		`smartcookie_peer_clock_skew_seconds{agent="edge",peer="21"}`:                 func(n float64) bool { return n > -1 && n < 1 },
		`smartcookie_control_messages_total{agent="edge",event="heard_state"}`:        func(n float64) bool { return n >= 1 },
		`smartcookie_verdicts_total{agent="edge",service="web",verdict="answer_syn"}`: func(n float64) bool { return n >= 1 },
	} {
		if n := sample(t, text, series); !holds(n) {
			t.Errorf("%s is %v", series, n)
		}
	}
	text = scrape(t, l.Edge.Namespace, server)
	wantSound(t, text)
	if n := sample(t, text, `smartcookie_peer_clock_skew_seconds{agent="server",peer="1"}`); n < -1 || n > 1 {
		t.Errorf("the edge's clock is %v s before the server's", n)
	}
}

func TestHostShowsMetrics(t *testing.T) {
	need(t, "curl", "promtool")
	beside(t)
	measuring, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { measuring.Close() })
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), metricsPort)
	for _, test := range []struct {
		cookies string
		series  string
	}{
		{"own", fmt.Sprintf(`smartcookie_setups_total{agent="server",service=%q,way="native"}`, l.Server.Port)},
		{"kernel", `smartcookie_syns_total{agent="host",service="80"}`},
	} {
		t.Run(test.cookies, func(t *testing.T) {
			d := newHost(t, l)
			d.args = append(d.args, "--cookies", test.cookies, "--metrics", at.String())
			d.start(t)
			if out, err := curl(l.Client.Namespace, l.URL(false)); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			text := scrape(t, d.at, at)
			wantSound(t, text)
			if n := sample(t, text, test.series); n < 1 {
				t.Errorf("%s is %v", test.series, n)
			}
			if !regexp.MustCompile(`smartcookie_program_runs_total\{agent="[a-z]+",hook="xdp_` + l.Server.Port + `"\} [1-9]`).MatchString(text) {
				t.Error("the kernel measures, and the program has not run")
			}
			d.kill(t)
			smartcookie(t, d.at, "detach", "--pin", d.pins())
		})
	}
}

// Whoever asks for a port that is taken, attaches nothing.
func TestTakenMetricsPortIsNamed(t *testing.T) {
	beside(t)
	l := newLab(t, lab.Options{})
	h := newHalves(t, l, labKeys(t, l), "interfaces:", "metrics: 192.0.2.1:9465\ninterfaces:")
	got := refuse(t, h.server.at, nil, append(h.server.args, "--pin", h.server.pins())...)
	want := "smartcookie: " + h.server.args[2] + ":2: listen for metrics: listen tcp 192.0.2.1:9465: "
	if got.code != 2 || !strings.Contains(got.text, want) {
		t.Errorf("exit code %d, want 2 and %q:\n%s", got.code, want, got.text)
	}
	if left := programsOn(t, h.server.at); len(left) > 0 {
		t.Errorf("attached: %v", left)
	}
}
