package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"smartcookie/internal/policy"
)

// ServerConfig is what a server agent's programs are built for.
type ServerConfig struct {
	Services []policy.Service
	Table    *policy.Table
	Domains  []string
	Epochs   uint64

	Interfaces []Interface
	Tenants    []Interface    // behind which services of setup Tenant are
	Strict     bool           // drop SYNs from outside Allowed
	Allowed    []netip.Prefix // sources whose SYNs need not pass an edge
	Recent     int            // connections that are remembered
	Translated int            // connections that can be translated at a time
	HearsEdges bool           // strict only while one of them says that it enforces

	// Edge is the other half on the same host: keys and clock are its own.
	Edge *Edge
	// Proxy is where an edge itself is the other half, and all tables are its own.
	Proxy *ProxyPorts
}

// Server is a loaded server agent.
type Server struct {
	tables
	objects serverObjects
	config  ServerConfig
	links   map[string]link.Link
	devices deviceCache
	walks   uint64 // over the connections, so far
	missed  uint64 // events of connections, before the last walk
	occupancies
}

// LoadServer loads the programs, see LoadEdge.
func LoadServer(pins *Pins, c ServerConfig) (*Server, error) {
	spec, err := loadServer()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	s := &Server{config: c, links: make(map[string]link.Link)}
	s.slots, s.identities = slotsFor(c.Epochs), identify(c.Services, idsOf(formerModes(pins, spec)))
	if c.Proxy != nil {
		s.identities = c.Edge.identities
	}
	if err := s.shape(spec); err != nil {
		return nil, err
	}
	if err := s.load(pins, spec); err != nil {
		return nil, err
	}
	m := &s.objects.serverMaps
	s.tables = tables{m.Keys, m.Clock, m.Services, m.Prefixes4, m.Prefixes6, m.PortRanges, m.Counters, m.Labels, s.slots, s.identities}
	if err := errors.Join(s.prepare(), s.writeModes(formerModes(pins, spec))); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) shape(spec *ebpf.CollectionSpec) error {
	c := &s.config
	spec.Maps["keys"].MaxEntries = uint32(max(len(c.Domains), 1)) * s.slots
	spec.Maps["recent"].MaxEntries = uint32(c.Recent)
	spec.Maps["half_open"].MaxEntries = halfOpen
	spec.Maps["flows"].MaxEntries = uint32(max(c.Translated, 1))
	spec.Maps["held"].MaxEntries = 1
	if len(c.Tenants) > 0 {
		spec.Maps["held"].MaxEntries = heldPackets
	}
	spec.Maps["syns"].MaxEntries = 1
	if c.Proxy != nil {
		spec.Maps["syns"].MaxEntries = halfOpen
	}
	spec.Maps["established"].MaxEntries = 1
	if c.HearsEdges {
		spec.Maps["established"].MaxEntries = uint32(serverEstablishedLimitESTABLISHED_MAX)
	}
	cookie, err := netnsCookie()
	if err != nil {
		return err
	}
	inside, outside := c.Proxy.bridge()
	return setConstants(spec, map[string]any{
		"key_slot_mask": s.slots - 1,
		"link_length":   linkLength(slices.Concat(c.Interfaces, c.Tenants, c.Proxy.inside())),
		"proxy_inside":  inside,
		"proxy_outside": outside,
		"own_tags":      c.Edge != nil,
		"strict":        c.Strict,
		"service_count": s.highest(),
		"hears_edges":   c.HearsEdges,
		"netns_cookie":  cookie,
		"in_vrf":        slices.ContainsFunc(c.Interfaces, func(i Interface) bool { return i.VRF != nil }),
	})
}

const tcxNext = -1 // TCX_NEXT: the packet is the next program's

// leaveOut empties the programs of shapes that this agent does not have: to verify
// them takes longer than all else of a start.
func (s *Server) leaveOut(spec *ebpf.CollectionSpec) {
	for programs, has := range map[string]bool{
		"server_": len(s.config.Interfaces) > 0, "tenant_": len(s.config.Tenants) > 0, "proxy_": s.config.Proxy != nil,
	} {
		for name, p := range spec.Programs {
			if !has && p.Type == ebpf.SchedCLS && strings.HasPrefix(name, programs) {
				p.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, tcxNext), asm.Return()}
			}
		}
	}
}

