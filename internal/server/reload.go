package server

import (
	"context"
	"fmt"

	"smartcookie/internal/config"
	"smartcookie/internal/edge"
	"smartcookie/internal/upkeep"
)

// reload goes on by the file as it is now, as an edge's does.
func (d *daemon) reload(ctx context.Context) error {
	next, err := d.options.Read()
	if err != nil {
		upkeep.Refuse(d.options.Log, err)
		return nil
	}
	changes := next.Since(d.config)
	if err := d.admit(next, &changes); err != nil {
		upkeep.Refuse(d.options.Log, err)
		return nil
	}
	if !changes.None() {
		if err := d.change(ctx, next); err != nil {
			return err
		}
	}
	if changes.None() || d.config == next {
		upkeep.Tell(d.options.Log, &changes)
	}
	return nil
}

// admit says what is wrong with a configuration, before anything is done.
func (d *daemon) admit(next *config.Server, changes *config.Changes) error {
	if err := changes.Refusal(); err != nil {
		return err
	}
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
func (d *daemon) change(ctx context.Context, c *config.Server) error {
	watch := NewWatch(c.Services, d.options.Log)
	if err := watch.Start(); err != nil {
		upkeep.Refuse(d.options.Log, err)
		return nil
	}
	before := d.stage
	next, err := d.load(c, watch)
	if err != nil {
		upkeep.Refuse(d.options.Log, err)
		return nil
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
		return d.restore(ctx, before, err)
	}
	d.scrapes.Show(d.shown())
	before.agent.Close()
	return nil
}

// restore has the stage before go on, and tells why.
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
	upkeep.Refuse(d.options.Log, cause)
	return nil
}
