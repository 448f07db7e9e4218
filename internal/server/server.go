// Package server is the server agent's daemon.
package server

import (
	"context"
	"errors"
	"log/slog"

	"smartcookie/internal/config"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/edge"
	"smartcookie/internal/keys"
	"smartcookie/internal/metrics"
	"smartcookie/internal/policy"
	"smartcookie/internal/upkeep"
)

// Options are what surrounds a daemon.
type Options struct {
	Pins   string
	Log    *slog.Logger
	Clocks func() keys.Reading
}

// Run serves until ctx ends or the agent is detached. The programs stay.
func Run(ctx context.Context, c *config.Server, o Options) error {
	keeper, err := upkeep.New(c.Keys, edge.DomainsOf(c.Services), o.Clocks, o.Log)
	var domain *upkeep.DomainError
	if errors.As(err, &domain) {
		return c.AtDomain(domain.Domain, err)
	}
	if err != nil {
		return err
	}
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
	agent, err := start(c, watch.Services(), keeper, pins)
	if err != nil {
		return err
	}
	defer agent.Close()
	peers, err := speak(ctx, c, o.Log, keeper, agent, pins)
	if err != nil {
		return err
	}
	defer func() { peers.end(pins.Gone()) }()
	scrapes.Show(metricsOf(o, keeper, agent, peers))
	upkeep.Ready(o.Log, "interfaces", edge.Names(c.Interfaces), "tenants", edge.Names(c.Tenants), "services", len(c.Services), "strict", c.Strict)
	return upkeep.Loop(ctx, o.Log, keeper, pins.Gone, func() { watch.Keep(agent); peers.tick() })
}

// start loads, fills and attaches; if it cannot, nothing new stays attached.
func start(c *config.Server, services []policy.Service, keeper *upkeep.Keeper, pins *dataplane.Pins) (*dataplane.Server, error) {
	agent, err := dataplane.LoadServer(pins, dataplane.ServerConfig{
		Services: services, Table: c.Table, Domains: edge.DomainsOf(services), Epochs: keeper.Epochs(),
		Interfaces: edge.Interfaces(c.Interfaces), Tenants: edge.Interfaces(c.Tenants), Strict: c.Strict, Allowed: c.Allowed, Recent: c.Recent, Translated: c.Translated,
		HearsEdges: c.Control != nil,
	})
	if err != nil {
		return nil, err
	}
	err = keeper.Start(agent, agent.AdoptedOffset())
	if err == nil {
		err = agent.SetClock(keeper.Clock(0))
	}
	if err == nil {
		err = agent.Attach(pins)
	}
	if err != nil {
		agent.Undo(pins)
		agent.Close()
		return nil, err
	}
	return agent, nil
}
