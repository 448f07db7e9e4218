package check

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"smartcookie/internal/config"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/edge"
	"smartcookie/internal/host"
	"smartcookie/internal/policy"
	"smartcookie/internal/server"
)

// asRoot mends what cannot be looked at.
const asRoot = "run this check as root"

// OfEdge looks at the machine on which an edge is to run, or runs.
func OfEdge(c *config.Edge, pins string) *Facts {
	f := &Facts{
		Shape: Edge, Services: c.Services, Forward: c.Forward, Generic: c.Generic, Control: c.Control,
		Flows: c.Flows, Filter: dataplane.FilterBytes(c.Flows),
	}
	f.probeMachine()
	f.probeKernel(dataplane.EdgeAgent)
	f.probeDevices(c.Outside, Device{})
	f.probeDevices(c.Inside, Device{Inside: true})
	f.probeForwarding()
	f.probeAgent(pins, dataplane.EdgeAgent)
	f.probeKeys(c.Keys, edge.DomainsOf(c.Services))
	f.probeClock()
	if f.Agent.Attached {
		f.see(filterSize, func() error {
			fill, err := f.survey.Filter()
			f.InFilter = int(fill.Flows(max(fill.Current, fill.Older)))
			return err
		})
	}
	return f
}

// OfServer looks at the machine of a server agent.
func OfServer(c *config.Server, pins string) *Facts {
	f := &Facts{Shape: Server, Services: c.Services, Control: c.Control, Places: c.Translated}
	f.probeMachine()
	f.probeKernel(dataplane.ServerAgent)
	f.probeDevices(c.Interfaces, Device{})
	f.probeDevices(c.Tenants, Device{Tenant: true})
	f.probeAgent(pins, dataplane.ServerAgent)
	f.probeKeys(c.Keys, edge.DomainsOf(c.Services))
	f.probeClock()
	return f
}

// OfHost looks at a machine that is to protect itself.
func OfHost(c host.Config, pins string) (*Facts, error) {
	services, err := host.Services(c)
	if err != nil {
		return nil, err
	}
	f := &Facts{Shape: Host, Services: services, Generic: c.Generic, Flows: config.DefaultFlows}
	agents := []string{dataplane.EdgeAgent, dataplane.ServerAgent}
	if c.KernelCookies {
		f.Shape, f.Flows, f.Always = HostKernel, 0, c.Mode == policy.Always
		agents = []string{dataplane.HostAgent}
	}
	f.probeMachine()
	f.probeKernel(agents...)
	f.probeDevices([]net.Interface{c.Interface}, Device{})
	f.probeAgent(pins, agents[0])
	return f, nil
}

// see runs a probe; what it fails at has not been looked at.
func (f *Facts) see(t *Topic, probe func() error) {
	err := probe()
	if err == nil {
		return
	}
	u := unseen{topic: t, because: err.Error()}
	if errors.Is(err, fs.ErrPermission) {
		u.mend = asRoot
	}
	f.Unseen = append(f.Unseen, u)
}

func (f *Facts) probeKernel(agents ...string) {
	var name unix.Utsname
	_ = unix.Uname(&name) // never fails
	f.Kernel.Release = unix.ByteSliceToString(name.Release[:])
	if text, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable"); err == nil {
		f.Kernel.JIT = strings.TrimSpace(string(text))
	} else if !errors.Is(err, fs.ErrNotExist) { // a kernel that always compiles has none
		f.see(kernelJIT, func() error { return err })
	}
	types, err := btf.LoadKernelSpec()
	if err != nil {
		f.Kernel.NoTypes = err
		return
	}
	f.Kernel.TCX = dataplane.HasTCX(types)
	for _, agent := range agents {
		f.see(kernelHelpers, func() error {
			missing, err := dataplane.MissingHelpers(types, agent)
			f.Kernel.Missing = append(f.Kernel.Missing, missing...)
			return err
		})
	}
	slices.Sort(f.Kernel.Missing)
	f.Kernel.Missing = slices.Compact(f.Kernel.Missing)
}

func (f *Facts) probeMachine() {
	f.CPUs = runtime.NumCPU()
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.Memory = info.Totalram * uint64(info.Unit)
	}
	f.Machine = server.ThisHost()
	f.Addresses = addresses()
	f.Sockets = readSockets()
	f.Tracked = readNumber("/proc/sys/net/netfilter/nf_conntrack_count")
	f.see(ipvs, func() (err error) { f.Virtual, err = readVirtual(); return err })
	if os.Geteuid() == 0 {
		f.Machine.Firewall = withTool(f.Machine.Firewall)
		return
	}
	f.Machine.Firewall = func([]policy.Service) []server.Obstacle {
		return []server.Obstacle{{Name: firewallUnknown.Name, Problem: "only root can read the rules of the firewall", Mend: asRoot}}
	}
	if slices.Contains(listenerMPTCP.Shapes, f.Shape) {
		f.see(listenerMPTCP, func() error { return fmt.Errorf("only root is told which listeners are MPTCP: %w", fs.ErrPermission) })
	}
}

// probeAgent asks what is attached, without taking its lock. An agent of another
// version is not asked further: what it has pinned may mean something else.
func (f *Facts) probeAgent(pins, agent string) {
	a := &f.Agent
	f.survey = dataplane.NewSurvey(pins, agent)
	f.see(daemon, func() (err error) {
		if os.Geteuid() != 0 {
			return fmt.Errorf("only root sees what is attached: %w", fs.ErrPermission)
		}
		if !f.survey.Attached() {
			return nil
		}
		if _, err = f.survey.Services(); err != nil {
			return err
		}
		a.Attached = true
		a.Daemon, err = f.survey.DaemonRuns()
		return err
	})
	if f.Shape != Server {
		f.see(xdpOccupied, func() (err error) {
			if os.Geteuid() == 0 {
				a.Programs, err = dataplane.PinnedXDP(pins)
			} else if slices.ContainsFunc(f.Devices, func(d Device) bool { return d.Program != 0 }) {
				err = fmt.Errorf("only root is told whose the XDP program is that is there: %w", fs.ErrPermission)
			}
			return err
		})
	}
	if f.Control == nil || !a.Attached {
		return
	}
	f.see(peerSilent, func() (err error) { a.Peers, err = f.survey.Peers(); return err })
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // exists on every Linux
	a.Now = time.Duration(now.Nano())
}
