package server

import (
	"context"
	"fmt"

	"smartcookie/internal/config"
	"smartcookie/internal/edge"
	"smartcookie/internal/upkeep"
)

// reload does as an edge's.
func (d *daemon) reload(ctx context.Context) error {
	return upkeep.Reload[*config.Server]{
		Read:   d.options.Read,
		Since:  func(next *config.Server) config.Changes { return next.Since(d.config) },
		Admit:  d.admit,
		Change: func(next *config.Server) (refused, err error) { return d.change(ctx, next) },
	}.Do(d.options.Log)
}

// admit says what is wrong with a configuration, before anything is done.
func (d *daemon) admit(next *config.Server) error {
	next.Interfaces, next.Tenants = d.config.Interfaces, d.config.Tenants
	if err := d.keeper.Check(edge.DomainsOf(next.Services)); err != nil {
		return upkeep.AtDomain(next, err)
	}
	if next.Control == nil {
		return nil
	}
	if err := d.keeper.Check([]string{next.Control.Domain}); err != nil {
		return next.AtControl(err)
	}
	return nil
}

// change puts an agent by another configuration in the place of this one. If it
// cannot, this one is back. What is done beside the programs rests meanwhile.
func (d *daemon) change(ctx context.Context, c *config.Server) (refused, err error) {
	watch := NewWatch(c.Services, d.options.Log)
	if err := watch.Start(); err != nil {
		return err, nil
	}
	before := d.stage
	next, err := d.load(c, watch)
	if err != nil {
		return err, nil
	}
	before.rest(false)
	back, err := d.keeper.Move(next.agent, edge.DomainsOf(c.Services))
	if err == nil {
		err = d.attach(next)
	}
	if err == nil {
		d.stage = next
		err = d.accompany(ctx)
	}
	if err != nil {
		back()
		next.rest(false)
		next.agent.Close()
		return err, d.restore(ctx, before, err)
	}
	d.scrapes.Show(d.shown())
	before.agent.Close()
	return nil, nil
}

// restore has the stage before go on.
func (d *daemon) restore(ctx context.Context, before *stage, cause error) error {
	d.stage = before
	err := before.agent.Attach(d.pins)
	if err == nil {
		err = d.accompany(ctx)
	}
	if err != nil {
		return fmt.Errorf("reload: %w; back to what was before: %w", cause, err)
	}
	d.scrapes.Show(d.shown())
	return nil
}
