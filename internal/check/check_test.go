package check

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/config"
	"smartcookie/internal/control"
	"smartcookie/internal/cookie"
	"smartcookie/internal/edge"
	"smartcookie/internal/keys"
	"smartcookie/internal/policy"
	"smartcookie/internal/server"
)

// zeros are the secret of every key here.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func keyFileOf(t *testing.T, domains ...string) *keys.File {
	t.Helper()
	file, err := keys.New(16)
	for _, domain := range domains {
		err = errors.Join(err, file.AddDomain(domain, cookie.SipHash, 7, zeros{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// sysctls of a host on which nothing is in the way.
func goodSysctls() map[string]string {
	return map[string]string{"net/ipv4/tcp_syncookies": "1", "net/ipv4/tcp_rfc1337": "0", "net/ipv4/tcp_timestamps": "1", "net/ipv4/tcp_ecn": "2"}
}

func machine(sysctls map[string]string, listeners []server.Listener, rules ...server.Obstacle) *server.Host {
	return &server.Host{
		Sysctl:    func(name string) (string, bool) { v, ok := sysctls[name]; return v, ok },
		HasKfunc:  func() error { return nil },
		Listeners: func() ([]server.Listener, error) { return listeners, nil },
		Firewall:  func([]policy.Service) []server.Obstacle { return rules },
	}
}

var listening = []server.Listener{{Address: netip.MustParseAddrPort("0.0.0.0:80")}}

// fit are the facts of a machine with nothing to find.
func fit(t *testing.T, shape Shape) *Facts {
	t.Helper()
	features := uint64(xdpBasic | xdpXmit | xdpBuffers)
	f := &Facts{
		Shape: shape, Flows: 1_000_000, Filter: 8 << 20, Memory: 8 << 30, Places: 1_000_000, CPUs: 2,
		Services: []policy.Service{{
			Name: "web", Domain: "web", Mode: policy.Always, Setup: policy.Native, Options: policy.AllOptions, MSS4: 1460, MSS6: 1440,
			Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, Ports: []policy.PortRange{{Low: 80, High: 80}},
		}},
		Kernel:    Kernel{Release: "6.18.1-amd64", TCX: true, JIT: "1"},
		Devices:   []Device{{Name: "eth0", Driver: "ice", MTU: 1500, Up: true, XDP: &features, Program: 7, Queues: 2}},
		Addresses: []Address{{netip.MustParseAddr("192.0.2.1"), "eth0", "device"}, {netip.MustParseAddr("127.0.0.1"), "lo", "loopback"}},
		Machine:   machine(goodSysctls(), listening),
		Clock:     Clock{Synchronised: true, Estimated: time.Millisecond, Bound: time.Second, Epoch: 16 * time.Second},
		Agent: Agent{Attached: true, Daemon: true, Programs: map[uint32]bool{7: true}, Now: time.Minute, Peers: map[uint32]control.Peer{
			21: {Phase: control.Enforced, Heard: time.Minute},
		}},
	}
	if shape == Server || shape == HostKernel { // which have no filter
		f.Flows = 0
	}
	if shape == HostKernel {
		f.Machine = machine(map[string]string{"net/ipv4/tcp_syncookies": "1", "net/ipv4/tcp_timestamps": "2"}, listening)
	}
	if shape != Edge && shape != Server {
		return f
	}
	f.Keys = Keys{Path: "web.keys", File: keyFileOf(t, "web"), Domains: []string{"web"}, Epoch: 1, Kernel: map[string]agreement{"web": sameKey}}
	f.Control = &config.Control{Agents: []config.Agent{{ID: 21, Address: netip.MustParseAddrPort("10.0.0.10:4789")}}}
	if shape == Server {
		f.Control = &config.Control{Edges: []config.ControlEdge{{ID: 21, Address: netip.MustParseAddrPort("10.0.0.10:4789")}}}
		return f
	}
	f.Forward = "route"
	inside := f.Devices[0]
	inside.Name, inside.Inside = "eth1", true
	f.Devices = append(f.Devices, inside)
	return f
}

func TestNothingIsFoundOnAMachineThatIsFit(t *testing.T) {
	for _, shape := range all {
		r := Judge(fit(t, shape))
		if r.Worst != OK {
			t.Errorf("%s: %+v", shape, r.Findings[len(r.Findings)-1])
		}
		for _, f := range r.Findings {
			if f.What == "" {
				t.Errorf("%s: %s says nothing", shape, f.Name)
			}
		}
	}
}

// harm does one thing to a machine, of which one finding has to tell.
type harm struct {
	name     string
	severity Severity
	shape    Shape
	what     string // a part of what is said
	mend     string // a part of what mends it
	do       func(*Facts)
}

func peerOf(p control.Peer) func(*Facts) {
	return func(f *Facts) { p.Heard = f.Agent.Now; f.Agent.Peers[21] = p }
}

func disagreeing(d control.Disagreement) func(*Facts) {
	return peerOf(control.Peer{Phase: control.Enforced, Disagreements: d})
}

func sysctl(name, value string) func(*Facts) {
	return func(f *Facts) {
		sysctls := goodSysctls()
		sysctls[name] = value
		f.Machine = machine(sysctls, listening)
	}
}

func rule(name string) func(*Facts) {
	return func(f *Facts) {
		f.Machine = machine(goodSysctls(), listening, server.Obstacle{Name: name, Problem: "a rule", Mend: "a cure"})
	}
}

func feature(name string) func(*Facts) {
	return func(f *Facts) { f.Devices[0].Features = map[string]bool{name: true} }
}

func xdp(features uint64) func(*Facts) {
	return func(f *Facts) { f.Devices[0].XDP = &features }
}

func harms() []harm {
	return slices.Concat(kernelHarms(), deviceHarms(), machineHarms(), keyHarms(), peerHarms(), []harm{
		{"filter-size", Warning, Edge, "the filter has about 1500000 flows; the filter is made for 1000000", "flows: 3000000", func(f *Facts) { f.InFilter = 1_500_000 }},
		{"filter-size", Warning, Edge, "connection tracking has 1500000", "flows: 3000000", func(f *Facts) { f.Tracked = 1_500_000 }},
		{"filter-size", Warning, Host, "this host has 1500000", "", func(f *Facts) { f.Sockets = 1_500_000 }},
		{"filter-memory", Warning, Edge, "takes 8 MiB of 15 MiB", "flows: 250000", func(f *Facts) { f.Memory = 15 << 20 }},
		{"translated-size", Warning, Server, "1500000 connections", "translated: 3000000", func(f *Facts) { f.Services[0].Setup, f.Sockets = policy.Translate, 1_500_000 }},
	})
}

func kernelHarms() []harm {
	return []harm{
		{"kernel-btf", Error, Server, "does not tell its types: no file", "CONFIG_DEBUG_INFO_BTF", func(f *Facts) { f.Kernel.NoTypes = errors.New("no file") }},
		{"kernel-helpers", Error, Edge, "(6.18.1-amd64) lacks FnLoop", "Linux 6.9", func(f *Facts) { f.Kernel.Missing = []string{"FnLoop"} }},
		{"kernel-version", Warning, Edge, "Linux 6.8.0-40 is older than 6.9", "Linux 6.9", func(f *Facts) { f.Kernel.Release = "6.8.0-40" }},
		{"kernel-version", Warning, Server, "5.15.0 is older than 6.1", "Linux 6.1", func(f *Facts) { f.Kernel.Release = "5.15.0" }},
		{"kernel-version", Warning, HostKernel, "6.12.1 is older than 6.18", "Linux 6.18", func(f *Facts) { f.Kernel.Release = "6.12.1" }},
		{"kernel-tcx", Notice, Server, "no links for TC", "6.6", func(f *Facts) { f.Kernel.TCX = false }},
		{"kernel-jit", Warning, Edge, "bpf_jit_enable is 0", "bpf_jit_enable=1", func(f *Facts) { f.Kernel.JIT = "0" }},
		{"kernel-kfunc", Error, Server, "no bpf_sk_assign_tcp_reqsk", "Linux 6.9", func(f *Facts) { f.Machine.HasKfunc = func() error { return errors.New("not found") } }},
	}
}

func deviceHarms() []harm {
	vrf := &edge.DeviceError{Name: "device-vrf", Device: "eth0", Problem: "it is a VRF", Mend: "name the ports"}
	return []harm{
		{"device-up", Warning, Edge, "eth0 is down", "ip link set dev eth0 up", func(f *Facts) { f.Devices[0].Up = false }},
		{"device-vrf", Error, Server, "eth0: it is a VRF", "name the ports", func(f *Facts) { f.Devices[0].Refused = vrf }},
		{"device-port", Warning, Server, "eth0 is a port of the bond bond0", "name bond0 in the place of eth0", func(f *Facts) { f.Devices[0].Master, f.Devices[0].MasterKind = "bond0", "bond" }},
		{"xdp-native", Error, Edge, "eth0: its driver (ice) has no native XDP", "xdp: generic", xdp(0)},
		{"xdp-generic", Notice, Edge, "though its driver (ice) has native XDP", "leave out", func(f *Facts) { f.Generic, f.Devices = true, f.Devices[:1] }},
		{"xdp-occupied", Error, Host, "another XDP program is there (id 8)", "ip link set dev eth0 xdp off", func(f *Facts) { f.Devices[0].Program = 8 }},
		{"xdp-transmit", Error, Host, "neither GRO nor a program", "at the other end of eth0", func(f *Facts) { f.Devices[0].Driver = "veth"; xdp(xdpBasic | xdpBuffers)(f) }},
		{"xdp-queues", Notice, Host, "eth0 has 2 queues at most for 8 CPUs", "eth0", func(f *Facts) { f.CPUs = 8 }},
		{"offload-merging", Error, Edge, "eth0: large receive offload", "ethtool -K eth0 lro off", feature("rx-lro")},
		{"offload-merging", Error, Host, "eth0: hardware GRO", "ethtool -K eth0 rx-gro-hw off", feature("rx-gro-hw")},
		{"offload-vlan", Notice, Host, "no VLAN is set up here", "ethtool -K eth0 rxvlan off", feature("rx-vlan-hw-parse")},
		{"offload-vlan", Error, Edge, "tagged frames look untagged", "ethtool -K eth0 rxvlan off", func(f *Facts) { f.Forward = "bridge"; feature("rx-vlan-hw-parse")(f) }},
		{"offload-vlan", Error, Host, "tagged frames look untagged", "ethtool -K eth0 rxvlan off", func(f *Facts) { f.Devices[0].Tagged = true; feature("rx-vlan-hw-parse")(f) }},
		{"mtu-frags", Error, Host, "its MTU is 9000", "ip link set dev eth0 mtu 1500", func(f *Facts) { f.Devices[0].MTU = 9000; xdp(xdpBasic | xdpXmit)(f) }},
		{"mtu-bridge", Warning, Edge, "eth0 has an MTU of 2000, eth1 one of 1500", "ip link set dev eth0 mtu 1500", func(f *Facts) { f.Forward, f.Devices[0].MTU = "bridge", 2000 }},
		{"mtu-mss", Warning, Edge, `service "web": segments of 1460 bytes (IPv4) do not fit the MTU of eth1, 1400`, "mss: 1360` in service web", func(f *Facts) { f.Devices[1].MTU = 1400 }},
		{"forwarding", Error, Edge, "eth1: net.ipv6.conf.eth1.forwarding is 0", "sysctl -w net.ipv6.conf.eth1.forwarding=1", func(f *Facts) { f.Devices[1].NotForwarding = []string{"ipv6"} }},
		{"address-missing", Warning, Server, "no address of this host", "prefixes", func(f *Facts) { f.Addresses = f.Addresses[1:] }},
		{"address-elsewhere", Warning, Server, "192.0.2.1 is on eth0.5", "add eth0.5", func(f *Facts) { f.Addresses[0].Device = "eth0.5" }},
	}
}

func machineHarms() []harm {
	mptcp := func(f *Facts) {
		f.Machine = machine(goodSysctls(), []server.Listener{{Address: listening[0].Address, MPTCP: true}})
	}
	return []harm{
		{"sysctl-syncookies", Error, Server, "tcp_syncookies is 0", "sysctl -w net.ipv4.tcp_syncookies=1", sysctl("net/ipv4/tcp_syncookies", "0")},
		{"sysctl-rfc1337", Warning, Host, "tcp_rfc1337 is 1", "sysctl -w net.ipv4.tcp_rfc1337=0", sysctl("net/ipv4/tcp_rfc1337", "1")},
		{"sysctl-timestamps", Warning, Server, "tcp_timestamps is 0", "sysctl -w net.ipv4.tcp_timestamps=1", sysctl("net/ipv4/tcp_timestamps", "0")},
		{"sysctl-timestamps", Warning, HostKernel, "tcp_timestamps is 1", "sysctl -w net.ipv4.tcp_timestamps=2", sysctl("net/ipv4/tcp_timestamps", "1")},
		{"sysctl-sack", Warning, Server, "tcp_sack is 0", "sysctl -w net.ipv4.tcp_sack=1", sysctl("net/ipv4/tcp_sack", "0")},
		{"sysctl-window-scaling", Warning, Server, "tcp_window_scaling is 0", "sysctl -w net.ipv4.tcp_window_scaling=1", sysctl("net/ipv4/tcp_window_scaling", "0")},
		{"sysctl-ecn", Warning, Server, "tcp_ecn is 0", "sysctl -w net.ipv4.tcp_ecn=2", sysctl("net/ipv4/tcp_ecn", "0")},
		{"conntrack-loose", Warning, Server, "nf_conntrack_tcp_loose is 0", "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1", sysctl("net/netfilter/nf_conntrack_tcp_loose", "0")},
		{"listeners-unknown", Unseen, Server, "netlink", "ss -tlnp", func(f *Facts) {
			f.Machine.Listeners = func() ([]server.Listener, error) { return nil, errors.New("netlink") }
		}},
		{"listener-mptcp", Warning, Server, "0.0.0.0:80 is MPTCP", "GODEBUG=multipathtcp=0", mptcp},
		{"listener-missing", Warning, Host, "nobody listens on port 80", "start the server", func(f *Facts) { f.Machine = machine(goodSysctls(), nil) }},
		{"firewall-legacy", Warning, Server, "a rule", "a cure", rule("firewall-legacy")},
		{"firewall-unknown", Unseen, Edge, "a rule", "a cure", rule("firewall-unknown")},
		{"firewall-stateful", Warning, Server, "a rule", "a cure", rule("firewall-stateful")},
		{"firewall-dnat", Warning, Edge, "a rule", "a cure", rule("firewall-dnat")},
		{"ipvs", Warning, Server, `virtual server at 192.0.2.1:80, of service "web"`, "ipvsadm -D -t 192.0.2.1:80", func(f *Facts) { f.Virtual = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:80")} }},
	}
}

func keyHarms() []harm {
	return []harm{
		{"key-file", Error, Server, "web.keys: no such file", "smartcookie keys show web.keys", func(f *Facts) { f.Keys.File, f.Keys.Err = nil, errors.New("web.keys: no such file") }},
		{"key-domain", Error, Edge, `no key domain "mail" in web.keys`, "--domain mail -o web.keys", func(f *Facts) { f.Keys.Domains = append(f.Keys.Domains, "mail") }},
		{"key-current", Error, Edge, "domain web has no key that is in force", "keys show web.keys", func(f *Facts) { f.Keys.File.Domains["web"][0].FromEpoch = 2 }},
		{"key-spare", Warning, Server, "domain mail too", "keys export FLEET.KEYS --domain web -o web.keys", func(f *Facts) { f.Keys.File.Domains["mail"] = f.Keys.File.Domains["web"] }},
		{"key-kernel", Error, Server, "the agent has another key", "start it", func(f *Facts) { f.Keys.Kernel["web"] = otherKey }},
		{"key-kernel", Error, Server, "the agent has no key", "start it", func(f *Facts) { f.Keys.Kernel["web"] = noKey }},
		{"key-epoch", Error, Edge, "the file has epochs of 16s, the agent counts such of 8s", "anew", func(f *Facts) { f.Clock.Epoch = 8 * time.Second }},
		{"clock-sync", Warning, Edge, "not synchronised", "timedatectl", func(f *Facts) { f.Clock.Synchronised = false }},
		{"clock-error", Warning, Server, "may be 8.1s", "chronyc", func(f *Facts) { f.Clock.Bound = 8100 * time.Millisecond }},
		{"clock-error", Error, Server, "is about 8.1s", "chronyc", func(f *Facts) { f.Clock.Estimated = 8100 * time.Millisecond }},
		{"clock-step", Error, Server, "real time is 9s off", "kill -USR1", func(f *Facts) { f.Clock.Ahead = -9 * time.Second }},
		{"daemon", Warning, Edge, "no daemon", "smartcookie edge", func(f *Facts) { f.Agent.Daemon = false }},
		{"no-control", Notice, Server, "no section `control`", "both files", func(f *Facts) { f.Control = nil }},
	}
}

func peerHarms() []harm {
	return []harm{
		{"peer-silent", Warning, Edge, "agent 21 (10.0.0.10:4789) is silent", "at agent 21: ", peerOf(control.Peer{Phase: control.Silent})},
		{"peer-silent", Warning, Edge, "agent 21 (10.0.0.10:4789) has not been heard", "UDP to 10.0.0.10:4789", peerOf(control.Peer{})},
		{"peer-silent", Warning, Server, "edge 21 (10.0.0.10:4789) is silent", "at edge 21: ", func(f *Facts) { f.Agent.Now += 6 * time.Second }},
		{"peer-silent", Warning, Server, "has not been heard", "", func(f *Facts) { clear(f.Agent.Peers) }},
		{"peer-key", Error, Edge, "has other keys", "keys show web.keys", disagreeing(control.DisagreeKey)},
		{"peer-key", Error, Server, "is not believed", "keys show web.keys", disagreeing(control.UnheardKey)},
		{"peer-clock", Error, Edge, "more than half an epoch", "timedatectl", disagreeing(control.DisagreeClock)},
		{"peer-clock", Error, Edge, "most likely its clock", "timedatectl", disagreeing(control.UnheardClock)},
		{"peer-epoch", Error, Edge, "epochs of another length", "agent 21", disagreeing(control.DisagreeEpochLength)},
		{"peer-differs", Warning, Edge, "window scale", "agent 21", disagreeing(control.DisagreeScale)},
		{"peer-differs", Warning, Edge, "MSS", "agent 21", disagreeing(control.DisagreeMSS)},
		{"peer-differs", Warning, Server, "a service off", "edge 21", disagreeing(control.DisagreeMode)},
	}
}

// placeholder is a word of a mend that was to be replaced.
var placeholder = regexp.MustCompile(`\b(DEVICE|MASTER|OLDEST|CPUS|MTU|MSS|SERVICE|FAMILY|FILE|DOMAIN|SHAPE|PEER|ADDRESS|FLOWS)\b`)

func TestEachHarmIsFoundAloneWithItsMend(t *testing.T) {
	seen := make(map[string]bool)
	for _, h := range harms() {
		seen[h.name] = true
		t.Run(h.name+" "+h.what, func(t *testing.T) {
			f := fit(t, h.shape)
			h.do(f)
			r := Judge(f)
			found := slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool { return f.Severity == OK })
			if len(found) != 1 {
				t.Fatalf("%d findings: %+v", len(found), found)
			}
			got := found[0]
			if got.Name != h.name || got.Severity != h.severity || r.Worst != h.severity || !strings.Contains(got.What, h.what) || got.Why == "" || !strings.Contains(got.Mend, h.mend) {
				t.Errorf("%+v, want %s %s: %q, mend %q", got, h.severity, h.name, h.what, h.mend)
			}
			if left := placeholder.FindString(got.Mend); left != "" {
				t.Errorf("%s is left in %q", left, got.Mend)
			}
		})
	}
	for _, topic := range Topics {
		if !seen[topic.Name] {
			t.Errorf("no test finds %s", topic.Name)
		}
	}
}

func TestObstaclesThatTranslationGoesAroundAreNotices(t *testing.T) {
	for _, do := range []func(*Facts){sysctl("net/ipv4/tcp_syncookies", "0"), sysctl("net/ipv4/tcp_sack", "0")} {
		for setup, want := range map[policy.Setup]Severity{policy.Auto: Notice, policy.Translate: OK, policy.Tenant: OK} {
			f := fit(t, Server)
			do(f)
			f.Services[0].Setup = setup
			if r := Judge(f); r.Worst != want {
				t.Errorf("%s: %s, want %s", setup, r.Worst, want)
			}
		}
	}
}

func TestWhatIsUnknownIsNotCalledInOrder(t *testing.T) {
	f := fit(t, Server)
	rule("firewall-unknown")(f)
	f.Machine.Listeners = func() ([]server.Listener, error) { return nil, errors.New("netlink") }
	f.Keys.File = nil
	f.Unseen = []unseen{{keyFile, "permission denied", asRoot}}
	r := Judge(f)
	if r.Worst != Unseen || r.Summary() != "3 not looked at, "+fmt.Sprint(len(r.Findings)-3)+" in order" {
		t.Errorf("worst %s: %s", r.Worst, r.Summary())
	}
	for _, finding := range r.Findings {
		beginsSo := func(s string) bool { return strings.HasPrefix(finding.Name, s) }
		if finding.Severity == OK && slices.ContainsFunc([]string{"firewall-", "listener", "key-"}, beginsSo) {
			t.Errorf("%s is in order, though nobody has looked", finding.Name)
		}
	}
}

func TestExitCodesAscendWithSeverity(t *testing.T) {
	for s, want := range map[Severity]int{OK: 0, Notice: 0, Unseen: 3, Warning: 4, Error: 5} {
		if got := s.ExitCode(); got != want {
			t.Errorf("%s: %d, want %d", s, got, want)
		}
	}
}

func TestTextFitsATerminalAndTheWorstIsLast(t *testing.T) {
	f := fit(t, Edge)
	f.Kernel.JIT, f.Control = "0", nil
	for i := range f.Devices {
		f.Devices[i].NotForwarding = []string{"ipv4"}
	}
	r := Judge(f)
	var brief, whole strings.Builder
	if err := errors.Join(r.Write(&brief, false), r.Write(&whole, true)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(whole.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	text := brief.String()
	notice, warning, fault := strings.Index(text, "NOTICE no-control\n"), strings.Index(text, "WARNING kernel-jit\n"), strings.Index(text, "ERROR forwarding\n")
	if notice != 0 || warning < notice || fault < warning || strings.Count(text, "ERROR") != 1 || strings.Count(text, "forwarding=1") != 2 {
		t.Errorf("%s", text)
	}
	if strings.Contains(text, "kernel-btf") || !strings.Contains(whole.String(), "ok      kernel-btf: the kernel tells its types\n") {
		t.Errorf("what is in order is shown only if it is asked for: %s", whole.String())
	}
	if want := "2 errors, 1 warning, 1 notice, "; !strings.HasPrefix(r.Summary(), want) {
		t.Errorf("%q, want %q", r.Summary(), want)
	}
}

// row is a topic as docs/check.md has it.
func row(topic *Topic) string {
	shapes := make([]string, len(topic.Shapes))
	for i, s := range topic.Shapes {
		shapes[i] = string(s)
	}
	where := strings.Join(shapes, ", ")
	if slices.Equal(topic.Shapes, all) {
		where = "all"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s |", topic.Name, where, topic.Wants, topic.Why, topic.Mend)
}

// What is printed if it fails is what belongs there.
func TestManualHasEveryTopicAndNoOther(t *testing.T) {
	manual, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, topic := range Topics {
		want = append(want, row(topic))
	}
	for line := range strings.Lines(string(manual)) {
		if strings.HasPrefix(line, "| `") {
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("docs/check.md: the rows are to be\n%s", strings.Join(want, "\n"))
	}
}
