// Package edge is the edge agent's daemon: it puts the programs in their place
// and keeps what they need coming. Once they are there, they go on without it.
package edge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
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

	Asked <-chan os.Signal             // for a reload; nil: by nobody
	Read  func() (*config.Edge, error) // the file anew
}

// Run protects until ctx ends or the agent is detached. The programs stay.
func Run(ctx context.Context, c *config.Edge, o Options) error {
	keeper, err := upkeep.New(c.Keys, DomainsOf(c.Services), o.Clocks, o.Log)
	if err != nil {
		return upkeep.AtDomain(c, err)
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
	d := &daemon{
		options: o, keeper: keeper, pins: pins, scrapes: scrapes,
		lost: NewLossReport(o.Log), modes: NewModeReport(o.Log),
	}
	if d.stage, err = d.start(c); err != nil {
		return err
	}
	defer func() { d.close() }()
	if err := d.accompany(ctx); err != nil {
		return err
	}
	scrapes.Show(d.shown())
	upkeep.Ready(o.Log, "outside", Names(c.Outside), "inside", Names(c.Inside),
		"forward", c.Forward, "services", len(c.Services), "learning", learning(d.agent, c).String())
	d.modes.Tick(d.agent)
	return upkeep.Loop(ctx, o.Log, keeper, upkeep.Work{
		Gone: pins.Gone, Tick: d.tick, Asked: o.Asked, Reload: func() error { return d.reload(ctx) },
	})
}

// daemon is what goes on from one configuration to the next.
type daemon struct {
	options Options
	keeper  *upkeep.Keeper
	pins    *dataplane.Pins
	scrapes *metrics.Listener
	lost    *LossReport
	modes   *ModeReport
	*stage
}

// stage is an agent by one configuration, with what goes on beside it.
type stage struct {
	config   *config.Edge
	agent    *dataplane.Edge
	proxy    *translator
	peers    *speaker
	sweeping func() // ends it, and waits
}

// tick reports what has changed in the kernel, and does what is due there.
func (d *daemon) tick() {
	d.lost.Tick(d.agent)
	d.modes.Tick(d.agent)
	d.peers.tick()
	d.proxy.tick()
}

// accompany begins what goes on beside the programs.
func (d *daemon) accompany(ctx context.Context) (err error) {
	warnOfBypass(d.config, d.options.Log)
	sweep, stop := context.WithCancel(ctx)
	ended := SweepLists(sweep, d.options.Log, d.agent)
	d.sweeping = func() { stop(); <-ended }
	d.peers, err = speak(ctx, d.config, d.options.Log, d.keeper, d.agent, d.pins)
	return err
}

// rest ends what goes on beside the programs, and waits for it.
func (s *stage) rest(detached bool) {
	s.peers.end(detached)
	s.peers = nil
	if s.sweeping != nil {
		s.sweeping()
		s.sweeping = nil
	}
}

// close lets go of everything; the programs go on.
func (d *daemon) close() {
	d.rest(d.pins.Gone())
	d.proxy.close(nil)
	d.agent.Close()
}

// drop lets go of a stage that never came to be, beside the translator that does
// its work.
func (s *stage) drop(works *translator) {
	s.rest(false)
	if works == nil {
		s.proxy.undo()
	}
	s.proxy.close(works)
	s.agent.Close()
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
func (d *daemon) start(c *config.Edge) (*stage, error) {
	next, err := d.load(c)
	if err != nil {
		return nil, err
	}
	err = d.keeper.Start(next.agent, next.agent.AdoptedOffset())
	if err == nil {
		err = d.attach(next, nil)
	}
	if err != nil {
		next.agent.Undo(d.pins)
		next.drop(nil)
		return nil, err
	}
	return next, d.settle(next)
}

// load makes programs and tables that no packet meets yet.
func (d *daemon) load(c *config.Edge) (*stage, error) {
	forward := dataplane.Bridge
	if c.Forward == "route" {
		forward = dataplane.Route
	}
	agent, err := dataplane.LoadEdge(d.pins, dataplane.EdgeConfig{
		Services: c.Services, Table: c.Table, Domains: DomainsOf(c.Services), Epochs: d.keeper.Epochs(),
		Outside: Interfaces(c.Outside), Inside: Interfaces(c.Inside), Forward: forward, Generic: c.Generic,
		Flows: c.Flows, Generation: c.Generation, Learn: c.Learn, Proxied: c.Proxied, Whitelist: c.Whitelist, Floods: c.Floods,
	})
	if err != nil {
		return nil, err
	}
	return &stage{config: c, agent: agent}, nil
}

// attach puts a stage, which has its keys, in its place. There its translator
// takes over from that of a former one.
func (d *daemon) attach(next *stage, former *translator) error {
	steps := []func() error{
		func() error { return next.agent.SetClock(d.keeper.Clock(learning(next.agent, next.config))) },
		func() error { return cover(next.config, next.agent) },
		next.agent.Start,
		func() (err error) {
			next.proxy, err = startTranslator(next.config, d.options, next.agent, former)
			return err
		},
		func() error { return next.agent.Attach(d.pins) },
		next.agent.TryTransmit,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// settle removes what only a former agent needed.
func (d *daemon) settle(next *stage) error {
	return errors.Join(next.proxy.keep(d.options.Pins), keepAgents(next.config, next.agent))
}

// learning is how long unknown flows pass: of an earlier filter, what was left
// of its time. Of what is new to it the services' modes say that.
func learning(agent *dataplane.Edge, c *config.Edge) time.Duration {
	if agent.Adopted() {
		return agent.LearningLeft()
	}
	return c.Learn
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
