package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// flooded is a lab with nginx, defended by both halves, whose edge has more in
// its configuration.
type flooded struct {
	*lab.Lab
	t    *testing.T
	edge *daemon
	www  string // what nginx serves
}

// newFlooded starts it; `more` comes behind the edge's file, which ends with the
// service.
func newFlooded(t *testing.T, more string) flooded {
	t.Helper()
	need(t, "nginx", "curl")
	l := newLab(t, lab.Options{})
	www := startNginx(t, l)
	keys := keysOf(t, l)
	startAgent(t, l, l.Server.Namespace, "server", "-c", fileOf(t, l, "server.yaml", l.ServerConfig(keys)))
	file := fileOf(t, l, "edge.yaml", l.EdgeConfig(keys)+more)
	f := flooded{l, t, &daemon{lab: l, at: l.Edge.Namespace, name: "edge", args: []string{"edge", "-c", file}}, www}
	f.edge.start(t)
	return f
}

// restart starts the edge's daemon anew with more in its configuration.
func (f flooded) restart(more string) {
	f.t.Helper()
	f.edge.kill(f.t)
	f.edge.args = []string{"edge", "-c", fileOf(f.t, f.Lab, "edge.yaml", f.EdgeConfig(keysOf(f.t, f.Lab))+more)}
	f.edge.start(f.t)
}

// list carries out deny or allow at the edge, which has to succeed.
func (f flooded) list(args ...string) string {
	f.t.Helper()
	out, err := f.Edge.Command(f.t.Context(), program, append(args, "--pin", f.PinDir("edge"))...).CombinedOutput()
	if err != nil {
		f.t.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}

// listed is what is on a list, by prefix.
func (f flooded) listed(list string) map[string]any {
	f.t.Helper()
	var all []map[string]any
	if err := json.Unmarshal([]byte(f.list(list, "list", "-o", "json")), &all); err != nil {
		f.t.Fatal(err)
	}
	by := make(map[string]any)
	for _, e := range all {
		by[e["prefix"].(string)] = e["from"]
	}
	return by
}

// How long a request has that shall be served, and one that shall not.
const (
	patient = 10 * time.Second
	brief   = 2 * time.Second
)

func (f flooded) served(ipv6 bool, within time.Duration) bool {
	out, err := curl(f.Client.Namespace, "--max-time", fmt.Sprint(within.Seconds()), url(f.Lab, ipv6, "/hello"))
	return err == nil && out == "hello\n"
}

func (f flooded) mustServe(what string, want bool) {
	f.t.Helper()
	for _, ipv6 := range []bool{false, true} {
		if f.served(ipv6, map[bool]time.Duration{true: patient, false: brief}[want]) != want {
			f.t.Errorf("%s: served over %s is %v", what, family(ipv6), !want)
		}
	}
}

func (f flooded) clients() []string { return []string{f.Client.IPv4.String(), f.Client.IPv6.String()} }

func TestListsChangeWithoutADaemon(t *testing.T) {
	beside(t)
	f := newFlooded(t, "")
	f.mustServe("nothing is listed", true)
	f.list(append([]string{"deny", "add"}, f.clients()...)...)
	f.mustServe("denied", false)
	counted(t, f.Lab, "edge", "drop_denied")
	f.list(append([]string{"allow", "add"}, f.clients()...)...)
	f.mustServe("denied and allowed", true)
	f.list(append([]string{"allow", "del"}, f.clients()...)...)
	f.edge.kill(t)
	f.mustServe("no daemon", false)
	f.list(append([]string{"deny", "del"}, f.clients()...)...)
	f.mustServe("no longer denied, no daemon", true)
	if text := f.list("deny", "list"); strings.Count(text, "\n") != 1 {
		t.Errorf("the list has %q", text)
	}
	f.list("deny", "add", f.Client.IPv4.String(), "--for", "1h")
	f.edge.start(t)
	if got := f.listed("deny"); len(got) != 1 || got[f.Client.IPv4.String()+"/32"] != "command" {
		t.Errorf("after the daemon's start: %v", got)
	}
	if f.served(false, brief) || !f.served(true, patient) {
		t.Error("the next daemon has lost what is denied")
	}
}

func TestConnectionOfADeniedSourceIsCutAndGoesOnAfterwards(t *testing.T) {
	const size = 40 << 20 // more than the client's kernel takes in ahead of it
	f := newFlooded(t, "")
	if err := os.WriteFile(filepath.Join(f.www, "large"), make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	begun := f.Client.Command(t.Context(), "curl", "-s", "--max-time", "60", "--limit-rate", "4M", url(f.Lab, false, "/large"))
	file := filepath.Join(t.TempDir(), "got")
	begun.Args = append(begun.Args, "-o", file)
	got := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0 // not there yet
		}
		return info.Size()
	}
	if err := begun.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the transfer runs", func() bool { return got() > 0 })
	f.list("deny", "add", f.Client.IPv4.String(), "--for", "3s")
	before := verdictsOf(t, f.Lab, "edge")["drop_denied"]
	eventually(t, 20*time.Second, "its packets are lost", func() bool { return verdictsOf(t, f.Lab, "edge")["drop_denied"] > before })
	if err := begun.Wait(); err != nil || got() != size {
		t.Errorf("after the expiry: %v, %d bytes", err, got())
	}
}

