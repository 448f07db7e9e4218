package config

import (
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"

	"smartcookie/internal/policy"
)

// Changes are what a file says otherwise than the one before it.
type Changes struct {
	Added, Removed, Changed []string // services, by name
	Settings                []string // other keys of the file
	fixed                   []string // those of them that hold as long as the daemon runs
}

// FixedError names what a running daemon cannot change.
type FixedError struct{ Settings []string }

// sizesKept are maps whose entries live and cannot move: not even a start makes
// them larger.
var sizesKept = []string{"proxied", "translated"}

func (e *FixedError) Error() string {
	mend := "start the daemon anew"
	if slices.ContainsFunc(e.Settings, func(s string) bool { return slices.Contains(sizesKept, s) }) {
		mend = "smartcookie detach, then start the daemon anew"
	}
	return fmt.Sprintf("%s cannot be changed while the daemon runs: %s", strings.Join(e.Settings, ", "), mend)
}

// ExitCode is that of wrong input.
func (e *FixedError) ExitCode() int { return 2 }

// None says whether both files mean the same.
func (c *Changes) None() bool {
	return len(c.Added)+len(c.Removed)+len(c.Changed)+len(c.Settings) == 0
}

// Refusal is the error of a reload that would change what it cannot, nil if it
// can.
func (c *Changes) Refusal() error {
	if len(c.fixed) == 0 {
		return nil
	}
	return &FixedError{c.fixed}
}

// Since says what has changed since another file.
func (c *Edge) Since(before *Edge) Changes {
	f, g := &before.Floods, &c.Floods
	all := servicesSince(before.Services, c.Services)
	all.fix("keys", before.Keys, c.Keys)
	all.fix("metrics", before.Metrics, c.Metrics)
	all.fix("outside", places(before.Outside), places(c.Outside))
	all.fix("inside", places(before.Inside), places(c.Inside))
	all.fix("forward", before.Forward, c.Forward)
	all.fix("xdp", before.Generic, c.Generic)
	all.fix("flows", before.Flows, c.Flows)
	all.fix("proxied", before.Proxied, c.Proxied)
	all.fix("whitelist", before.Whitelist, c.Whitelist)
	all.set("generation", before.Generation, c.Generation)
	all.set("learn", before.Learn, c.Learn)
	all.set("return_traffic", before.ReturnTraffic, c.ReturnTraffic)
	all.set("control", before.Control, c.Control)
	all.set("other_tcp", f.DropOther, g.DropOther)
	all.set("answers_per_network", f.Answers, g.Answers)
	all.set("network4", f.Network4, g.Network4)
	all.set("network6", f.Network6, g.Network6)
	all.set("deny", f.Deny, g.Deny)
	all.set("allow", f.Allow, g.Allow)
	all.set("inside_only", f.InsideOnly, g.InsideOnly)
	all.set("bypass_without_protection", f.Bypass, g.Bypass)
	return all
}

// Since says what has changed since another file.
func (c *Server) Since(before *Server) Changes {
	all := servicesSince(before.Services, c.Services)
	all.fix("keys", before.Keys, c.Keys)
	all.fix("metrics", before.Metrics, c.Metrics)
	all.fix("interfaces", places(before.Interfaces), places(c.Interfaces))
	all.fix("tenants", places(before.Tenants), places(c.Tenants))
	all.fix("recent", before.Recent, c.Recent)
	all.fix("translated", before.Translated, c.Translated)
	all.set("strict", before.Strict, c.Strict)
	all.set("allowed", before.Allowed, c.Allowed)
	all.set("control", before.Control, c.Control)
	return all
}

func (c *Changes) set(name string, before, now any) {
	if !reflect.DeepEqual(before, now) {
		c.Settings = append(c.Settings, name)
	}
}

func (c *Changes) fix(name string, before, now any) {
	if !reflect.DeepEqual(before, now) {
		c.Settings, c.fixed = append(c.Settings, name), append(c.fixed, name)
	}
}

// place is which device an interface is: one that was made anew is another.
type place struct {
	name  string
	index int
}

func places(devices []net.Interface) []place {
	all := make([]place, len(devices))
	for i, d := range devices {
		all[i] = place{d.Name, d.Index}
	}
	return all
}

// servicesSince compares services by name; their order means nothing.
func servicesSince(before, now []policy.Service) (c Changes) {
	was := make(map[string]*policy.Service, len(before))
	for i := range before {
		was[before[i].Name] = &before[i]
	}
	for i := range now {
		old, ok := was[now[i].Name]
		delete(was, now[i].Name)
		if !ok {
			c.Added = append(c.Added, now[i].Name)
		} else if !reflect.DeepEqual(old, &now[i]) {
			c.Changed = append(c.Changed, now[i].Name)
		}
	}
	for i := range before {
		if was[before[i].Name] != nil {
			c.Removed = append(c.Removed, before[i].Name)
		}
	}
	return c
}
