// Package host is the host shape: both halves on one interface of the server
// itself, with a key that only its kernel knows.
package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/config"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/edge"
	"smartcookie/internal/keys"
	"smartcookie/internal/metrics"
	"smartcookie/internal/policy"
	"smartcookie/internal/server"
	"smartcookie/internal/upkeep"
)

// Config is what the command line says.
type Config struct {
	Interface net.Interface
	Ports     []policy.PortRange
	Generic   bool
	Confirm   time.Duration // 0: no confirmation is asked for
	Setup     policy.Setup
	Mode      policy.Mode
	Detect    policy.Detect

	KernelCookies bool // the kernel's own, instead of ours
	Flood         Flood

	Metrics netip.AddrPort // where Prometheus asks; the zero address: nowhere
}

// Options are what surrounds a daemon.
type Options struct {
	Pins  string
	Log   *slog.Logger
	Input io.Reader // where the confirmation is typed
}

// The host shape agrees with nobody: what a key file would say is fixed.
const (
	domain      = "host"
	epoch       = keys.EpochSeconds * time.Second
	windowScale = 7
	epochsAhead = 8 // the kernel makes keys as it goes
)

// ErrUnconfirmed means that nobody confirmed in time; nothing is attached.
var ErrUnconfirmed = errors.New("not confirmed in time: everything is taken off again")

// Run protects until ctx ends or the agent is detached.
func Run(ctx context.Context, c Config, o Options) error {
	if c.KernelCookies {
		return runKernel(ctx, c, o)
	}
	services, err := Services(c)
	if err != nil {
		return err
	}
	if err := edge.RefuseVRF(c.Interface.Name); err != nil {
		return err
	}
	if err := edge.CheckDevice(c.Interface.Name, c.Generic, false, o.Log); err != nil {
		return err
	}
	watch := server.NewWatch(services, o.Log)
	if err := watch.Start(); err != nil {
		return err
	}
	scrapes, err := metrics.Listen(c.Metrics, o.Log)
	if err != nil {
		return err
	}
	defer scrapes.Close()
	agents, err := attach(c, o, watch.Services())
	if err != nil {
		return err
	}
	defer agents.close()
	scrapes.Show(metricsOf(o.Pins, agents))
	upkeep.Ready(o.Log, "interface", c.Interface.Name, "ports", portNames(c.Ports))
	if err := confirm(ctx, c, o); err != nil {
		_, detachErr := dataplane.Detach(o.Pins)
		return errors.Join(err, detachErr)
	}
	return agents.serve(ctx, o.Log, watch)
}

// Services protects the ports at the host's own addresses. What it forwards
// to others, containers and virtual machines among them, is theirs.
func Services(c Config) ([]policy.Service, error) {
	own, err := ownAddresses()
	if err != nil {
		return nil, err
	}
	s := policy.Service{
		Name: c.Interface.Name, Domain: domain, Mode: c.Mode, Options: policy.AllOptions,
		Prefixes: own, Ports: c.Ports, Window: config.DefaultWindow, Setup: c.Setup,
		Detect: c.Detect,
	}
	s.MSS4, s.MSS6 = mssOf(c.Interface.MTU)
	return []policy.Service{s}, nil
}

// ownAddresses lists the host's addresses in this network namespace.
func ownAddresses() ([]netip.Prefix, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var own []netip.Prefix
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || prefix.Addr().IsLoopback() {
			continue
		}
		address := prefix.Addr().Unmap().WithZone("")
		own = append(own, netip.PrefixFrom(address, address.BitLen()))
	}
	if len(own) == 0 {
		return nil, errors.New("this host has no address to protect")
	}
	slices.SortFunc(own, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return slices.Compact(own), nil
}

// follow moves the protection to the addresses that the host has now.
func (a *agents) follow(log *slog.Logger) error {
	now, err := followAddresses(log, a.own, a.ports, a.server, a.edge)
	if err == nil {
		a.own = now
	}
	return err
}

// mover is an agent whose ports can be held at other addresses.
type mover interface {
	MovePrefixes(added, removed []netip.Prefix, set policy.PortSet) error
}

// followAddresses moves agents from the addresses that the host had, and returns
// those that it has.
func followAddresses(log *slog.Logger, had []netip.Prefix, ports policy.PortSet, agents ...mover) ([]netip.Prefix, error) {
	now, err := ownAddresses()
	if err != nil || slices.Equal(now, had) {
		return now, err
	}
	has := func(in []netip.Prefix) func(netip.Prefix) bool {
		return func(p netip.Prefix) bool { return slices.Contains(in, p) }
	}
	added := slices.DeleteFunc(slices.Clone(now), has(had))
	removed := slices.DeleteFunc(slices.Clone(had), has(now))
	log.Info("addresses have changed", "added", added, "removed", removed)
	for _, agent := range agents {
		if err := agent.MovePrefixes(added, removed, ports); err != nil {
			return had, err
		}
	}
	return now, nil
}

