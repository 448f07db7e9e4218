package server

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"smartcookie/internal/policy"
)

// fakeHost is a host without obstacles, until a test puts one there.
type fakeHost struct {
	sysctls   map[string]string
	kfunc     error
	listeners []Listener
	unknown   error // of the listeners
	firewall  []Obstacle
}

func newFakeHost() *fakeHost {
	return &fakeHost{
		sysctls:   map[string]string{"net/ipv4/tcp_syncookies": "1", "net/ipv4/tcp_rfc1337": "0", "net/ipv4/tcp_sack": "1"},
		listeners: []Listener{{Address: netip.MustParseAddrPort("0.0.0.0:80")}},
	}
}

func (f *fakeHost) host() *Host {
	return &Host{
		Sysctl:    func(name string) (string, bool) { v, ok := f.sysctls[name]; return v, ok },
		HasKfunc:  func() error { return f.kfunc },
		Listeners: func() ([]Listener, error) { return f.listeners, f.unknown },
		Firewall:  func([]policy.Service) []Obstacle { return f.firewall },
	}
}

func webService(options policy.Options) []policy.Service {
	return []policy.Service{{
		Name: "web", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		Ports: []policy.PortRange{{Low: 80, High: 80}, {Low: 8000, High: 8099}}, Options: options,
	}}
}

func TestNothingIsInTheWayOnAGoodHost(t *testing.T) {
	if found := newFakeHost().host().Obstacles(webService(policy.AllOptions)); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func TestEachObstacleIsNamedWithItsCure(t *testing.T) {
	sysctl := func(name, value string) func(*fakeHost) {
		return func(f *fakeHost) { f.sysctls[name] = value }
	}
	for name, test := range map[string]struct {
		put           func(*fakeHost)
		problem, mend string
		fatal         bool
	}{
		"kernel":      {func(f *fakeHost) { f.kfunc = errors.New("not found") }, "no bpf_sk_assign_tcp_reqsk", "Linux 6.9", true},
		"syncookies":  {sysctl("net/ipv4/tcp_syncookies", "0"), "tcp_syncookies is 0", "tcp_syncookies=1", true},
		"rfc1337":     {sysctl("net/ipv4/tcp_rfc1337", "1"), "tcp_rfc1337 is 1", "tcp_rfc1337=0", false},
		"timestamps":  {sysctl("net/ipv4/tcp_timestamps", "0"), "tcp_timestamps is 0", "tcp_timestamps=1", false},
		"SACK":        {sysctl("net/ipv4/tcp_sack", "0"), "tcp_sack is 0", "tcp_sack=1", false},
		"scaling":     {sysctl("net/ipv4/tcp_window_scaling", "0"), "tcp_window_scaling is 0", "tcp_window_scaling=1", false},
		"ECN":         {sysctl("net/ipv4/tcp_ecn", "0"), "tcp_ecn is 0", "tcp_ecn=2", false},
		"conntrack":   {sysctl("net/netfilter/nf_conntrack_tcp_loose", "0"), "nf_conntrack_tcp_loose is 0", "nf_conntrack_tcp_loose=1", false},
		"MPTCP":       {func(f *fakeHost) { f.listeners[0].MPTCP = true }, "0.0.0.0:80 is MPTCP", "multipathtcp=0", false},
		"no listener": {func(f *fakeHost) { f.listeners = nil }, `nobody listens on port 80 of service "web"`, "namespace", false},
		"unknown":     {func(f *fakeHost) { f.unknown = errors.New("netlink") }, "listeners are unknown: netlink", "ss -tlnp", false},
		"firewall":    {func(f *fakeHost) { f.firewall = []Obstacle{{Problem: "a rule", Mend: "a cure"}} }, "a rule", "a cure", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeHost()
			test.put(f)
			found := f.host().Obstacles(webService(policy.AllOptions))
			if len(found) != 1 || !strings.Contains(found[0].Problem, test.problem) || !strings.Contains(found[0].Mend, test.mend) || found[0].Fatal != test.fatal {
				t.Errorf("%+v", found)
			}
		})
	}
}

