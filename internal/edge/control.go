package edge

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/config"
	"smartcookie/internal/control"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
	"smartcookie/internal/upkeep"
)

// speaker is the daemon's end of the control messages; nil where there are none.
type speaker struct {
	endpoint *control.Edge
	config   *config.Edge
	agent    *dataplane.Edge
	counts   *dataplane.ControlCounts
	log      *slog.Logger
	close    func() // ends what it does, and waits
}

// speak opens the endpoint and greets every agent.
func speak(ctx context.Context, c *config.Edge, log *slog.Logger, keeper *upkeep.Keeper, agent *dataplane.Edge, pins *dataplane.Pins) (*speaker, error) {
	if c.Control == nil {
		return nil, nil
	}
	for i, a := range c.Control.Agents {
		if err := keeper.Knows(a.Domain); err != nil {
			return nil, c.AtAgent(i, err)
		}
	}
	counts, err := dataplane.PinControlCounts(pins)
	if err != nil {
		return nil, err
	}
	conn, err := control.Listen(ctx, c.Control.Listen, c.Control.Device)
	if err != nil {
		counts.Close()
		return nil, err
	}
	endpoint := control.NewEdge(control.EdgeConfig{
		ID: c.Control.ID, Agents: agentsOf(c), Generation: c.Generation, Learn: c.Learn,
	}, World(conn, keeper, log), agent)
	relays, err := agent.OpenRelays()
	if err != nil {
		conn.Close()
		counts.Close()
		return nil, err
	}
	var working sync.WaitGroup
	s := &speaker{endpoint, c, agent, counts, log, func() { relays.Close(); conn.Close(); working.Wait(); counts.Close() }}
	working.Go(func() { _ = endpoint.Serve() }) // until the socket is closed
	working.Go(func() { s.relay(relays) })
	s.tick()
	return s, nil
}

// relay carries packets to agents until there are no more.
func (s *speaker) relay(relays *dataplane.Relays) {
	for {
		kind, packet, err := relays.Read()
		if errors.Is(err, dataplane.ErrRelaysClosed) {
			return
		}
		if err != nil {
			s.log.Error(err.Error())
			continue
		}
		s.endpoint.Relay(kind, packet)
	}
}

func (s *speaker) tick() {
	if s == nil {
		return
	}
	s.setModes()
	s.endpoint.Tick()
	if err := s.counts.Write(s.endpoint.Read()); err != nil {
		s.log.Warn(err.Error())
	}
}

// setModes tells agents whether what comes through here has met a defence: a
// service that only monitors, or is passive, lets SYNs pass to its server.
func (s *speaker) setModes() {
	states, err := s.agent.States()
	if err != nil {
		s.log.Warn(err.Error())
		return
	}
	of := make(map[string]*dataplane.ServiceState, len(states))
	for i := range states {
		of[states[i].Name] = &states[i]
	}
	for _, a := range s.config.Control.Agents {
		someOff, off, any := false, true, false
		for i := range s.config.Services {
			service := &s.config.Services[i]
			if state := of[service.Name]; state != nil && overlaps(service.Prefixes, a.Protects) {
				any = true
				someOff = someOff || !state.Enforces()
				off = off && state.Mode == policy.Off
			}
		}
		s.endpoint.SetOff(a.ID, someOff, any && off)
	}
}

// end tells the peers if the agent was detached; a daemon alone may come back.
func (s *speaker) end(detached bool) {
	if s == nil {
		return
	}
	if detached {
		s.endpoint.Leave()
	}
	s.close()
}

// World is what surrounds an endpoint of a daemon.
func World(conn control.Conn, keeper *upkeep.Keeper, log *slog.Logger) control.World {
	return control.World{Conn: conn, Keys: keeper.Control(), Monotonic: monotonic, Random: random, Log: log}
}

// monotonic is the clock that the programs read, so that both mean the same.
func monotonic() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // exists on every Linux
	return time.Duration(now.Nano())
}

func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:]) | 1
}

func agentsOf(c *config.Edge) []control.Agent {
	all := make([]control.Agent, len(c.Control.Agents))
	for i, a := range c.Control.Agents {
		all[i] = control.Agent{
			ID: a.ID, Address: a.Address, Domain: a.Domain, Protects: a.Protects, Off: true,
		}
		for j := range c.Services {
			if overlaps(c.Services[j].Prefixes, a.Protects) {
				defend(&all[i], &c.Services[j])
			}
		}
		all[i].Off = all[i].Off && all[i].SomeOff
	}
	return all
}

// defend tells of an agent what a service at its addresses makes of it.
func defend(a *control.Agent, s *policy.Service) {
	if s.Mode == policy.Off {
		a.SomeOff = true
		return
	}
	a.Off = false
	a.MSS = max(a.MSS, s.MSS4)
	a.Relays = a.Relays || s.Relays()
}

func overlaps(some, others []netip.Prefix) bool {
	return slices.ContainsFunc(some, func(p netip.Prefix) bool { return slices.ContainsFunc(others, p.Overlaps) })
}

// cover tells the data plane who protects what, before a packet comes.
func cover(c *config.Edge, agent *dataplane.Edge) error {
	if c.Control == nil {
		return nil
	}
	for _, a := range c.Control.Agents {
		for _, prefix := range a.Protects {
			if err := agent.Cover(prefix, a.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepAgents has the data plane forget the others, once no program asks for them.
func keepAgents(c *config.Edge, agent *dataplane.Edge) error {
	ids := make(map[uint32]bool)
	if c.Control != nil {
		for _, a := range c.Control.Agents {
			ids[a.ID] = true
		}
	}
	return agent.KeepAgents(ids)
}
