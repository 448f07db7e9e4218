package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"smartcookie/internal/policy"
)

// maxPeers is how many peers a daemon can have (AGENTS_MAX of the data plane).
const maxPeers = 1024

// Control is an endpoint for control messages.
type Control struct {
	Listen netip.AddrPort
	Device string // that owns the address; the socket is bound to it
	ID     uint32
	Domain string // of a server's keys
	Agents []Agent
	Edges  []ControlEdge
}

// Agent is an agent that an edge believes about the addresses it protects.
type Agent struct {
	ID       uint32
	Address  netip.AddrPort
	Domain   string
	Protects []netip.Prefix
}

// ControlEdge is an edge to which a server agent speaks.
type ControlEdge struct {
	ID      uint32
	Address netip.AddrPort
}

type edgeControlFile struct {
	Listen string      `yaml:"listen"`
	ID     *int        `yaml:"id"`
	Agents []agentFile `yaml:"agents"`
}

type agentFile struct {
	ID       *int     `yaml:"id"`
	Address  string   `yaml:"address"`
	Domain   string   `yaml:"domain"`
	Protects []string `yaml:"protects"`
}

type serverControlFile struct {
	Listen string       `yaml:"listen"`
	ID     *int         `yaml:"id"`
	Domain string       `yaml:"domain"`
	Edges  []edgePeerIn `yaml:"edges"`
}

type edgePeerIn struct {
	ID      *int   `yaml:"id"`
	Address string `yaml:"address"`
}

// readControl reads an edge's section; without one there are no messages.
func (c *Edge) readControl(src *source, f *edgeControlFile) (err error) {
	if f == nil {
		return nil
	}
	c.Control = &Control{}
	if err := src.endpoint(c.Control, f.Listen, f.ID); err != nil {
		return err
	}
	if err := c.checkInside(src); err != nil {
		return err
	}
	if len(f.Agents) == 0 || len(f.Agents) > maxPeers {
		return src.fail("$.control.agents", "control names %d agents: 1 to %d", len(f.Agents), maxPeers)
	}
	var protected []netip.Prefix
	for i := range f.Agents {
		path := fmt.Sprintf("$.control.agents[%d]", i)
		a := Agent{Domain: f.Agents[i].Domain}
		if a.Domain == "" {
			a.Domain = "default"
		}
		a.ID, a.Address, err = src.peer(path, f.Agents[i].ID, f.Agents[i].Address)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(c.Control.Agents, func(b Agent) bool { return a.ID == b.ID || a.Address == b.Address }) {
			return src.fail(path, "a second agent with this id or address")
		}
		if a.Protects, err = src.prefixes(path+".protects", f.Agents[i].Protects); err != nil {
			return err
		}
		if len(a.Protects) == 0 {
			return src.fail(path, "agent %d protects nothing: list its addresses", a.ID)
		}
		for _, p := range a.Protects {
			if slices.Contains(protected, p) {
				return src.fail(path+".protects", "%s is listed twice", p)
			}
			protected = append(protected, p)
		}
		c.Control.Agents = append(c.Control.Agents, a)
	}
	return nil
}

// checkInside refuses an address that clients could reach by design.
func (c *Edge) checkInside(src *source) error {
	for _, port := range c.Outside {
		if port.Name == c.Control.Device {
			return src.fail("$.control.listen", "%s is on %s, which is outside", c.Control.Listen, port.Name)
		}
	}
	if c.Forward == "bridge" && c.Inside[0].Name == c.Control.Device {
		return src.fail("$.control.listen", "%s is on %s, a port of the bridge, which receives nothing itself: use another interface inside", c.Control.Listen, c.Inside[0].Name)
	}
	return nil
}