func TestExpiryNeedsNoDaemon(t *testing.T) {
	beside(t)
	f := newFlooded(t, "")
	f.list("deny", "add", f.Client.IPv4.String(), f.Client.IPv6.String(), "--for", "10s")
	f.edge.kill(t)
	f.mustServe("in time", false)
	eventually(t, 20*time.Second, "they are served again", func() bool { return f.served(false, brief) && f.served(true, brief) })
	if got := f.listed("deny"); len(got) != 0 {
		t.Errorf("what has expired is listed: %v", got)
	}
}

func TestListsOfTheConfigurationComeAndGo(t *testing.T) {
	f := newFlooded(t, "")
	many := fileOf(t, f.Lab, "bad", "# who floods\n"+f.Client.IPv6.String()+"\n10.0.0.0/9\n")
	f.restart(fmt.Sprintf("deny: [%s]\ndeny_file: %s\n", f.Client.IPv4, many))
	f.mustServe("denied", false)
	if got := f.listed("deny"); len(got) != 3 || got["10.0.0.0/9"] != "configuration" {
		t.Errorf("the list has %v", got)
	}
	f.restart("")
	f.mustServe("no longer in the file", true)
	wrong := fileOf(t, f.Lab, "wrong", "10.0.0.0/8\n\n10.0.0.1/8\n")
	file := fileOf(t, f.Lab, "other.yaml", f.EdgeConfig(keysOf(t, f.Lab))+"deny_file: "+wrong+"\n")
	refuse(t, f.Edge.Namespace, nil, "edge", "-c", file, "--pin", f.PinDir("other")).
		is(t, 2, wrong+":3: ", "did you mean 10.0.0.0/8?")
}

func TestWrongListCommandsAreRefused(t *testing.T) {
	f := newFlooded(t, "")
	pins := f.PinDir("edge")
	for _, test := range []struct {
		name, begin string
		code        int
		args        []string
	}{
		{"no prefix", "deny add: give PREFIX", 2, []string{"deny", "add"}},
		{"bits beyond the length", "10.0.0.1/8 has bits", 2, []string{"allow", "add", "10.0.0.1/8"}},
		{"no address", `"nobody" is no address or prefix`, 2, []string{"deny", "del", "nobody"}},
		{"time that is over", "--for: -1s is no time to come", 2, []string{"deny", "add", "10.0.0.1", "--for", "-1s"}},
		{"not there", "10.0.0.1/32 is not on the list deny", 1, []string{"deny", "del", "10.0.0.1"}},
		{"unknown output", `unknown output "xml"`, 2, []string{"deny", "list", "-o", "xml"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			refuse(t, f.Edge.Namespace, nil, append(test.args, "--pin", pins)...).is(t, test.code, test.begin)
		})
	}
	refuse(t, f.Edge.Namespace, nil, "deny", "list", "--pin", pins+"x").is(t, 1, "no agent is attached")
}

