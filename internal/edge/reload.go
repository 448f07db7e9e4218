package edge

import (
	"context"
	"errors"
	"fmt"

	"smartcookie/internal/config"
	"smartcookie/internal/upkeep"
)

// reload makes an agent anew beside the one that works. It takes over what that
// knows, and its programs are put in the place of the others: what a start of a new
// daemon does.
func (d *daemon) reload(ctx context.Context) error {
	return upkeep.Reload[*config.Edge]{
		Read:   d.options.Read,
		Since:  func(next *config.Edge) config.Changes { return next.Since(d.config) },
		Admit:  d.admit,
		Change: func(next *config.Edge) (refused, err error) { return d.change(ctx, next) },
	}.Do(d.options.Log)
}

// admit says what is wrong with a configuration, before anything is done.
func (d *daemon) admit(next *config.Edge) error {
	// What devices can do is looked at when a daemon starts.
	next.Outside, next.Inside = d.config.Outside, d.config.Inside
	if err := checkForwarding(next); err != nil {
		return err
	}
	if err := d.keeper.Check(DomainsOf(next.Services)); err != nil {
		return upkeep.AtDomain(next, err)
	}
	if next.Control == nil {
		return nil
	}
	var domains []string
	for _, a := range next.Control.Agents {
		domains = append(domains, a.Domain)
	}
	err := d.keeper.Check(domains)
	var missing *upkeep.DomainError
	for i, a := range next.Control.Agents {
		if errors.As(err, &missing) && a.Domain == missing.Domain {
			return next.AtAgent(i, err)
		}
	}
	return err
}

// change puts an agent by another configuration in the place of this one. If it
// cannot, this one is back. What is done beside the programs rests meanwhile.
func (d *daemon) change(ctx context.Context, c *config.Edge) (refused, err error) {
	before := d.stage
	next, err := d.load(c)
	if err != nil {
		return err, d.restore(ctx, before, err)
	}
	before.rest(false)
	back, err := d.keeper.Move(next.agent, DomainsOf(c.Services))
	if err == nil {
		err = d.attach(next, before.proxy)
	}
	if err == nil {
		d.stage = next
		err = d.accompany(ctx)
	}
	if err != nil {
		back()
		next.drop(before.proxy)
		return err, d.restore(ctx, before, err)
	}
	d.scrapes.Show(d.shown())
	before.proxy.close(next.proxy)
	before.agent.Close()
	if err := d.settle(next); err != nil {
		d.options.Log.Error(err.Error())
	}
	return nil, nil
}

// restore has the stage before go on.
func (d *daemon) restore(ctx context.Context, before *stage, cause error) error {
	before.rest(false)
	d.stage = before
	err := errors.Join(before.proxy.restore(), before.agent.Restore(d.pins))
	if err == nil {
		err = d.accompany(ctx)
	}
	if err != nil {
		return fmt.Errorf("reload: %w; back to what was before: %w", cause, err)
	}
	d.scrapes.Show(d.shown())
	return nil
}