func (c *Server) readControl(src *source, f *serverControlFile) (err error) {
	if f == nil {
		return nil
	}
	c.Control = &Control{Domain: f.Domain}
	if c.Control.Domain == "" {
		c.Control.Domain = c.Services[0].Domain
	}
	if err := src.endpoint(c.Control, f.Listen, f.ID); err != nil {
		return err
	}
	if len(f.Edges) == 0 || len(f.Edges) > maxPeers {
		return src.fail("$.control.edges", "control names %d edges: 1 to %d", len(f.Edges), maxPeers)
	}
	for i := range f.Edges {
		path := fmt.Sprintf("$.control.edges[%d]", i)
		var e ControlEdge
		if e.ID, e.Address, err = src.peer(path, f.Edges[i].ID, f.Edges[i].Address); err != nil {
			return err
		}
		if slices.ContainsFunc(c.Control.Edges, func(b ControlEdge) bool { return e.ID == b.ID || e.Address == b.Address }) {
			return src.fail(path, "a second edge with this id or address")
		}
		c.Control.Edges = append(c.Control.Edges, e)
	}
	return nil
}

// endpoint reads where messages are received, and under which id.
func (s *source) endpoint(c *Control, listen string, id *int) (err error) {
	if c.ID, err = s.peerID("$.control", id); err != nil {
		return err
	}
	if c.Listen, err = s.addressPort("$.control", "listen", listen); err != nil {
		return err
	}
	c.Device, err = deviceOf(c.Listen.Addr())
	if err != nil {
		return s.fail("$.control.listen", "%s", err)
	}
	return nil
}

func (s *source) peer(path string, id *int, address string) (uint32, netip.AddrPort, error) {
	n, err := s.peerID(path, id)
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	at, err := s.addressPort(path, "address", address)
	return n, at, err
}

func (s *source) peerID(path string, id *int) (uint32, error) {
	if id == nil || *id < 1 || *id > math.MaxInt32 {
		return 0, s.fail(path, "id is missing or not between 1 and %d", math.MaxInt32)
	}
	return uint32(*id), nil
}

func (s *source) addressPort(path, key, value string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(value)
	if err != nil || at.Port() == 0 || at.Addr().Zone() != "" || at.Addr().Is4In6() || at.Addr().IsUnspecified() {
		return at, s.fail(path+"."+key, "%s %q is no address with a port, such as 10.0.0.1:4789", key, value)
	}
	return at, nil
}

// deviceOf finds the interface that has an address.
func deviceOf(address netip.Addr) (string, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, d := range devices {
		addresses, err := d.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil || prefix.Addr().Unmap() != address {
				continue
			}
			if d.Flags&net.FlagLoopback != 0 {
				return "", fmt.Errorf("%s is on the loopback device: use an address of an interface inside", address)
			}
			return d.Name, nil
		}
	}
	return "", fmt.Errorf("no interface of this host has %s", address)
}

// AtAgent places an error at an agent, by its index in the list.
func (c *Edge) AtAgent(i int, err error) error {
	return c.source.at(fmt.Sprintf("$.control.agents[%d]", i), err)
}

// AtControl places an error at the section of the control messages.
func (c *Server) AtControl(err error) error { return c.source.at("$.control", err) }

// covered says whether agents announce the flows of all of a service.
func (c *Control) covered(s *policy.Service) bool {
	if c == nil {
		return false
	}
	for _, prefix := range s.Prefixes {
		if !slices.ContainsFunc(c.Agents, func(a Agent) bool { return a.covers(prefix) }) {
			return false
		}
	}
	return true
}

func (a *Agent) covers(inner netip.Prefix) bool {
	return slices.ContainsFunc(a.Protects, func(p netip.Prefix) bool {
		return p.Bits() <= inner.Bits() && p.Contains(inner.Addr())
	})
}

// silentNames are the choices of a service whose agent is silent.
var silentNames = map[string]policy.OnSilence{
	"": policy.SilentKeep, "keep": policy.SilentKeep, "pass": policy.SilentPass, "stop": policy.SilentStop,
}
