// Package edge is the edge agent's daemon: it puts the programs in their place
// and keeps what they need coming. Once they are there, they go on without it.
package edge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"smartcookie/internal/config"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/keys"
	"smartcookie/internal/metrics"
	"smartcookie/internal/policy"
	"smartcookie/internal/upkeep"
)

// Options are what surrounds a daemon.
type Options struct {
	Pins   string // directory in the BPF file system
	Log    *slog.Logger
	Clocks func() keys.Reading
}

// Run protects until ctx ends or the agent is detached. The programs stay.
func Run(ctx context.Context, c *config.Edge, o Options) error {
	keeper, err := upkeep.New(c.Keys, DomainsOf(c.Services), o.Clocks, o.Log)
	var domain *upkeep.DomainError
	if errors.As(err, &domain) {
		return c.AtDomain(domain.Domain, err)
	}
	if err != nil {
		return err
	}
	if err := checkDevices(c, o.Log); err != nil {
		return err
	}
	pins, err := dataplane.OpenPins(o.Pins, dataplane.EdgeAgent)
	if err != nil {
		return err
	}
	defer pins.Close()
	scrapes, err := metrics.Listen(c.Metrics, o.Log)
	if err != nil {
		return c.AtMetrics(err)
	}
	defer scrapes.Close()
	agent, translator, err := start(c, o, keeper, pins)
	if err != nil {
		return err
	}
	defer agent.Close()
	defer translator.close()
	warnOfBypass(c, o.Log)
	ctx, stop := context.WithCancel(ctx)
	sweeping := SweepLists(ctx, o.Log, agent)
	defer func() { stop(); <-sweeping }()
	peers, err := speak(ctx, c, o.Log, keeper, agent, pins)
	if err != nil {
		return err
	}
	defer func() { peers.end(pins.Gone()) }()
	scrapes.Show(metricsOf(o, keeper, agent, translator, peers))
	upkeep.Ready(o.Log, "outside", Names(c.Outside), "inside", Names(c.Inside),
		"forward", c.Forward, "services", len(c.Services), "learning", learning(agent, c).String())
	return serve(ctx, o.Log, keeper, agent, pins, func() { peers.tick(); translator.tick() })
}

func checkDevices(c *config.Edge, log *slog.Logger) error {
	if err := checkForwarding(c); err != nil {
		return err
	}
	for i, port := range c.Outside {
		if err := CheckDevice(port.Name, c.Generic, c.Forward == "bridge", log); err != nil {
			return c.AtOutside(i, err)
		}
	}
	for i, port := range c.Inside {
		if err := CheckDevice(port.Name, c.Generic, c.Forward == "bridge", log); err != nil {
			return c.AtInside(i, err)
		}
	}
	return nil
}

// start loads, fills and attaches; if it cannot, nothing new stays attached.
func start(c *config.Edge, o Options, keeper *upkeep.Keeper, pins *dataplane.Pins) (*dataplane.Edge, *translator, error) {
	forward := dataplane.Bridge
	if c.Forward == "route" {
		forward = dataplane.Route
	}
	agent, err := dataplane.LoadEdge(pins, dataplane.EdgeConfig{
		Services: c.Services, Table: c.Table, Domains: DomainsOf(c.Services), Epochs: keeper.Epochs(),
		Outside: Interfaces(c.Outside), Inside: Interfaces(c.Inside), Forward: forward, Generic: c.Generic,
		Flows: c.Flows, Generation: c.Generation, Proxied: c.Proxied, Whitelist: c.Whitelist, Floods: c.Floods,
	})
	if err != nil {
		return nil, nil, err
	}
	var proxy *translator
	err = keeper.Start(agent, agent.AdoptedOffset())
	if err == nil {
		err = agent.SetClock(keeper.Clock(learning(agent, c)))
	}
	if err == nil {
		err = cover(c, agent)
	}
	if err == nil {
		err = agent.Start()
	}
	if err == nil {
		proxy, err = startTranslator(c, o, agent)
	}
	if err == nil {
		err = agent.Attach(pins)
	}
	if err == nil {
		err = agent.TryTransmit()
	}
	if err == nil {
		err = proxy.keep(o.Pins)
	}
	if err != nil {
		agent.Undo(pins)
		proxy.undo()
		proxy.close()
		agent.Close()
		return nil, nil, err
	}
	return agent, proxy, nil
}

// learning is how long unknown flows pass: not at all where the filter of an
// earlier daemon goes on, which has protected the same.
func learning(agent *dataplane.Edge, c *config.Edge) time.Duration {
	if agent.ProtectsSame() {
		return agent.LearningLeft()
	}
	return c.Learn
}

// serve keeps keys and clock going, and reports what the drivers lose.
func serve(ctx context.Context, log *slog.Logger, keeper *upkeep.Keeper, agent *dataplane.Edge, pins *dataplane.Pins, also func()) error {
	lost, modes := NewLossReport(log), NewModeReport(log)
	modes.Tick(agent)
	return upkeep.Loop(ctx, log, keeper, pins.Gone, func() { lost.Tick(agent); modes.Tick(agent); also() })
}

// DomainsOf lists the key domains that services need, in a fixed order.
func DomainsOf(services []policy.Service) []string {
	var domains []string
	for i := range services {
		domains = append(domains, services[i].Domain)
	}
	slices.Sort(domains)
	return slices.Compact(domains)
}

// Interfaces describes devices to the data plane.
func Interfaces(devices []net.Interface) []dataplane.Interface {
	all := make([]dataplane.Interface, len(devices))
	for i, d := range devices {
		all[i] = InterfaceOf(d)
	}
	return all
}

// InterfaceOf describes one.
func InterfaceOf(d net.Interface) dataplane.Interface {
	return dataplane.Interface{
		Name: d.Name, Index: d.Index, MTU: d.MTU, Veth: DriverOf(d.Name) == "veth",
		NoMAC: len(d.HardwareAddr) == 0 && d.Flags&net.FlagLoopback == 0,
		VRF:   vrfOf(d.Index),
	}
}

// Names lists devices for a log.
func Names(devices []net.Interface) string {
	all := make([]string, len(devices))
	for i, d := range devices {
		all[i] = d.Name
	}
	return strings.Join(all, ",")
}

// LossReport logs frames that were lost after their verdict, when there are
// new ones.
type LossReport struct {
	log  *slog.Logger
	last map[string]uint64
}

// NewLossReport returns a report to log.
func NewLossReport(log *slog.Logger) *LossReport {
	return &LossReport{log: log, last: make(map[string]uint64)}
}

// Tick looks for new losses.
func (r *LossReport) Tick(agent interface {
	TransmitFailures() (map[string]uint64, error)
}) {
	now, err := agent.TransmitFailures()
	if err != nil {
		r.log.Warn(err.Error())
		return
	}
	for cause, n := range now {
		if n > r.last[cause] {
			r.log.Warn("frames lost after their verdict", "cause", cause, "frames", n-r.last[cause], "total", n)
			r.last[cause] = n
		}
	}
}
