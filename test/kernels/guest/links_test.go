package guest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

// addressing is what a device of a namespace has, or shall have.
type addressing struct {
	addresses []netip.Prefix
	gateways  []netip.Addr
}

// hostAddressing is that of an end host; in a bridged lab all share one network.
func hostAddressing(topology lab.Topology, h lab.Host) addressing {
	if topology == lab.Bridge {
		return addressing{addresses: []netip.Prefix{netip.PrefixFrom(h.IPv4, 16), netip.PrefixFrom(h.IPv6, 48)}}
	}
	return addressing{
		addresses: []netip.Prefix{netip.PrefixFrom(h.IPv4, 24), netip.PrefixFrom(h.IPv6, 64)},
		gateways:  []netip.Addr{gatewayOf(h.IPv4), gatewayOf(h.IPv6)},
	}
}

// gatewayAddressing is that of the edge's port towards a host.
func gatewayAddressing(h lab.Host) addressing {
	return addressing{addresses: []netip.Prefix{netip.PrefixFrom(gatewayOf(h.IPv4), 24), netip.PrefixFrom(gatewayOf(h.IPv6), 64)}}
}

// gatewayOf is the first address of a host's network.
func gatewayOf(host netip.Addr) netip.Addr { return host.Prev() }

// inside runs fn in a namespace.
func inside(t *testing.T, at *lab.Namespace, fn func() error) {
	t.Helper()
	if err := at.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// strip takes all addresses of global scope from a device.
func strip(name string) error {
	device, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	addresses, err := netlink.AddrList(device, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	for _, address := range addresses {
		if address.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		if err := netlink.AddrDel(device, &address); err != nil {
			return fmt.Errorf("take %s from %s: %w", address.IPNet, name, err)
		}
	}
	return nil
}

// dress gives a device its addresses and routes; table is that of its VRF, or
// 0. It may have some of them.
func dress(name string, a addressing, table int) error {
	device, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(device); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	for _, prefix := range a.addresses {
		address := &netlink.Addr{IPNet: ipNet(prefix)}
		if prefix.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(device, address); err != nil {
			return fmt.Errorf("give %s to %s: %w", prefix, name, err)
		}
	}
	for _, gateway := range a.gateways {
		everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gateway.Is6() {
			everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		route := &netlink.Route{LinkIndex: device.Attrs().Index, Dst: ipNet(everything), Gw: gateway.AsSlice(), Table: table}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("route via %s at %s: %w", gateway, name, err)
		}
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// stackVLAN puts VLAN devices on a port, the outer tag first, moves addresses
// to the upper one and returns its name: "eth0.10", "eth0.20.10".
func stackVLAN(t *testing.T, at *lab.Namespace, port string, tags []wire.Tag, a addressing) string {
	t.Helper()
	name := port
	inside(t, at, func() error {
		if err := strip(port); err != nil {
			return err
		}
		for _, tag := range tags {
			var err error
			if name, err = addVLAN(name, tag); err != nil {
				return err
			}
		}
		return dress(name, a, 0)
	})
	return name
}

// addVLAN makes the device of a tag. The port has no offload that would keep
// the tag beside the frame, where XDP at the other end would not see it.
func addVLAN(parent string, tag wire.Tag) (string, error) {
	device, err := netlink.LinkByName(parent)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", parent, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = fmt.Sprintf("%s.%d", parent, tag.ID), device.Attrs().Index
	attrs.MTU = device.Attrs().MTU - 4
	vlan := &netlink.Vlan{LinkAttrs: attrs, VlanId: int(tag.ID), VlanProtocol: netlink.VlanProtocol(tag.Type)}
	if err := errors.Join(netlink.LinkAdd(vlan), netlink.LinkSetUp(vlan)); err != nil {
		return "", fmt.Errorf("make %s: %w", attrs.Name, err)
	}
	return attrs.Name, nil
}

// addVRF makes a VRF, moves a port into it and gives that back what it lost.
func addVRF(t *testing.T, at *lab.Namespace, name, port string, a addressing) {
	t.Helper()
	const table = 100
	inside(t, at, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		vrf := &netlink.Vrf{LinkAttrs: attrs, Table: table}
		if err := errors.Join(netlink.LinkAdd(vrf), netlink.LinkSetUp(vrf)); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		return errors.Join(enslave(port, vrf), dress(port, a, table))
	})
}

func enslave(port string, to netlink.Link) error {
	device, err := netlink.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find %s: %w", port, err)
	}
	if err := netlink.LinkSetMaster(device, to); err != nil {
		return fmt.Errorf("put %s into %s: %w", port, to.Attrs().Name, err)
	}
	return nil
}

// addBond makes a bond of a port, with its addresses.
func addBond(t *testing.T, at *lab.Namespace, name, port string, a addressing) {
	t.Helper()
	inside(t, at, func() error {
		device, err := netlink.LinkByName(port)
		if err != nil {
			return fmt.Errorf("find %s: %w", port, err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		bond := netlink.NewLinkBond(attrs)
		bond.Mode, bond.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, 100
		if err := errors.Join(strip(port), netlink.LinkSetDown(device), netlink.LinkAdd(bond)); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		return errors.Join(enslave(port, bond), netlink.LinkSetUp(device), dress(name, a, 0))
	})
}
