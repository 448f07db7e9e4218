package check

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"smartcookie/internal/edge"
)

// probeDevices looks at interfaces; as has what the configuration says of them.
func (f *Facts) probeDevices(all []net.Interface, as Device) {
	for _, i := range all {
		d := as
		d.Name, d.MTU, d.Up = i.Name, i.MTU, i.Flags&net.FlagUp != 0
		d.Driver, d.Tagged = edge.DriverOf(i.Name), edge.CarriesVLAN(i.Name)
		var refused *edge.DeviceError
		if errors.As(edge.RefuseVRF(i.Name), &refused) {
			d.Refused = refused
		}
		f.see(devicePort, func() error { return d.probeLink() })
		if f.Shape != Server {
			d.probeOffloads(f)
			f.see(xdpNative, func() (err error) { d.XDP, err = xdpFeatures(i.Index); return err })
		}
		f.Devices = append(f.Devices, d)
	}
}

func (d *Device) probeLink() error {
	link, err := netlink.LinkByName(d.Name)
	if err != nil {
		return fmt.Errorf("look at %s: %w", d.Name, err)
	}
	d.Kind = link.Type()
	if xdp := link.Attrs().Xdp; xdp != nil && xdp.Attached {
		d.Program = xdp.ProgId
	}
	if link.Attrs().MasterIndex == 0 {
		return nil
	}
	master, err := netlink.LinkByIndex(link.Attrs().MasterIndex)
	if err != nil {
		return fmt.Errorf("look at the master of %s: %w", d.Name, err)
	}
	d.Master, d.MasterKind = master.Attrs().Name, master.Type()
	return nil
}

// probeOffloads asks the driver. A device without ethtool has no such offloads.
func (d *Device) probeOffloads(f *Facts) {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		f.see(topicOf("offload-merging"), func() error { return fmt.Errorf("open ethtool: %w", err) })
		return
	}
	defer tool.Close()
	if features, err := tool.Features(d.Name); err == nil {
		d.Features = features
	}
	if channels, err := tool.GetChannels(d.Name); err == nil {
		d.Queues = int(max(channels.MaxCombined, channels.MaxTx))
	}
}

// From linux/netdev.h.
const (
	netdevFamily      = "netdev"
	netdevGet         = 1 // NETDEV_CMD_DEV_GET
	netdevIndex       = 1 // NETDEV_A_DEV_IFINDEX
	netdevXDPFeatures = 3 // NETDEV_A_DEV_XDP_FEATURES
)

// xdpFeatures asks the kernel what of XDP a device's driver has.
func xdpFeatures(index int) (*uint64, error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if err != nil {
		return nil, fmt.Errorf("this kernel does not tell whether drivers have XDP (before Linux 6.3): %w", err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(genericHeader{netdevGet, uint8(family.Version), 0, 0})
	request.AddData(nl.NewRtAttr(netdevIndex, nl.Uint32Attr(uint32(index))))
	messages, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, fmt.Errorf("ask for the XDP features of device %d: %w", index, err)
	}
	for _, m := range messages {
		if features, ok := parseXDPFeatures(m); ok {
			return &features, nil
		}
	}
	return nil, fmt.Errorf("the kernel tells no XDP features of device %d", index)
}

// genericHeader is struct genlmsghdr: command, version, and two bytes that the kernel
// wants to be zero (which nl.Genlmsg leaves to chance).
type genericHeader [nl.SizeofGenlmsg]byte

func (h genericHeader) Len() int          { return len(h) }
func (h genericHeader) Serialize() []byte { return h[:] }

func parseXDPFeatures(m []byte) (uint64, bool) {
	if len(m) < nl.SizeofGenlmsg {
		return 0, false
	}
	attributes, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
	if err != nil {
		return 0, false
	}
	for _, a := range attributes {
		if a.Attr.Type == netdevXDPFeatures && len(a.Value) == 8 {
			return binary.NativeEndian.Uint64(a.Value), true
		}
	}
	return 0, false
}

// probeForwarding asks for the families that the services have.
func (f *Facts) probeForwarding() {
	families := make(map[string]bool)
	for _, s := range f.Services {
		for _, p := range s.Prefixes {
			families["ipv4"] = families["ipv4"] || p.Addr().Is4()
			families["ipv6"] = families["ipv6"] || p.Addr().Is6()
		}
	}
	for i := range f.Devices {
		for _, family := range []string{"ipv4", "ipv6"} {
			if families[family] && !edge.Forwards(family, f.Devices[i].Name) {
				f.Devices[i].NotForwarding = append(f.Devices[i].NotForwarding, family)
			}
		}
	}
}

// addresses lists those of this network namespace.
func addresses() (all []Address) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil // without devices nothing else is found either
	}
	for _, link := range links {
		kind := link.Type()
		if link.Attrs().Flags&net.FlagLoopback != 0 {
			kind = "loopback"
		}
		found, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			continue // it has just gone
		}
		for _, a := range found {
			if address, ok := netip.AddrFromSlice(a.IP); ok {
				all = append(all, Address{address.Unmap(), link.Attrs().Name, kind})
			}
		}
	}
	return all
}
