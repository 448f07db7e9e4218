package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is the executable of its labs.
func TestMain(m *testing.M) {
	if !IsChild(os.Args) {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := RunChild(ctx, os.Args[3:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("this test needs root, and CI has to give it")
	}
	t.Skip("this test needs root")
}

func newLab(t testing.TB, options Options) *Lab {
	t.Helper()
	needRoot(t)
	lab, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	return lab
}

// eventually polls until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick, deadline := time.NewTicker(5*time.Millisecond), time.After(10*time.Second)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func TestClientReachesServer(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
	}{
		{"route", Options{}},
		{"route with neighbour discovery", Options{Resolve: true}},
		{"bridge", Options{Topology: Bridge}},
		{"bridge with neighbour discovery", Options{Topology: Bridge, Resolve: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			lab := newLab(t, test.options)
			if _, err := lab.Defend(t.Context(), "kernel"); err != nil {
				t.Fatal(err)
			}
			if _, err := lab.StartServer(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, ipv6 := range []bool{false, true} {
				report := load(t, lab, LoadOptions{URL: lab.URL(ipv6), Rate: 100, Duration: 300 * time.Millisecond})
				if report.Requests == 0 || report.OK != report.Requests {
					t.Errorf("IPv6 %t: %+v", ipv6, report)
				}
			}
		})
	}
}

func load(t *testing.T, lab *Lab, options LoadOptions) LoadReport {
	t.Helper()
	load, err := lab.StartLoad(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	report, err := load.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestBridgingEdgeWithoutAgentIsAGap(t *testing.T) {
	lab := newLab(t, Options{Topology: Bridge})
	if _, err := lab.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	report := load(t, lab, LoadOptions{
		URL: lab.URL(false), Rate: 20, Duration: 200 * time.Millisecond, Timeout: 200 * time.Millisecond,
	})
	if report.OK != 0 || report.Errors["timeout"] != report.Requests {
		t.Errorf("%+v", report)
	}
}

func TestCommandRunsInItsNamespace(t *testing.T) {
	lab := newLab(t, Options{})
	out, err := lab.Server.Command(t.Context(), "readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	var inside string
	if err := lab.Server.Do(func() (err error) {
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	outside, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != inside || got == outside {
		t.Errorf("command in %s, namespace is %s, ours %s", got, inside, outside)
	}
}

func TestSysctlIsTheNamespacesOwn(t *testing.T) {
	lab := newLab(t, Options{})
	for _, value := range []string{"0", "1"} {
		if err := lab.Server.Sysctl("net.ipv4.tcp_syncookies", value); err != nil {
			t.Fatal(err)
		}
		if got, err := lab.Server.ReadSysctl("net.ipv4.tcp_syncookies"); err != nil || got != value {
			t.Errorf("server: %q, %v; want %q", got, err, value)
		}
	}
}

func TestTwoLabsStandBesideEachOther(t *testing.T) {
	first, second := newLab(t, Options{}), newLab(t, Options{})
	if first.Client.Name == second.Client.Name || first.Dir() == second.Dir() {
		t.Errorf("both labs are %s in %s", first.Client.Name, first.Dir())
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	lab := newLab(t, Options{Topology: Bridge})
	server, err := lab.StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stray := lab.Attacker.Command(t.Context(), "sleep", "60")
	if err := stray.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = stray.Wait() }()
	if err := lab.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{server.Pid(), stray.Process.Pid} {
		eventually(t, "the children end", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
	}
	if left := leftovers(strings.TrimPrefix(lab.Dir(), stateDir+"/")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func leftovers(id string) []string {
	found, _ := filepath.Glob(filepath.Join(namespaceDir, namePrefix+id+"-*"))
	state, _ := filepath.Glob(filepath.Join(stateDir, id))
	return append(found, state...)
}

func TestSweepRemovesOnlyLabsOfTheDead(t *testing.T) {
	alive := newLab(t, Options{})
	dead := newLab(t, Options{})
	gone := deadPid(t)
	dead.rename(t, gone+"-1")
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(gone + "-1"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if left := leftovers(alive.id); len(left) != 5 {
		t.Errorf("of the lab that lives, only %q is left", left)
	}
}

// deadPid returns the id of a process that has ended.
func deadPid(t *testing.T) string {
	t.Helper()
	command := (&Namespace{}).Command(t.Context(), "true").Cmd
	if err := command.Run(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(command.Process.Pid)
}

// rename makes the lab look like that of another process; Close finds nothing
// of it any more.
func (l *Lab) rename(t *testing.T, id string) {
	t.Helper()
	for _, m := range l.members() {
		from, to := filepath.Join(namespaceDir, (*m.at).Name), filepath.Join(namespaceDir, namespaceName(id, m.role))
		if err := os.WriteFile(to, nil, 0o444); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(stateDir, id, pinFolder), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestStandingLabOutlivesItsMakerUntilDown(t *testing.T) {
	needRoot(t)
	if err := Down(); err != nil && !errors.Is(err, ErrNotStanding) {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Down() })
	if _, err := Open(); !errors.Is(err, ErrNotStanding) {
		t.Errorf("got %v, want %v", err, ErrNotStanding)
	}
	lab, err := New(Options{Standing: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lab.Close(), Sweep()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(); err != nil {
		t.Error(err)
	}
	if _, err := New(Options{Standing: true}); !errors.Is(err, ErrStanding) {
		t.Errorf("got %v, want %v", err, ErrStanding)
	}
	if err := Down(); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(standing); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestServerSpeaksPlainHTTP(t *testing.T) {
	lab := newLab(t, Options{})
	if _, err := lab.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := lab.Client.Command(t.Context(), "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", lab.URL(true)).CombinedOutput()
	if err != nil || string(out) != fmt.Sprint(http.StatusOK) {
		t.Errorf("curl: %s, %v", out, err)
	}
}

func TestFloodWithoutDefenceStarvesTheClientAndCookiesSaveIt(t *testing.T) {
	lab := newLab(t, Options{})
	for defence, fits := range map[string]func(ok, of uint64) bool{
		"none":   func(ok, of uint64) bool { return ok*10 < of },
		"kernel": func(ok, of uint64) bool { return ok*10 > of*9 },
	} {
		report, err := lab.Run(t.Context(), Case{
			Defence: defence, Flood: 100_000, Duration: time.Second,
			Load: LoadOptions{Rate: 50, Timeout: time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		if benign := report.Benign; benign.Requests == 0 || !fits(benign.OK, benign.Requests) {
			t.Errorf("%s: %+v", defence, report)
		}
		if report.Flood.OfferedPPS < 90_000 || report.Flood.OfferedPPS > 110_000 {
			t.Errorf("%s: offered %.0f SYNs per second, want 100000", defence, report.Flood.OfferedPPS)
		}
	}
}
