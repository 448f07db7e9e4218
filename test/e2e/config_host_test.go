package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// typed is the program as somebody has typed it in a terminal.
type typed struct {
	command  *lab.Command
	keyboard io.WriteCloser
	log      string
	done     chan struct{}
}

func typeIn(t *testing.T, l *lab.Lab, at *lab.Namespace, args ...string) *typed {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p := &typed{command: at.Command(context.Background(), program, args...), log: file.Name(), done: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = file, file
	if p.keyboard, err = p.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.command.Wait() // the exit code says how it went
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.command.Process.Kill()
		<-p.done
	})
	return p
}

func (p *typed) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// says waits until the program has printed something.
func (p *typed) says(t *testing.T, what string) {
	t.Helper()
	eventually(t, 15*time.Second, fmt.Sprintf("%q is said", what), func() bool { return strings.Contains(p.text(t), what) })
}

// ends waits for the program's end, its exit code and last words.
func (p *typed) ends(t *testing.T, code int, words string) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(15 * time.Second):
		t.Fatalf("it does not end: %s", p.text(t))
	}
	lines := strings.Split(strings.TrimSpace(p.text(t)), "\n")
	if last := lines[len(lines)-1]; p.command.ProcessState.ExitCode() != code || !strings.Contains(last, words) {
		t.Errorf("it ends with exit code %d and %q, want %d and %q", p.command.ProcessState.ExitCode(), last, code, words)
	}
}

func (p *typed) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := p.command.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// newHostLab is a lab with nginx on a server that can be defended by itself.
func newHostLab(t *testing.T) *lab.Lab {
	t.Helper()
	need(t, "nginx", "curl")
	l := newLab(t, lab.Options{})
	if err := l.Edge.Pass(l.Edge.Inside); err != nil {
		t.Fatal(err)
	}
	startNginx(t, l)
	return l
}

func typeHost(t *testing.T, l *lab.Lab, more ...string) *typed {
	t.Helper()
	args := append([]string{"host", l.Server.Port, "--ports", "80", "--setup", l.Setup(), "--pin", l.PinDir("host")}, more...)
	return typeIn(t, l, l.Server.Namespace, args...)
}

var hostPrograms = []string{"XDP on eth0", "TCXEgress on eth0", "TCXEgress on eth0", "TCXIngress on eth0"}

// defends says whether the host's programs are there, all or none, and that it
// serves.
func defends(t *testing.T, l *lab.Lab, want bool) {
	t.Helper()
	programs := attached(t, l.Server.Namespace)
	slices.Sort(programs)
	expected := slices.Clone(hostPrograms)
	slices.Sort(expected)
	if want != slices.Equal(programs, expected) || !want && len(programs) > 0 {
		t.Errorf("attached: %v", programs)
	}
	if _, err := os.Stat(l.PinDir("host")); want != (err == nil) {
		t.Errorf("pins: %v", err)
	}
	mustGreet(t, l.Client.Namespace, url(l, false, "/hello"))
}

func TestUnconfirmedHostTakesEverythingOff(t *testing.T) {
	l := newHostLab(t)
	for _, test := range []struct {
		name  string
		do    func(*typed)
		words string
	}{
		{"when the time is over", func(*typed) {}, "not confirmed in time: everything is taken off again"},
		{"at the end of its input", func(p *typed) { p.keyboard.Close() }, "not confirmed in time"},
		{"at Ctrl-C", func(p *typed) { p.signal(t, syscall.SIGINT) }, "everything is taken off again"},
		{"when the terminal hangs up", func(p *typed) { p.signal(t, syscall.SIGHUP) }, "everything is taken off again"},
	} {
		t.Run(test.name, func(t *testing.T) {
			wait := "60s"
			if test.name == "when the time is over" {
				wait = "3s"
			}
			p := typeHost(t, l, "--confirm", wait)
			p.says(t, "press Enter to keep the protection on")
			defends(t, l, true)
			test.do(p)
			p.ends(t, 1, test.words)
			defends(t, l, false)
		})
	}
}

