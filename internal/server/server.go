// Package server is the server agent's daemon.
package server

import (
	"context"
	"log/slog"
	"os"

	"smartcookie/internal/config"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/edge"
	"smartcookie/internal/keys"
	"smartcookie/internal/metrics"
	"smartcookie/internal/upkeep"
)

// Options are what surrounds a daemon.
type Options struct {
	Pins   string
	Log    *slog.Logger
	Clocks func() keys.Reading

	Asked <-chan os.Signal               // for a reload; nil: by nobody
	Read  func() (*config.Server, error) // the file anew
}

// Run serves until ctx ends or the agent is detached. The programs stay.
func Run(ctx context.Context, c *config.Server, o Options) error {
	keeper, err := upkeep.New(c.Keys, edge.DomainsOf(c.Services), o.Clocks, o.Log)
	if err != nil {
		return upkeep.AtDomain(c, err)
	}
	if err := refuseVRFs(c); err != nil {
		return err
	}
	watch := NewWatch(c.Services, o.Log)
	if err := watch.Start(); err != nil {
		return err
	}
	pins, err := dataplane.OpenPins(o.Pins, dataplane.ServerAgent)
	if err != nil {
		return err
	}
	defer pins.Close()
	scrapes, err := metrics.Listen(c.Metrics, o.Log)
	if err != nil {
		return c.AtMetrics(err)
	}
	defer scrapes.Close()
	d := &daemon{options: o, keeper: keeper, pins: pins, scrapes: scrapes}
	if d.stage, err = d.start(c, watch); err != nil {
		return err
	}
	defer func() { d.close() }()
	if err := d.accompany(ctx); err != nil {
		return err
	}
	scrapes.Show(d.shown())
	upkeep.Ready(o.Log, "interfaces", edge.Names(c.Interfaces), "tenants", edge.Names(c.Tenants), "services", len(c.Services), "strict", c.Strict)
	return upkeep.Loop(ctx, o.Log, keeper, upkeep.Work{
		Gone: pins.Gone, Tick: d.tick, Asked: o.Asked, Reload: func() error { return d.reload(ctx) },
	})
}

func refuseVRFs(c *config.Server) error {
	for i, device := range c.Interfaces {
		if err := edge.RefuseVRF(device.Name); err != nil {
			return c.AtInterface(i, err)
		}
	}
	for i, device := range c.Tenants {
		if err := edge.RefuseVRF(device.Name); err != nil {
			return c.AtTenant(i, err)
		}
	}
	return nil
}

// daemon is what goes on from one configuration to the next.
type daemon struct {
	options Options
	keeper  *upkeep.Keeper
	pins    *dataplane.Pins
	scrapes *metrics.Listener
	*stage
}

// stage is an agent by one configuration, with what goes on beside it.
type stage struct {
	config *config.Server
	watch  *Watch
	agent  *dataplane.Server
	peers  *speaker
}

func (d *daemon) tick() {
	d.watch.Keep(d.agent)
	d.peers.tick()
}

// accompany begins what goes on beside the programs.
func (d *daemon) accompany(ctx context.Context) (err error) {
	d.peers, err = speak(ctx, d.config, d.options.Log, d.keeper, d.agent, d.pins)
	return err
}

// rest ends what goes on beside the programs, and waits for it.
func (s *stage) rest(detached bool) {
	s.peers.end(detached)
	s.peers = nil
}

// close lets go of everything; the programs go on.
func (d *daemon) close() {
	d.rest(d.pins.Gone())
	d.agent.Close()
}

// start loads, fills and attaches; if it cannot, nothing new stays attached.
func (d *daemon) start(c *config.Server, watch *Watch) (*stage, error) {
	next, err := d.load(c, watch)
	if err != nil {
		return nil, err
	}
	err = d.keeper.Start(next.agent, next.agent.AdoptedOffset())
	if err == nil {
		err = d.attach(next)
	}
	if err != nil {
		next.agent.Undo(d.pins)
		next.agent.Close()
		return nil, err
	}
	return next, nil
}

// load makes programs and tables that no packet meets yet.
func (d *daemon) load(c *config.Server, watch *Watch) (*stage, error) {
	services := watch.Services()
	agent, err := dataplane.LoadServer(d.pins, dataplane.ServerConfig{
		Services: services, Table: c.Table, Domains: edge.DomainsOf(services), Epochs: d.keeper.Epochs(),
		Interfaces: edge.Interfaces(c.Interfaces), Tenants: edge.Interfaces(c.Tenants), Strict: c.Strict, Allowed: c.Allowed, Recent: c.Recent, Translated: c.Translated,
		HearsEdges: c.Control != nil,
	})
	if err != nil {
		return nil, err
	}
	return &stage{config: c, watch: watch, agent: agent}, nil
}

// attach puts a stage, which has its keys, in its place.
func (d *daemon) attach(next *stage) error {
	if err := next.agent.SetClock(d.keeper.Clock(0)); err != nil {
		return err
	}
	return next.agent.Attach(d.pins)
}
