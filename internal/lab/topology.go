package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// The address plan, the same in both topologies: the hosts' networks are
// subnets of one that they share when the edge is a bridge.
//
//	client   10.99.1.2  fd99:0:0:1::2    also 10.100.0.0/16, fd99:4000::/48
//	attacker 10.99.2.2  fd99:0:0:2::2    floods from 10.128.0.0/9, fd99:8000::/32
//	server   10.99.3.2  fd99:0:0:3::2
//	edge     .1 and ::1 in each, if it routes
var (
	FloodSources4 = netip.MustParsePrefix("10.128.0.0/9")
	FloodSources6 = netip.MustParsePrefix("fd99:8000::/32")
	// Crowd4 and Crowd6 are addresses of many clients, all at the client's host.
	Crowd4 = netip.MustParsePrefix("10.100.0.0/16")
	Crowd6 = netip.MustParsePrefix("fd99:4000::/48")
)

const (
	hostPort   = "eth0"
	insidePort = "in0"
	bridgePort = "br0"

	routedBits4, sharedBits4 = 24, 16
	routedBits6, sharedBits6 = 64, 48
)

func address4(network, host byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 99, network, host})
}

func address6(network, host byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x99, 7: network, 15: host})
}

// cable is a veth pair, or two with a bad wire between them.
type cable struct {
	from, to         *Namespace
	fromPort, toPort string
	wire             *badWire // nil: a plain veth pair
}

// plan says where everything will be.
func (l *Lab) plan() {
	for i, host := range l.hosts() {
		host.Port = hostPort
		host.IPv4, host.IPv6 = address4(byte(i+1), 2), address6(byte(i+1), 2)
	}
	l.Edge.Inside = insidePort
	l.Edge.Outside = []string{"out0", "out1"}
	if l.options.Topology == Bridge || l.fabric() {
		l.Edge.Outside = []string{"out0"}
	}
	l.SecondEdge.Inside, l.SecondEdge.Outside = l.Edge.Inside, l.Edge.Outside
}

func (l *Lab) cables() []cable {
	if l.fabric() {
		return l.fabricCables()
	}
	outside, inside := l.badWires()
	inner := cable{l.Server.Namespace, l.Edge.Namespace, hostPort, insidePort, inside}
	var all []cable
	if l.options.Tenant {
		all = append(all, l.tenantCable())
		all[0].wire, inner.wire = inner.wire, nil
		inner.from = l.Home
	}
	if l.options.Topology == Bridge {
		return append(all, []cable{
			{l.Client.Namespace, l.Switch, hostPort, "client", outside},
			{l.Attacker.Namespace, l.Switch, hostPort, "attacker", nil},
			{l.Edge.Namespace, l.Switch, "out0", "edge", nil},
			inner,
		}...)
	}
	return append(all, []cable{
		{l.Client.Namespace, l.Edge.Namespace, hostPort, "out0", outside},
		{l.Attacker.Namespace, l.Edge.Namespace, hostPort, "out1", nil},
		inner,
	}...)
}

func (l *Lab) makeLinks() error {
	for _, c := range l.cables() {
		if err := l.connect(c); err != nil {
			return err
		}
	}
	return l.finishLinks()
}

// finishLinks makes the switch, and the ends that face an edge's XDP_TX take
// its frames. The attacker's end gets a sink.
func (l *Lab) finishLinks() error {
	if l.fabric() {
		return l.finishFabric()
	}
	if err := l.joinTenant(); err != nil {
		return err
	}
	if l.options.Topology == Route {
		return errors.Join(l.Client.Pass(hostPort), l.Attacker.Pass(hostPort))
	}
	if err := l.Switch.bridge("client", "attacker", "edge"); err != nil {
		return err
	}
	return l.Switch.Pass("edge")
}

// serverPeer is the port at the other end of the server's link.
func (l *Lab) serverPeer() (*Namespace, string) {
	if l.fabric() {
		return l.back, backPort
	}
	return l.Edge.Namespace, l.Edge.Inside
}

func (l *Lab) hosts() []*Host { return []*Host{&l.Client, &l.Attacker, &l.Server} }

func (l *Lab) connect(c cable) error {
	if c.wire == nil {
		return l.pair(c)
	}
	first, second := c.wire.ports()
	if err := errors.Join(
		l.pair(cable{from: c.from, to: l.wires, fromPort: c.fromPort, toPort: first}),
		l.pair(cable{from: c.to, to: l.wires, fromPort: c.toPort, toPort: second}),
	); err != nil {
		return err
	}
	return l.lay(c.wire)
}

// pair makes a veth pair with the offloads that XDP needs.
func (l *Lab) pair(c cable) error {
	if err := l.join(c); err != nil {
		return err
	}
	return errors.Join(c.from.prepare(c.fromPort), c.to.prepare(c.toPort))
}

// join makes a veth pair.
func (l *Lab) join(c cable) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Namespace, attrs.MTU = c.fromPort, netlink.NsFd(c.from.handle), l.options.MTU
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: c.toPort, PeerNamespace: netlink.NsFd(c.to.handle)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("connect %s to %s by a veth pair: %w", c.from.Name, c.to.Name, err)
	}
	return errors.Join(c.from.up(c.fromPort), c.to.up(c.toPort))
}

func (n *Namespace) up(port string) error {
	link, err := n.link.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", port, n.Name, err)
	}
	if err := n.link.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s in %s up: %w", port, n.Name, err)
	}
	return nil
}

// bridge joins ports by a plain Linux bridge.
func (n *Namespace) bridge(ports ...string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgePort
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := n.link.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make a bridge in %s: %w", n.Name, err)
	}
	for _, port := range ports {
		link, err := n.link.LinkByName(port)
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", port, n.Name, err)
		}
		if err := n.link.LinkSetMaster(link, bridge); err != nil {
			return fmt.Errorf("add %s to the bridge in %s: %w", port, n.Name, err)
		}
	}
	return n.up(bridgePort)
}

// JoinEdge lets the kernel of a bridging edge pass packets between its ports;
// without it, and without an agent, the edge is a gap.
func (l *Lab) JoinEdge() error {
	if _, err := l.Edge.link.LinkByName(bridgePort); err == nil {
		return nil // joined already
	}
	return l.Edge.bridge(l.Edge.Outside[0], l.Edge.Inside)
}

// PartEdge undoes JoinEdge.
func (l *Lab) PartEdge() error { return l.Edge.unbridge() }

// unbridge removes the namespace's bridge, if there is one.
func (n *Namespace) unbridge() error {
	bridge, err := n.link.LinkByName(bridgePort)
	if err != nil {
		return nil // not joined
	}
	if err := n.link.LinkDel(bridge); err != nil {
		return fmt.Errorf("remove the bridge in %s: %w", n.Name, err)
	}
	return nil
}

// HardwareAddr returns the Ethernet address of a port.
func (n *Namespace) HardwareAddr(port string) (net.HardwareAddr, error) {
	link, err := n.link.LinkByName(port)
	if err != nil {
		return nil, fmt.Errorf("find %s in %s: %w", port, n.Name, err)
	}
	return link.Attrs().HardwareAddr, nil
}
