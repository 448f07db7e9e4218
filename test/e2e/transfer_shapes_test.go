package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// shape is a way to deploy the defence.
type shape struct {
	name     string
	topology lab.Topology
	host     bool
	tenant   bool // the server is in a namespace behind its agent's
	proxy    bool // the edge alone
}

var (
	splitRoute  = shape{name: "split route", topology: lab.Route}
	splitBridge = shape{name: "split bridge", topology: lab.Bridge}
	hostShape   = shape{name: "host", topology: lab.Route, host: true}
	tenantShape = shape{name: "tenant", topology: lab.Route, tenant: true}
	proxyRoute  = shape{name: "proxy route", topology: lab.Route, proxy: true}
	proxyBridge = shape{name: "proxy bridge", topology: lab.Bridge, proxy: true}
	allShapes   = []shape{splitRoute, splitBridge, hostShape, tenantShape}
	proxyShapes = []shape{proxyRoute, proxyBridge}
)

// protection is what the agents of a shape protect; the zero value is port 80
// of the server's usual addresses.
type protection struct {
	ports    string   // "80" if empty
	prefixes []string // besides the server's usual addresses
	mss      int      // of a split's SYN-ACK, 1460 if 0
	keys     string   // file of a split's keys, the lab's own if empty
}

func (p protection) portList() string {
	if p.ports == "" {
		return "80"
	}
	return p.ports
}

// yaml is the list of services of an agent's configuration.
func (p protection) yaml(l *lab.Lab) string {
	prefixes := append([]string{l.Server.IPv4.String(), l.Server.IPv6.String()}, p.prefixes...)
	text := fmt.Sprintf("services:\n  - name: web\n    prefixes: [\"%s\"]\n    ports: [%s]\n",
		strings.Join(prefixes, `", "`), strings.ReplaceAll(p.portList(), ",", ", "))
	if p.mss != 0 {
		text += fmt.Sprintf("    mss: %d\n", p.mss)
	}
	return text
}

// deploy makes a lab that is defended in this shape.
func deploy(t *testing.T, s shape, options lab.Options, p protection) *lab.Lab {
	t.Helper()
	options.Topology, options.Tenant = s.topology, s.tenant
	l := newLab(t, options)
	s.protect(t, l, p)
	return l
}

// protect starts the agents of a shape in a lab.
func (s shape) protect(t *testing.T, l *lab.Lab, p protection) {
	t.Helper()
	if s.host {
		if err := l.Edge.Pass(l.Edge.Inside); err != nil {
			t.Fatal(err)
		}
		startAgent(t, l, l.Server.Namespace, "host", l.Server.Port, "--ports", p.portList(), "--setup", l.Setup())
		return
	}
	forward := "route"
	if s.topology == lab.Bridge {
		forward = "bridge"
	}
	keys := p.keys
	if keys == "" {
		keys = keysOf(t, l)
	}
	strategy := "    strategy: proxy\n"
	if !s.proxy {
		strategy = ""
		server := fmt.Sprintf("keys: %s\n%s%s    setup: %s\n", keys, l.AgentDevices(), p.yaml(l), l.Setup())
		startAgent(t, l, l.AgentHome(), "server", "-c", fileOf(t, l, "server.yaml", server))
	}
	for i, edge := range l.Edges() {
		name := []string{"edge", "edge2"}[i]
		text := fmt.Sprintf("keys: %s\noutside: [%s]\ninside: [%s]\nforward: %s\nlearn: 0s\n%s",
			keys, strings.Join(edge.Outside, ", "), edge.Inside, forward, p.yaml(l)+strategy)
		startNamed(t, l, edge.Namespace, name, "edge", "-c", fileOf(t, l, name+".yaml", text))
	}
}

func startAgent(t *testing.T, l *lab.Lab, at *lab.Namespace, kind string, args ...string) *lab.Process {
	t.Helper()
	return startNamed(t, l, at, kind, kind, args...)
}