func TestHostShapeHasLists(t *testing.T) {
	l := newHostLab(t)
	p := typeHost(t, l)
	p.says(t, "msg=ready")
	do := func(args ...string) {
		t.Helper()
		if out, err := l.Server.Command(t.Context(), program, append(args, "--pin", l.PinDir("host"))...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	mustGreet(t, l.Client.Namespace, url(l, false, "/hello"))
	do("deny", "add", l.Client.IPv4.String())
	if out, err := curl(l.Client.Namespace, "--max-time", "2", url(l, false, "/hello")); err == nil {
		t.Errorf("a denied client is served: %q", out)
	}
	do("deny", "del", l.Client.IPv4.String())
	mustGreet(t, l.Client.Namespace, url(l, false, "/hello"))
	p.signal(t, syscall.SIGINT)
	p.ends(t, 0, "the protection goes on")
}

func bypassOf(l flooded, port string, syns int) string {
	return fmt.Sprintf("bypass_without_protection:\n  - sources: [%s, \"%s\"]\n    interface: %s\n    syns: %d\n",
		l.Client.IPv4, l.Client.IPv6, port, syns)
}

func TestBypassReachesTheServerWithinItsRate(t *testing.T) {
	f := newFlooded(t, "")
	f.restart(bypassOf(f, f.Edge.Outside[0], 1000))
	if !strings.Contains(string(f.edge.process.Log()), "WITHOUT PROTECTION") {
		t.Errorf("no warning is logged: %s", f.edge.process.Log())
	}
	before := verdictsOf(t, f.Lab, "server")
	f.mustServe("bypass", true)
	after := verdictsOf(t, f.Lab, "edge")
	if after["pass_bypass"] < 2 || after["answer_syn"] != 0 {
		t.Errorf("the edge has %v", after)
	}
	if got := verdictsOf(t, f.Lab, "server"); got["pass_syn"] < before["pass_syn"]+2 || got["setup"]+got["setup_translated"] != 0 {
		t.Errorf("the server has %v", got)
	}
	t.Run("beyond it they are answered", func(t *testing.T) {
		f.restart(bypassOf(f, f.Edge.Outside[0], 1))
		for range 5 {
			f.mustServe("beyond the rate", true)
		}
		if got := verdictsOf(t, f.Lab, "edge"); got["answer_syn"] == 0 {
			t.Errorf("nothing was answered: %v", got)
		}
	})
	t.Run("by another port they are spoofed", func(t *testing.T) {
		f.restart(bypassOf(f, f.Edge.Outside[1], 1000))
		f.mustServe("by the wrong port", false)
		counted(t, f.Lab, "edge", "drop_spoofed_inside")
	})
}

// A flood that bears the addresses of a client's network: half of the client's SYNs
// are beyond the limit, too, and one of the ten that Linux sends in a minute gets
// through.
func TestRepeatedSynsGetThroughTheLimitOfAnswers(t *testing.T) {
	const limit, flood = 2000, 4000
	f := newFlooded(t, fmt.Sprintf("answers_per_network: %d\n", limit))
	network, err := f.Client.IPv4.Prefix(24)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	attack, err := f.StartFlood(lab.FloodOptions{Rate: flood, Sources: network})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := attack.Stop(); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, 20*time.Second, "the limit is reached", func() bool { return verdictsOf(t, f.Lab, "edge")["drop_answer_limit"] > 2*limit })
	served := 0
	const tries = 4
	for range tries {
		if out, err := curl(f.Client.Namespace, "--max-time", "60", url(f.Lab, false, "/hello")); err == nil && out == "hello\n" {
			served++
		}
	}
	if served != tries {
		t.Errorf("%d of %d requests are served", served, tries)
	}
	got := verdictsOf(t, f.Lab, "edge")
	seconds := time.Since(begun).Seconds()
	t.Logf("%d SYNs are answered in %.1f s, %d are not", got["answer_syn"], seconds, got["drop_answer_limit"])
	// A second more, since the first window takes its whole share at once.
	if most := 1.25 * limit * (seconds + 1); float64(got["answer_syn"]) > most {
		t.Errorf("the limit are %.0f answers", most)
	}
	if !f.served(true, patient) {
		t.Error("another network is not served")
	}
}

func TestServersOpenConnectionsFromPortsThatAreLost(t *testing.T) {
	f := newFlooded(t, "other_tcp: drop\n")
	listen(t, f.Client.Namespace, 8123)
	for _, ipv6 := range []bool{false, true} {
		to := net.JoinHostPort(f.Client.Addr(ipv6).String(), "8123")
		out, err := curl(f.Server.Namespace, "--max-time", "10", "http://"+to+"/")
		if err != nil || out != "from outside" {
			t.Errorf("the server's request over %s: %v: %q", family(ipv6), err, out)
		}
	}
	f.mustServe("the service", true)
	for _, ipv6 := range []bool{false, true} {
		if out, err := curl(f.Client.Namespace, "--max-time", "2", "http://"+net.JoinHostPort(f.Server.Addr(ipv6).String(), "81")+"/"); err == nil {
			t.Errorf("another port answers over %s: %q", family(ipv6), out)
		} else if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 28 { // a timeout, and no RST
			t.Errorf("another port: %v", err)
		}
	}
	counted(t, f.Lab, "edge", "drop_other_port")
}

// listen serves a greeting at a port of a namespace.
func listen(t *testing.T, at *lab.Namespace, port int) {
	t.Helper()
	var listener net.Listener
	if err := at.Do(func() (err error) { listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "from outside") })}
	go func() { _ = server.Serve(listener) }() // until it is closed
	t.Cleanup(func() { server.Close() })
}
