package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// neighbour is one end of a network as the others see it.
type neighbour struct {
	namespace *Namespace
	port      string
	address   []netip.Addr
}

func (h *Host) neighbour() neighbour {
	return neighbour{h.Namespace, h.Port, []netip.Addr{h.IPv4, h.IPv6}}
}

func (l *Lab) makeRoutes() error {
	for _, m := range l.members() {
		if err := (*m.at).up("lo"); err != nil {
			return err
		}
	}
	if l.options.Topology == Bridge {
		return l.shareNetwork()
	}
	if l.fabric() {
		return l.routeFabric()
	}
	return l.routeNetworks()
}

// shareNetwork puts all hosts on one link.
func (l *Lab) shareNetwork() error {
	for _, host := range l.hosts() {
		if err := host.assign(hostPort, host.IPv4, sharedBits4, host.IPv6, sharedBits6); err != nil {
			return err
		}
		for _, other := range l.hosts() {
			if other == host {
				continue
			}
			if err := l.introduce(host.neighbour(), other.neighbour()); err != nil {
				return err
			}
		}
	}
	return l.routeSources(l.Server.Namespace)
}

// routeNetworks gives each host a network of its own with the edge as router.
func (l *Lab) routeNetworks() error {
	ports := append(append([]string{}, l.Edge.Outside...), l.Edge.Inside)
	for i, host := range l.hosts() {
		network := byte(i + 1)
		gateway := neighbour{l.Edge.Namespace, ports[i], []netip.Addr{address4(network, 1), address6(network, 1)}}
		if err := host.assign(hostPort, host.IPv4, routedBits4, host.IPv6, routedBits6); err != nil {
			return err
		}
		if err := l.Edge.assign(gateway.port, gateway.address[0], routedBits4, gateway.address[1], routedBits6); err != nil {
			return err
		}
		if err := errors.Join(l.introduce(host.neighbour(), gateway), l.introduce(gateway, host.neighbour())); err != nil {
			return err
		}
		for _, via := range gateway.address {
			if err := host.route(everything(via), via); err != nil {
				return err
			}
		}
	}
	return l.routeSources(l.Edge.Namespace)
}

func everything(family netip.Addr) netip.Prefix {
	if family.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// routeSources shows a namespace the way to the flood's sources and to the crowd.
func (l *Lab) routeSources(from *Namespace) error {
	return errors.Join(from.route(FloodSources4, l.Attacker.IPv4), from.route(FloodSources6, l.Attacker.IPv6),
		from.route(Crowd4, l.Client.IPv4), from.route(Crowd6, l.Client.IPv6), l.gatherCrowd())
}

// gatherCrowd makes the crowd's addresses the client's own.
func (l *Lab) gatherCrowd() error {
	lo, err := l.Client.link.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo in %s: %w", l.Client.Name, err)
	}
	for _, prefix := range []netip.Prefix{Crowd4, Crowd6} {
		route := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: network(prefix), Type: unix.RTN_LOCAL,
			Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		}
		if err := l.Client.link.RouteAdd(route); err != nil {
			return fmt.Errorf("make %s local in %s: %w", prefix, l.Client.Name, err)
		}
	}
	return l.Client.Sysctl("net.ipv6.ip_nonlocal_bind", "1")
}

// assign gives a port its addresses; the IPv6 one is usable at once.
func (n *Namespace) assign(port string, ip4 netip.Addr, bits4 int, ip6 netip.Addr, bits6 int) error {
	link, err := n.link.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", port, n.Name, err)
	}
	for _, prefix := range []netip.Prefix{netip.PrefixFrom(ip4, bits4), netip.PrefixFrom(ip6, bits6)} {
		address := &netlink.Addr{IPNet: network(prefix)}
		if prefix.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := n.link.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add %s to %s in %s: %w", prefix, port, n.Name, err)
		}
	}
	return nil
}

func (n *Namespace) route(to netip.Prefix, via netip.Addr) error {
	route := &netlink.Route{Dst: network(to), Gw: via.AsSlice()}
	if err := n.link.RouteAdd(route); err != nil {
		return fmt.Errorf("route %s via %s in %s: %w", to, via, n.Name, err)
	}
	return nil
}

// introduce makes other a permanent neighbour of host.
func (l *Lab) introduce(host, other neighbour) error {
	if l.options.Resolve {
		return nil
	}
	link, err := host.namespace.link.LinkByName(host.port)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", host.port, host.namespace.Name, err)
	}
	hardware, err := other.namespace.HardwareAddr(other.port)
	if err != nil {
		return err
	}
	for _, address := range other.address {
		entry := &netlink.Neigh{
			LinkIndex:    link.Attrs().Index,
			State:        netlink.NUD_PERMANENT,
			IP:           address.AsSlice(),
			HardwareAddr: hardware,
		}
		if err := host.namespace.link.NeighSet(entry); err != nil {
			return fmt.Errorf("make %s a neighbour in %s: %w", address, host.namespace.Name, err)
		}
	}
	return nil
}

func network(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}
}
