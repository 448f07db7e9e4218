package dataplane

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smartcookie/internal/control"
	"smartcookie/internal/policy"
)

// skbContext begins struct __sk_buff: what a run of a program may set there.
type skbContext struct {
	_       [10]uint32
	Ifindex uint32
	_       uint32
	CB      [5]uint32
}

// Serves says whether a service that is not off is at an address and port.
func (s *Server) Serves(at netip.AddrPort) bool {
	i, ok := policy.Protects(s.config.Services, at.Addr(), at.Port())
	if !ok {
		return false
	}
	var v edgeService
	return s.services.Lookup(s.id(i), &v) == nil && policy.Mode(v.Mode) != policy.Off
}

// IsLocal asks the kernel whether an address is this host's own. Fail closed:
// an address that it says nothing of is not.
func (s *Server) IsLocal(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// Inject lets a packet, from its IP header on, come in by the device that owns
// its destination, as if it came from the wire.
func (s *Server) Inject(f control.Flow, packet []byte, onlyKnown bool) error {
	device, err := s.owner(f.Server.Addr())
	if err != nil {
		return err
	}
	order := serverInjectOrderINJECT_PACKET
	if onlyKnown {
		order |= serverInjectOrderINJECT_IF_KNOWN
	}
	result, err := s.runInject(packet, device, order)
	if err == nil && result&serverInjectResultINJECT_DONE == 0 && !onlyKnown {
		return fmt.Errorf("inject packet at %s: the kernel has refused it", device.Attrs().Name)
	}
	return err
}

// Known says whether the kernel has the connection of a packet.
func (s *Server) Known(f control.Flow, packet []byte) (bool, error) {
	device, err := s.owner(f.Server.Addr())
	if err != nil {
		return false, err
	}
	result, err := s.runInject(packet, device, 0)
	return result&serverInjectResultINJECT_KNOWN != 0, err
}

func (s *Server) runInject(packet []byte, device netlink.Link, order serverInjectOrder) (serverInjectResult, error) {
	context := skbContext{Ifindex: uint32(device.Attrs().Index), CB: [5]uint32{uint32(order)}}
	code, err := s.objects.ServerInject.Run(&ebpf.RunOptions{Data: ethernetFrame(packet, device), Context: context})
	if err != nil {
		return 0, fmt.Errorf("inject packet at %s: %w", device.Attrs().Name, err)
	}
	return serverInjectResult(code), nil
}

// ethernetFrame puts a header before a packet, to the device's own address.
func ethernetFrame(packet []byte, device netlink.Link) []byte {
	const addresses, ip4, ip6 = 12, "\x08\x00", "\x86\xdd"
	frame := make([]byte, addresses, addresses+len(ip4)+len(packet))
	copy(frame, device.Attrs().HardwareAddr)
	if packet[0]>>4 == 4 {
		return append(append(frame, ip4...), packet...)
	}
	return append(append(frame, ip6...), packet...)
}

// owner is the device that has an address; where none of ours has
// (an address of the loopback device), the first.
func (s *Server) owner(a netip.Addr) (netlink.Link, error) {
	all := s.config.Interfaces
	index := all[0].Index
	for _, i := range all[1:] {
		if owns(i.Index, a) {
			index = i.Index
		}
	}
	return s.devices.find(index)
}

// deviceCache asks for a device no more than once a second: that takes longer
// than all else about a packet. One goroutine at a time may use it.
type deviceCache struct {
	known map[int]netlink.Link
	since time.Time
}

func (c *deviceCache) find(index int) (netlink.Link, error) {
	if c.known == nil || time.Since(c.since) > time.Second {
		c.known, c.since = make(map[int]netlink.Link), time.Now()
	}
	if device, ok := c.known[index]; ok {
		return device, nil
	}
	device, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find device %d: %w", index, err)
	}
	c.known[index] = device
	return device, nil
}

func owns(device int, a netip.Addr) bool {
	addresses, err := netlink.AddrList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: device}}, netlink.FAMILY_ALL)
	if err != nil {
		return false // it has gone
	}
	for _, other := range addresses {
		if have, ok := netip.AddrFromSlice(other.IP); ok && have.Unmap() == a {
			return true
		}
	}
	return false
}