// startNamed starts an agent of a kind of which there are more than one.
func startNamed(t *testing.T, l *lab.Lab, at *lab.Namespace, name, kind string, args ...string) *lab.Process {
	t.Helper()
	args = append(append([]string{kind}, args...), "--pin", l.PinDir(name))
	process, err := l.Start(t.Context(), at, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return process
}

func keysOf(t *testing.T, l *lab.Lab) string {
	t.Helper()
	keys, err := l.Keys()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func fileOf(t *testing.T, l *lab.Lab, name, content string) string {
	t.Helper()
	path, err := l.WriteFile(name, content)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// startNginx serves the files below the directory that it returns on port 80,
// and takes uploads to /up/.
func startNginx(t *testing.T, l *lab.Lab) (root string) {
	t.Helper()
	need(t, "nginx")
	dir := t.TempDir()
	root = filepath.Join(dir, "www")
	if err := os.MkdirAll(filepath.Join(root, "up"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(nginxConfig(dir, root)), 0o600); err != nil {
		t.Fatal(err)
	}
	nginx := l.Server.Command(context.Background(), "nginx", "-e", "stderr", "-c", file)
	nginx.Stderr = os.Stderr
	if err := nginx.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = nginx.Process.Kill()
		_ = nginx.Wait() // killed, as we meant it
	})
	eventually(t, 10*time.Second, "nginx listens", func() bool {
		conn, err := dialIn(l.Server.Namespace, net.Dialer{}, "127.0.0.1:80")
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	return root
}

func nginxConfig(dir, root string) string {
	var temporary strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temporary, "%s_temp_path %s/%s;\n", kind, dir, kind)
	}
	return fmt.Sprintf(`
daemon off; master_process off; user root; pid %s/pid;
events { worker_connections 512; }
http {
	%s
	access_log off; sendfile on; keepalive_timeout 120s; client_max_body_size 0;
	server {
		listen 80; listen [::]:80; root %s;
		location /up/ { dav_methods PUT; }
		location = /hello { return 200 "hello\n"; }
	}
}
`, dir, temporary.String(), root)
}

// dialIn connects from a namespace: the socket is made on this thread.
func dialIn(from *lab.Namespace, dialer net.Dialer, address string) (conn net.Conn, err error) {
	dialer.Timeout = 5 * time.Second
	err = from.Do(func() error {
		conn, err = dialer.Dial("tcp", address)
		return err
	})
	return conn, err
}

// listenIn listens with plain TCP in a namespace until the test ends.
func listenIn(t *testing.T, at *lab.Namespace, address string) net.Listener {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	var listener net.Listener
	err := at.Do(func() (err error) {
		listener, err = config.Listen(t.Context(), "tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// url is the address of something that the lab's server has.
func url(l *lab.Lab, ipv6 bool, path string) string {
	return "http://" + webAddress(l, ipv6) + path
}

func webAddress(l *lab.Lab, ipv6 bool) string {
	return net.JoinHostPort(l.Server.Addr(ipv6).String(), "80")
}

func family(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

// curl runs curl in a namespace and returns what it printed.
func curl(from *lab.Namespace, args ...string) (string, error) {
	if _, err := exec.LookPath("curl"); err != nil {
		return "", err
	}
	args = append([]string{"-sS", "-g", "--fail", "--max-time", "60"}, args...)
	out, err := from.Command(context.Background(), "curl", args...).CombinedOutput()
	return string(out), err
}

// mustGreet fetches a small page.
func mustGreet(t *testing.T, from *lab.Namespace, url string) {
	t.Helper()
	if out, err := curl(from, "--max-time", "10", url); err != nil || out != "hello\n" {
		t.Errorf("curl %s: %v: %q", url, err, out)
	}
}

// verdictsOf returns what the agents of one daemon have decided.
func verdictsOf(t *testing.T, l *lab.Lab, daemon string) map[string]uint64 {
	t.Helper()
	verdicts, err := dataplane.Verdicts(l.PinDir(daemon))
	if err != nil {
		t.Fatal(err)
	}
	return verdicts
}

// counted wants verdicts to have happened.
func counted(t *testing.T, l *lab.Lab, daemon string, names ...string) {
	t.Helper()
	verdicts := verdictsOf(t, l, daemon)
	if (setupOf() != "native" || l.Home != nil) && verdicts["setup"] == 0 {
		verdicts["setup"] = verdicts["setup_translated"] // either will do
	}
	for _, name := range names {
		if verdicts[name] == 0 {
			t.Errorf("the %s counts no %s: %v", daemon, name, verdicts)
		}
	}
}