func TestConfirmedHostOutlivesItsDaemon(t *testing.T) {
	l := newHostLab(t)
	p := typeHost(t, l, "--confirm", "60s")
	p.says(t, "press Enter")
	if _, err := io.WriteString(p.keyboard, "\n"); err != nil {
		t.Fatal(err)
	}
	p.says(t, "msg=confirmed")
	p.signal(t, syscall.SIGINT)
	p.ends(t, 0, "the protection goes on; to end it: smartcookie detach")
	defends(t, l, true)
	counted(t, l, "host", "answer_syn", "setup")
	detach(t, l, l.Server.Namespace, "host", "detached edge/xdp_eth0", "detached server/tcx_ingress_eth0")
	defends(t, l, false)
	detach(t, l, l.Server.Namespace, "host", "nothing is attached")
}

// detach types the command, which has to say these things.
func detach(t *testing.T, l *lab.Lab, at *lab.Namespace, agent string, says ...string) {
	t.Helper()
	out, err := at.Command(context.Background(), program, "detach", "--pin", l.PinDir(agent)).CombinedOutput()
	if err != nil {
		t.Errorf("detach: %v: %s", err, out)
	}
	for _, what := range says {
		if !strings.Contains(string(out), what) {
			t.Errorf("detach says %q, not %q", out, what)
		}
	}
}

func TestDetachEndsARunningDaemon(t *testing.T) {
	need(t, "nginx", "curl")
	t.Run("host", func(t *testing.T) {
		l := newHostLab(t)
		p := typeHost(t, l)
		p.says(t, "msg=ready")
		defends(t, l, true)
		detach(t, l, l.Server.Namespace, "host", "detached edge/xdp_eth0")
		p.ends(t, 0, "msg=detached")
		defends(t, l, false)
	})
	t.Run("split", func(t *testing.T) {
		l := newLab(t, lab.Options{})
		startNginx(t, l)
		keys := keysOf(t, l)
		edge := typeIn(t, l, l.Edge.Namespace, "edge", "-c", fileOf(t, l, "edge.yaml", l.EdgeConfig(keys)), "--pin", l.PinDir("edge"))
		server := typeIn(t, l, l.Server.Namespace, "server", "-c", fileOf(t, l, "server.yaml", l.ServerConfig(keys)), "--pin", l.PinDir("server"))
		edge.says(t, "msg=ready")
		server.says(t, "msg=ready")
		mustGreet(t, l.Client.Namespace, url(l, false, "/hello"))
		counted(t, l, "server", "setup")
		detach(t, l, l.Edge.Namespace, "edge", "detached edge/xdp_out0", "detached edge/xdp_in0")
		detach(t, l, l.Server.Namespace, "server", "detached server/tcx_ingress_eth0")
		edge.ends(t, 0, "msg=detached")
		server.ends(t, 0, "msg=detached")
		nothingAttached(t, l)
		mustGreet(t, l.Client.Namespace, url(l, false, "/hello")) // by the edge's kernel
	})
}

func TestSecondDaemonIsRefused(t *testing.T) {
	l := newHostLab(t)
	p := typeHost(t, l)
	p.says(t, "msg=ready")
	refuse(t, l.Server.Namespace, nil, "host", l.Server.Port, "--ports", "80", "--pin", l.PinDir("host")).
		is(t, 1, filepath.Join(l.PinDir("host"), dataplane.EdgeAgent)+": ", "another daemon runs here")
	keys := keysOf(t, l)
	server := fileOf(t, l, "server.yaml", l.ServerConfig(keys))
	refuse(t, l.Server.Namespace, nil, "server", "-c", server, "--pin", l.PinDir("host")).
		is(t, 1, filepath.Join(l.PinDir("host"), dataplane.ServerAgent)+": ", "another daemon runs here")
	defends(t, l, true)
	p.signal(t, syscall.SIGTERM)
	p.ends(t, 0, "the protection goes on")
	again := typeHost(t, l) // and takes over what the first one has left
	again.says(t, "msg=ready")
	defends(t, l, true)
}
