package server

import (
	"context"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"

	"smartcookie/internal/config"
	"smartcookie/internal/control"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/edge"
	"smartcookie/internal/policy"
	"smartcookie/internal/upkeep"
)

// speaker is the daemon's end of the control messages; nil where there are none.
type speaker struct {
	endpoint *control.AgentEndpoint
	counts   *dataplane.ControlCounts
	config   *config.Server
	agent    *dataplane.Server
	log      *slog.Logger
	close    func() // ends what it does, and waits
}

// speak opens the endpoint: edges greet it.
func speak(ctx context.Context, c *config.Server, log *slog.Logger, keeper *upkeep.Keeper, agent *dataplane.Server, pins *dataplane.Pins) (*speaker, error) {
	if c.Control == nil {
		return nil, nil
	}
	if err := keeper.Knows(c.Control.Domain); err != nil {
		return nil, c.AtControl(err)
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
	endpoint := control.NewAgent(control.AgentConfig{
		ID: c.Control.ID, Domain: c.Control.Domain, Edges: edgesOf(c.Control.Edges),
	}, edge.World(conn, keeper, log), agent, agent)
	ctx, stop := context.WithCancel(ctx)
	var working sync.WaitGroup
	s := &speaker{endpoint, counts, c, agent, log, func() { stop(); conn.Close(); working.Wait(); counts.Close() }}
	s.tick()
	working.Go(func() { _ = endpoint.Serve() }) // until the socket is closed
	working.Go(func() { s.announce(ctx) })
	working.Go(func() { s.confirm(ctx) })
	return s, nil
}

func edgesOf(configured []config.ControlEdge) []control.EdgePeer {
	all := make([]control.EdgePeer, len(configured))
	for i, e := range configured {
		all[i] = control.EdgePeer{ID: e.ID, Address: e.Address}
	}
	return all
}

// announce walks the connections whenever an edge is due to hear of them.
func (s *speaker) announce(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.endpoint.Wake():
			if err := s.endpoint.Announce(); err != nil {
				s.log.Error(err.Error())
			}
		}
	}
}

// confirm looks for connections that were not there at once.
func (s *speaker) confirm(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.endpoint.Unconfirmed():
			s.endpoint.Reconfirm()
		}
	}
}

func (s *speaker) tick() {
	if s == nil {
		return
	}
	s.endpoint.Tick(s.local())
	if err := s.counts.Write(s.endpoint.Read()); err != nil {
		s.log.Warn(err.Error())
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

// off says whether every service is off now.
func (s *speaker) off() bool {
	states, err := s.agent.States()
	if err != nil {
		s.log.Warn(err.Error())
		return false
	}
	return !slices.ContainsFunc(states, func(s dataplane.ServiceState) bool { return s.Mode != policy.Off })
}

// local is what edges should know of this host.
func (s *speaker) local() control.Local {
	l := control.Local{MTU: math.MaxUint16, Strict: s.config.Strict, Off: s.off()}
	for _, device := range slices.Concat(s.config.Interfaces, s.config.Tenants) {
		l.MTU = uint16(min(int(l.MTU), device.MTU))
	}
	if len(s.config.Tenants) > 0 { // whose listeners are out of sight
		l.AnyListens = true
		return l
	}
	all, err := readListeners()
	if err != nil { // fail open: every port counts as listening
		s.log.Warn(err.Error())
		l.AnyListens = true
		return l
	}
	for _, listener := range all {
		for _, at := range listener.addresses() {
			if serves(s.config.Services, at) {
				l.Listeners = append(l.Listeners, at)
			}
		}
	}
	return l
}

// addresses are those at which a listener takes connections: an IPv6 socket
// for all addresses takes IPv4 too, unless it was told not to.
func (l Listener) addresses() []netip.AddrPort {
	at := netip.AddrPortFrom(l.Address.Addr().Unmap(), l.Address.Port())
	if at.Addr() == netip.IPv6Unspecified() && !l.Only6 {
		return []netip.AddrPort{at, netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())}
	}
	return []netip.AddrPort{at}
}

func serves(services []policy.Service, at netip.AddrPort) bool {
	if !at.Addr().IsUnspecified() {
		_, ok := policy.Protects(services, at.Addr(), at.Port())
		return ok
	}
	for i := range services {
		for _, r := range services[i].Ports {
			if r.Low <= at.Port() && at.Port() <= r.High {
				return true
			}
		}
	}
	return false
}