func (s *Server) load(pins *Pins, spec *ebpf.CollectionSpec) error {
	s.leaveOut(spec)
	shared := make(map[string]*ebpf.Map)
	if edge := s.config.Edge; edge != nil { // the host shape
		shared["keys"], shared["clock"] = edge.keys, edge.clock
		if s.config.Proxy != nil {
			shared["services"], shared["port_ranges"] = edge.services, edge.ranges
			shared["prefixes4"], shared["prefixes6"] = edge.prefixes4, edge.prefixes6
			shared["flows"] = edge.objects.Flows
		}
	}
	if err := keepSizes(pins, spec, "flows", "half_open"); err != nil {
		return err
	}
	for name, m := range shared {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	adopted, err := loadShared(pins, spec, &s.objects,
		[][]string{{"counters"}, {"recent"}, {"clock"}, {"flows"}, {"half_open"}, {"syns"}, {"enforced_until"}, {"edges"},
			{"established", "established_round"}}, shared)
	if err != nil {
		return err
	}
	if adopted["counters"] {
		if err := clearCounters(s.objects.Counters, s.fresh); err != nil {
			return err
		}
	}
	return s.heedFlows()
}

func (s *Server) prepare() error {
	for _, prefix := range s.config.Allowed {
		if err := putPrefix(s.objects.Allowed4, s.objects.Allowed6, prefix, uint8(1)); err != nil {
			return err
		}
	}
	if err := s.writeVRFs(); err != nil {
		return err
	}
	if s.config.Proxy != nil {
		return nil // the edge has written them
	}
	return s.writeServices(s.config.Services, s.config.Table, s.config.Domains)
}

// SetServices changes what is said of the services, in the order that they had.
// Their modes stay: an operator may have chosen others.
func (s *Server) SetServices(services []policy.Service) error {
	states, err := s.States()
	if err != nil {
		return err
	}
	modes := make(map[string]policy.Mode, len(states))
	for i := range states {
		modes[states[i].Name] = states[i].Mode
	}
	services = slices.Clone(services)
	for i := range services {
		services[i].Mode = modes[services[i].Name]
	}
	return s.writePolicies(services, s.config.Domains)
}

// writeVRFs names to each port of a VRF, and to the VRF, the VRF's device.
func (s *Server) writeVRFs() error {
	for _, i := range s.config.Interfaces {
		if i.VRF == nil {
			continue
		}
		for _, index := range []int{i.Index, i.VRF.Index} {
			if err := s.objects.Vrfs.Put(uint32(index), uint32(i.VRF.Index)); err != nil {
				return fmt.Errorf("write VRF %s: %w", i.VRF.Name, err)
			}
		}
	}
	return nil
}

// netnsCookie identifies the current network namespace to the kernel's
// tracepoint, which sees all of them.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read cookie of the network namespace: %w", err)
	}
	return cookie, nil
}

// Attach pins the maps and puts the programs in their places: first the
// memory, then what relies on it.
func (s *Server) Attach(pins *Pins) error {
	if err := pinMaps(pins, map[string]*ebpf.Map{
		"counters": s.objects.Counters, "recent": s.objects.Recent, "keys": s.objects.Keys,
		"flows": s.objects.Flows, "half_open": s.objects.HalfOpen,
		"clock": s.objects.Clock, "services": s.objects.Services,
		"enforced_until": s.objects.EnforcedUntil, "edges": s.objects.Edges,
		"established": s.objects.Established, "established_round": s.objects.EstablishedRound,
		"labels": s.objects.Labels, "prefixes4": s.objects.Prefixes4, "prefixes6": s.objects.Prefixes6, "port_ranges": s.objects.PortRanges,
	}); err != nil {
		return err
	}
	if err := attachTracing(pins, s.links, "established", s.objects.ServerEstablished); err != nil {
		return err
	}
	for _, i := range s.hooks() { // what could not be translated back is never translated
		if err := attachTC(pins, s.links, i, s.objects.ServerEgress, ebpf.AttachTCXEgress); err != nil {
			return err
		}
	}
	for _, i := range s.hooks() {
		if err := attachTC(pins, s.links, i, s.objects.ServerIngress, ebpf.AttachTCXIngress); err != nil {
			return err
		}
	}
	if err := s.attachTenants(pins); err != nil {
		return err
	}
	if err := s.heedFlows(); err != nil { // which the former programs made until now
		return err
	}
	return pins.keepLinks(s.links)
}

// hooks are the interfaces with, before them, the VRFs that they send to.
func (s *Server) hooks() []Interface {
	var all []Interface
	for _, i := range s.config.Interfaces {
		isThere := func(other Interface) bool { return i.VRF != nil && other.Index == i.VRF.Index }
		if i.VRF != nil && !slices.ContainsFunc(all, isThere) {
			all = append(all, Interface{Name: i.VRF.Name, Index: i.VRF.Index})
		}
	}
	return append(all, s.config.Interfaces...)
}

// Undo takes off what Attach newly put in place.
func (s *Server) Undo(pins *Pins) { pins.undo() }

// AdoptedOffset is the clock offset that an earlier daemon left, 0 if none.
func (s *Server) AdoptedOffset() int64 {
	c, err := s.GetClock()
	if err != nil {
		return 0
	}
	return c.OffsetNS
}

// Close lets go of everything; what is pinned goes on.
func (s *Server) Close() error {
	closeLinks(s.links)
	return s.objects.Close()
}
