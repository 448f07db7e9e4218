package server

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"smartcookie/internal/policy"
)

// Obstacle is something on this host that stands in the way of connections
// made from cookies, and what to do about it.
type Obstacle struct {
	Name          string // of its kind, as docs/check.md has it
	Problem, Mend string
	Fatal         bool // no connection can be made
	Native        bool // unless it is translated
	Listener      bool // it is one listener's
}

func (o Obstacle) String() string { return o.Problem + "; mend it: " + o.Mend }

// ObstacleError refuses to start.
type ObstacleError struct{ Obstacle }

func (e *ObstacleError) Error() string { return e.String() }

// ExitCode is that of wrong input: the machine is not set up for this.
func (e *ObstacleError) ExitCode() int { return 2 }

// Host is what obstacles are read from.
type Host struct {
	Sysctl    func(name string) (string, bool) // false: there is none
	HasKfunc  func() error
	Listeners func() ([]Listener, error)
	Firewall  func([]policy.Service) []Obstacle
}

// Obstacles lists what stands in the way now, in a fixed order.
func (h *Host) Obstacles(services []policy.Service) []Obstacle {
	var found []Obstacle
	if err := h.HasKfunc(); err != nil {
		found = append(found, Obstacle{
			Name:    "kernel-kfunc",
			Problem: fmt.Sprintf("this kernel has no bpf_sk_assign_tcp_reqsk (%s)", err),
			Mend:    "use Linux 6.9 or later, built with BTF", Fatal: true, Native: true,
		})
	}
	found = append(found, h.sysctls(services)...)
	found = append(found, h.listeners(services)...)
	return append(found, h.Firewall(services)...)
}

// setting is a sysctl and the value that stands in the way.
type setting struct {
	kind                     string
	name, bad, problem, mend string
	fatal                    bool
	native                   bool           // translated connections do not mind
	option                   policy.Options // only where a service offers it
}

var settings = []setting{
	{kind: "sysctl-syncookies", name: "net/ipv4/tcp_syncookies", bad: "0", native: true, fatal: true,
		problem: "tcp_syncookies is 0: the kernel makes no connection from a cookie", mend: "sysctl -w net.ipv4.tcp_syncookies=1"},
	{kind: "sysctl-rfc1337", name: "net/ipv4/tcp_rfc1337", bad: "1",
		problem: "tcp_rfc1337 is 1: a client that reuses a port cannot replace its connection in TIME_WAIT", mend: "sysctl -w net.ipv4.tcp_rfc1337=0"},
	{kind: "sysctl-timestamps", name: "net/ipv4/tcp_timestamps", bad: "0", native: true, option: policy.Timestamps,
		problem: "tcp_timestamps is 0: the kernel refuses connections with timestamps, which edges offer", mend: "sysctl -w net.ipv4.tcp_timestamps=1, or leave timestamps out of the service's options at the edges and here"},
	{kind: "sysctl-sack", name: "net/ipv4/tcp_sack", bad: "0", native: true, option: policy.SACK,
		problem: "tcp_sack is 0: the kernel refuses connections with SACK, which edges offer", mend: "sysctl -w net.ipv4.tcp_sack=1, or leave sack out of the service's options at the edges and here"},
	{kind: "sysctl-window-scaling", name: "net/ipv4/tcp_window_scaling", bad: "0", native: true, option: policy.WindowScale,
		problem: "tcp_window_scaling is 0: the kernel refuses connections with window scaling, which edges offer", mend: "sysctl -w net.ipv4.tcp_window_scaling=1, or leave window-scale out of the service's options at the edges and here"},
	{kind: "sysctl-ecn", name: "net/ipv4/tcp_ecn", bad: "0", option: policy.ECN,
		problem: "tcp_ecn is 0: connections are made with ECN, which edges offer, though this host does not want it", mend: "sysctl -w net.ipv4.tcp_ecn=2, or leave ecn out of the service's options at the edges and here"},
	{kind: "conntrack-loose", name: "net/netfilter/nf_conntrack_tcp_loose", bad: "0", native: true,
		problem: "nf_conntrack_tcp_loose is 0: connection tracking calls connections invalid that began without a SYN", mend: "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1"},
}

func (h *Host) sysctls(services []policy.Service) []Obstacle {
	var offered policy.Options
	for i := range services {
		offered |= services[i].Options
	}
	var found []Obstacle
	for _, s := range settings {
		if s.option != 0 && offered&s.option == 0 {
			continue
		}
		if value, ok := h.Sysctl(s.name); ok && value == s.bad {
			found = append(found, Obstacle{Name: s.kind, Problem: s.problem, Mend: s.mend, Fatal: s.fatal, Native: s.native})
		}
	}
	return found
}

func (h *Host) listeners(services []policy.Service) []Obstacle {
	all, err := h.Listeners()
	if err != nil {
		return []Obstacle{{Name: "listeners-unknown", Problem: fmt.Sprintf("listeners are unknown: %s", err), Mend: "look: ss -tlnp"}}
	}
	var found []Obstacle
	for _, l := range all {
		if l.MPTCP && protects(services, l) {
			found = append(found, Obstacle{
				Name:    "listener-mptcp",
				Problem: fmt.Sprintf("the listener at %s is MPTCP, from which the kernel makes no connection", l.Address),
				Mend:    "let it listen with plain TCP (Go: GODEBUG=multipathtcp=0), or sysctl -w net.mptcp.enabled=0 and restart it",
				Native:  true, Listener: true,
			})
		}
	}
	for i := range services {
		for _, ports := range services[i].Ports {
			if ports.Low == ports.High && !slices.ContainsFunc(all, func(l Listener) bool { return l.Address.Port() == ports.Low }) {
				found = append(found, Obstacle{
					Name:    "listener-missing",
					Problem: fmt.Sprintf("nobody listens on port %d of service %q in this network namespace", ports.Low, services[i].Name),
					Mend:    "start the server, or run this agent in the namespace that has it",
				})
			}
		}
	}
	return found
}

func protects(services []policy.Service, l Listener) bool {
	if l.Address.Addr().IsUnspecified() {
		for i := range services {
			for _, r := range services[i].Ports {
				if r.Low <= l.Address.Port() && l.Address.Port() <= r.High {
					return true
				}
			}
		}
		return false
	}
	_, ok := policy.Protects(services, l.Address.Addr().Unmap(), l.Address.Port())
	return ok
}

// ThisHost reads the machine and network namespace that we run in.
func ThisHost() *Host {
	return &Host{
		Sysctl:    readSysctl,
		HasKfunc:  hasKfunc,
		Listeners: readListeners,
		Firewall:  readFirewall,
	}
}

func readSysctl(name string) (string, bool) {
	text, err := os.ReadFile(filepath.Join("/proc/sys", name))
	return strings.TrimSpace(string(text)), err == nil
}

// InTheWay leaves out what only native connections mind if there are none that
// have to be native.
func InTheWay(services []policy.Service, found []Obstacle) []Obstacle {
	native := slices.ContainsFunc(services, func(s policy.Service) bool { return s.Setup == policy.Native })
	return slices.DeleteFunc(slices.Clone(found), func(o Obstacle) bool { return o.Native && !native })
}

// Own are the services of this host itself: those of tenants do not mind what it
// is like.
func Own(services []policy.Service) []policy.Service {
	return slices.DeleteFunc(slices.Clone(services), func(s policy.Service) bool { return s.Setup == policy.Tenant })
}

func hasKfunc() error {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("no BTF: %w", err)
	}
	var f *btf.Func
	return spec.TypeByName("bpf_sk_assign_tcp_reqsk", &f)
}
