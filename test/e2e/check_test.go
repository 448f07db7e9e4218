package e2e

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// checked is what `smartcookie check … -o json` prints.
type checked struct {
	Worst    string
	Findings []struct{ Name, Severity, What, Why, Mend string }
}

// check runs it in a namespace and wants the exit code of the worst finding.
func check(t *testing.T, at *lab.Namespace, args ...string) (r checked) {
	t.Helper()
	return checkAs(t, at, program, nil, args...)
}

func checkAs(t *testing.T, at *lab.Namespace, path string, who *syscall.SysProcAttr, args ...string) (r checked) {
	t.Helper()
	command := at.Command(t.Context(), path, slices.Concat([]string{"check"}, args, []string{"-o", "json"})...)
	command.SysProcAttr = who
	var output, said bytes.Buffer
	command.Stdout, command.Stderr = &output, &said
	err := command.Run()
	if err := json.Unmarshal(output.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s%s", err, &output, &said)
	}
	codes := map[string]int{"ok": 0, "notice": 0, "unseen": 3, "warning": 4, "error": 5}
	if code := command.ProcessState.ExitCode(); code != codes[r.Worst] {
		t.Errorf("exit code %d for %s (%v)", code, r.Worst, err)
	}
	return r
}

// severityOf is how bad the worst finding of a name is, "" if there is none.
func (r checked) severityOf(name string) (severity string) {
	for _, f := range r.Findings {
		if f.Name == name {
			severity = f.Severity // the worst is last
		}
	}
	return severity
}

func (r checked) wants(t *testing.T, want map[string]string) {
	t.Helper()
	for name, severity := range want {
		if got := r.severityOf(name); got != severity {
			t.Errorf("%s: %q, want %q: %+v", name, got, severity, r.Findings)
		}
	}
}

// inOrder wants nothing that is worse than a notice, but for what depends on the
// machine that the test runs on: its clock, and what it has of iptables.
func (r checked) inOrder(t *testing.T) {
	t.Helper()
	for _, f := range r.Findings {
		outside := f.Name == "clock-sync" || f.Name == "clock-error" || strings.HasPrefix(f.Name, "firewall-")
		if !outside && !slices.Contains([]string{"ok", "notice"}, f.Severity) {
			t.Errorf("%+v", f)
		}
	}
}

func TestCheckFindsALabInOrderAndChangesNothing(t *testing.T) {
	l := newLab(t, lab.Options{})
	listenIn(t, l.Server.Namespace, ":80")
	keys := keysOf(t, l)
	edge, server := fileOf(t, l, "edge.yaml", l.EdgeConfig(keys)), fileOf(t, l, "server.yaml", l.ServerConfig(keys))
	check(t, l.Edge.Namespace, "edge", "-c", edge, "--pin", l.PinDir("edge")).inOrder(t)
	check(t, l.Server.Namespace, "server", "-c", server, "--pin", l.PinDir("server")).inOrder(t)
	nothingAttached(t, l)
}

func TestCheckFindsWhatIsWrongWithALab(t *testing.T) {
	need(t, "ip", "ethtool", "nft")
	l := newLab(t, lab.Options{Setup: "native"})
	keys := keysOf(t, l)
	edge := fileOf(t, l, "edge.yaml", l.EdgeConfig(keys))
	server := fileOf(t, l, "server.yaml", strings.Replace(l.ServerConfig(keys), "[80]", "[80, 8080]", 1))
	runIn(t, l.Server.Namespace, "nft", "add table inet nat; add chain inet nat in { type nat hook prerouting priority -100; }; add rule inet nat in tcp dport 8080 redirect to :9")
	for _, o := range obstacles()[:7] { // sysctls and an MPTCP listener
		o.make(t, l)
	}
	runIn(t, l.Edge.Namespace, "ip", "link", "set", "dev", "in0", "mtu", "1400")
	runIn(t, l.Edge.Namespace, "ethtool", "-K", "out0", "rxvlan", "on")
	runIn(t, l.Server.Namespace, "ethtool", "-K", "eth0", "gro", "off")
	if err := l.Edge.Sysctl("net.ipv4.conf.out0.forwarding", "0"); err != nil {
		t.Fatal(err)
	}
	check(t, l.Edge.Namespace, "edge", "-c", edge, "--pin", l.PinDir("edge")).wants(t, map[string]string{
		"mtu-mss": "warning", "offload-vlan": "notice", "forwarding": "error", "xdp-transmit": "error", "xdp-native": "ok", "daemon": "",
	})
	check(t, l.Server.Namespace, "server", "-c", server, "--pin", l.PinDir("server")).wants(t, map[string]string{
		"sysctl-rfc1337": "warning", "sysctl-timestamps": "warning", "sysctl-sack": "warning", "sysctl-window-scaling": "warning",
		"sysctl-ecn": "warning", "conntrack-loose": "warning", "listener-mptcp": "warning", "firewall-dnat": "warning", "kernel-helpers": "ok",
	})
}

func TestCheckWithoutRootSaysWhatItCannotSee(t *testing.T) {
	l := newLab(t, lab.Options{})
	listenIn(t, l.Server.Namespace, ":80")
	checkAs(t, l.Server.Namespace, publicProgram(t), nobody(), "host", "eth0", "--ports", "80").wants(t, map[string]string{
		"firewall-unknown": "unseen", "firewall-stateful": "", "listener-mptcp": "unseen", "listener-missing": "ok",
		"kernel-helpers": "ok", "kernel-kfunc": "ok", "xdp-native": "ok", "offload-merging": "ok",
	})
}

func TestCheckSeesTheAgentThatIsAttached(t *testing.T) {
	l := newLab(t, lab.Options{})
	guard, err := l.Defend(t.Context(), "split")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := guard.Stop(); err != nil {
			t.Error(err)
		}
	})
	keys := keysOf(t, l)
	edge, server := fileOf(t, l, "e.yaml", l.EdgeConfig(keys)), fileOf(t, l, "s.yaml", l.ServerConfig(keys))
	ofEdge := []string{"edge", "-c", edge, "--pin", l.PinDir("edge")}
	ofServer := []string{"server", "-c", server, "--pin", l.PinDir("server")}
	seen := map[string]string{"daemon": "ok", "key-kernel": "ok", "key-epoch": "ok", "clock-step": "ok"}
	check(t, l.Edge.Namespace, ofEdge...).wants(t, seen)
	check(t, l.Server.Namespace, ofServer...).wants(t, seen)
	check(t, l.Edge.Namespace, ofEdge...).wants(t, map[string]string{"xdp-occupied": "ok", "filter-size": "ok"})
	elsewhere := append(slices.Clone(ofEdge[:4]), l.PinDir("nowhere"))
	check(t, l.Edge.Namespace, elsewhere...).wants(t, map[string]string{"xdp-occupied": "error", "daemon": ""})
	other := fileOf(t, l, "other.yaml", l.ServerConfig(otherKeys(t, l)))
	check(t, l.Server.Namespace, "server", "-c", other, "--pin", l.PinDir("server")).wants(t, map[string]string{"key-kernel": "error"})
	if err := guard.Process("server").Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the daemon that has gone is missed", func() bool {
		return check(t, l.Server.Namespace, ofServer...).severityOf("daemon") == "warning"
	})
}

// otherKeys is a file with other keys of the same domains.
func otherKeys(t *testing.T, l *lab.Lab) string {
	t.Helper()
	path := filepath.Join(l.Dir(), "other.keys")
	runIn(t, l.Server.Namespace, program, "keys", "new", path)
	return path
}