func TestOptionThatNoServiceOffersIsNoObstacle(t *testing.T) {
	f := newFakeHost()
	for _, option := range []string{"timestamps", "sack", "window_scaling", "ecn"} {
		f.sysctls["net/ipv4/tcp_"+option] = "0"
	}
	if found := f.host().Obstacles(webService(0)); len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

func TestMPTCPListenerElsewhereIsNoObstacle(t *testing.T) {
	f := newFakeHost()
	for _, address := range []string{"192.0.3.1:80", "192.0.2.1:443", "[::]:8100", "127.0.0.1:80"} {
		f.listeners = append(f.listeners, Listener{netip.MustParseAddrPort(address), true, false})
	}
	if found := f.host().Obstacles(webService(0)); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	for _, address := range []string{"192.0.2.1:80", "[::]:8050", "[::ffff:192.0.2.9]:80"} {
		f.listeners = append(f.listeners[:1:1], Listener{netip.MustParseAddrPort(address), true, false})
		if found := f.host().Obstacles(webService(0)); len(found) != 1 {
			t.Errorf("%s: %+v", address, found)
		}
	}
}

func newTestWatch(f *fakeHost, setup policy.Setup) (*Watch, *bytes.Buffer) {
	var log bytes.Buffer
	services := webService(policy.AllOptions)
	services[0].Setup = setup
	return &Watch{host: f.host(), services: services, log: slog.New(slog.NewTextHandler(&log, nil))}, &log
}

func TestFatalObstacleRefusesToStartWithExitCodeTwo(t *testing.T) {
	f := newFakeHost()
	f.sysctls["net/ipv4/tcp_syncookies"] = "0"
	watch, _ := newTestWatch(f, policy.Native)
	err := watch.Start()
	var obstacle *ObstacleError
	if !errors.As(err, &obstacle) || obstacle.ExitCode() != 2 || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "mend it: sysctl -w") {
		t.Errorf("got %v", err)
	}
}

func TestObstacleIsReportedAtStartAndWhenItComesOrGoes(t *testing.T) {
	f := newFakeHost()
	f.sysctls["net/ipv4/tcp_rfc1337"] = "1"
	watch, log := newTestWatch(f, policy.Native)
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	look := func() {
		for range watchTicks {
			watch.Tick()
		}
	}
	want := func(part string, times int) {
		t.Helper()
		if n := strings.Count(log.String(), part); n != times {
			t.Errorf("%q is logged %d times, want %d: %s", part, n, times, log)
		}
	}
	look()
	want("tcp_rfc1337 is 1", 1)
	f.sysctls["net/ipv4/tcp_rfc1337"], f.sysctls["net/ipv4/tcp_sack"] = "0", "0"
	look()
	look()
	want(`"mended: tcp_rfc1337 is 1`, 1)
	want("tcp_sack is 0", 1)
}

func TestObstaclesToNativeSetupAreGoneAroundByTranslation(t *testing.T) {
	f := newFakeHost()
	f.kfunc, f.sysctls["net/ipv4/tcp_syncookies"] = errors.New("not found"), "0"
	f.firewall = []Obstacle{{Problem: "a rule", Native: true}}
	watch, log := newTestWatch(f, policy.Auto)
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	if got := watch.Services()[0].Setup; got != policy.Translate {
		t.Errorf("set up by %s", got)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "connections are translated") {
		t.Errorf("want one line of the choice: %s", log)
	}
}

func TestListenerThatRefusesNativeSetupChangesNothingForOthers(t *testing.T) {
	f := newFakeHost()
	f.listeners[0].MPTCP = true
	watch, log := newTestWatch(f, policy.Auto)
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	if got := watch.Services()[0].Setup; got != policy.Auto || log.Len() > 0 {
		t.Errorf("set up by %s: %s", got, log)
	}
}

// fakeAgent remembers how services were last to be set up.
type fakeAgent struct {
	setup  policy.Setup
	sweeps int
}

func (a *fakeAgent) SetServices(services []policy.Service) error {
	a.setup = services[0].Setup
	return nil
}

func (a *fakeAgent) SweepFlows() (seen, removed int, err error) {
	a.sweeps++
	return 0, 0, nil
}

func TestChoiceFollowsTheFirewall(t *testing.T) {
	f, agent := newFakeHost(), &fakeAgent{}
	watch, log := newTestWatch(f, policy.Auto)
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		rules []Obstacle
		want  policy.Setup
		says  string
	}{
		{[]Obstacle{{Problem: "a rule", Native: true}}, policy.Translate, `because="a rule"`},
		{nil, policy.Auto, "native again"},
	} {
		f.firewall = c.rules
		for range 2 * watchTicks {
			watch.Keep(agent)
		}
		if agent.setup != c.want || strings.Count(log.String(), c.says) != 1 {
			t.Errorf("step %d: set up by %s, want %s: %s", i, agent.setup, c.want, log)
		}
	}
	if agent.sweeps != 4*watchTicks/sweepTicks {
		t.Errorf("%d sweeps", agent.sweeps)
	}
}