// mssOf is what the interface can carry, headers without options.
func mssOf(mtu int) (mss4, mss6 uint16) {
	const headers4, headers6, least4, least6, most = 40, 60, 536, 1220, 65495
	return uint16(min(max(mtu-headers4, least4), most)), uint16(min(max(mtu-headers6, least6), most))
}

type agents struct {
	own        []netip.Prefix // addresses that are protected
	ports      policy.PortSet // at each of them
	edge       *dataplane.Edge
	server     *dataplane.Server
	edgePins   *dataplane.Pins
	serverPins *dataplane.Pins
}

// attach puts the server's half in place first: nothing is answered that
// could not be set up.
func attach(c Config, o Options, services []policy.Service) (*agents, error) {
	a := &agents{}
	var err error
	if a.edgePins, err = dataplane.OpenPins(o.Pins, dataplane.EdgeAgent); err != nil {
		return nil, err
	}
	if a.serverPins, err = dataplane.OpenPins(o.Pins, dataplane.ServerAgent); err != nil {
		a.close()
		return nil, err
	}
	err = a.load(c, services)
	if err == nil { // an edge may have been here, and left its translator
		_, err = dataplane.DetachAgent(o.Pins, dataplane.ProxyAgent)
	}
	if err != nil {
		if a.edge != nil {
			a.edge.Undo(a.edgePins)
		}
		if a.server != nil {
			a.server.Undo(a.serverPins)
		}
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *agents) load(c Config, services []policy.Service) error {
	table, err := policy.Compile(services)
	if err != nil {
		return err
	}
	a.own, a.ports = services[0].Prefixes, policy.PortSet{Count: uint32(len(c.Ports))}
	devices := edge.Interfaces([]net.Interface{c.Interface})
	a.edge, err = dataplane.LoadEdge(a.edgePins, dataplane.EdgeConfig{
		Services: services, Table: table, Domains: []string{domain}, Epochs: epochsAhead,
		Outside: devices, Forward: dataplane.Local, Generic: c.Generic,
		Flows: config.DefaultFlows, Generation: config.DefaultGeneration,
	})
	if err != nil {
		return err
	}
	a.server, err = dataplane.LoadServer(a.serverPins, dataplane.ServerConfig{
		Services: services, Table: table, Domains: []string{domain}, Epochs: epochsAhead,
		Interfaces: devices, Recent: config.DefaultRecent, Translated: config.DefaultTranslated, Edge: a.edge,
	})
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { return a.edge.HostKey(windowScale) },
		func() error { return a.edge.SetClock(dataplane.Clock{EpochNS: uint64(epoch)}) },
		a.edge.Start,
		func() error { return a.server.Attach(a.serverPins) },
		func() error { return a.edge.Attach(a.edgePins) },
		a.edge.TryTransmit,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (a *agents) close() {
	if a.edge != nil {
		a.edge.Close()
	}
	if a.server != nil {
		a.server.Close()
	}
	for _, pins := range []*dataplane.Pins{a.edgePins, a.serverPins} {
		if pins != nil {
			pins.Close()
		}
	}
}

// serve only watches: the kernel needs nothing from this daemon.
func (a *agents) serve(ctx context.Context, log *slog.Logger, watch *server.Watch) error {
	signal.Ignore(unix.SIGUSR1) // edges and servers confirm a clock with it; here is none
	defer signal.Reset(unix.SIGUSR1)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	lost, modes := edge.NewLossReport(log), edge.NewModeReport(log)
	modes.Tick(a.edge)
	sweep, stop := context.WithCancel(ctx)
	sweeping := edge.SweepLists(sweep, log, a.edge)
	defer func() { stop(); <-sweeping }()
	for {
		select {
		case <-ctx.Done():
			log.Info("the daemon ends, the protection goes on; to end it: smartcookie detach")
			return nil
		case <-tick.C:
			if a.edgePins.Gone() {
				log.Info("detached")
				return nil
			}
			if err := a.follow(log); err != nil {
				return err
			}
			lost.Tick(a.edge)
			modes.Tick(a.edge)
			watch.Keep(a.server)
		}
	}
}

// confirm waits for a line: whoever can type it has not locked himself out.
func confirm(ctx context.Context, c Config, o Options) error {
	if c.Confirm == 0 {
		return nil
	}
	o.Log.Warn("press Enter to keep the protection on", "within", c.Confirm.String())
	typed := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(o.Input).ReadString('\n')
		typed <- err
	}()
	timeout := time.NewTimer(c.Confirm)
	defer timeout.Stop()
	select {
	case err := <-typed:
		if err != nil {
			return fmt.Errorf("%w (no input: %w)", ErrUnconfirmed, err)
		}
		o.Log.Info("confirmed")
		return nil
	case <-timeout.C:
	case <-ctx.Done():
	}
	return ErrUnconfirmed
}

func portNames(ports []policy.PortRange) string {
	names := make([]string, len(ports))
	for i, p := range ports {
		names[i] = fmt.Sprint(p.Low)
		if p.High != p.Low {
			names[i] += "-" + fmt.Sprint(p.High)
		}
	}
	return strings.Join(names, ",")
}
