// Package netstack is a second TCP stack for tests: gVisor's, in user space. It
// shares a device with a kernel, but has addresses of its own, for which it
// answers ARP and neighbour discovery; the kernel owns none of them and says
// nothing. So what a test finds is no habit that Linux has on both ends.
package netstack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	nic       = 1
	roomBytes = 16 << 20 // of the packet socket: a smaller one only drops
)

// Options say where a stack is in the network.
type Options struct {
	Device    string         // of the namespace in which Open is called
	Addresses []netip.Prefix // its own, one for each family at most
	Gateways  []netip.Addr   // its routers, likewise; none: all is on the link
	TimeWait  time.Duration  // 60 s if 0
}

// Stack is a TCP stack on a packet socket.
type Stack struct {
	stack *stack.Stack
	own   []netip.Prefix
	fd    int
	regro func() error // gives the device its merging back
}

// Open makes a stack on a device of the namespace that it is called in.
func Open(options Options) (made *Stack, err error) {
	device, err := net.InterfaceByName(options.Device)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", options.Device, err)
	}
	s := &Stack{own: options.Addresses, fd: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.regro, err = withoutMerging(options.Device); err != nil {
		return nil, err
	}
	if s.fd, err = openSocket(device.Index); err != nil {
		return nil, fmt.Errorf("open a packet socket on %s: %w", options.Device, err)
	}
	end, err := fdbased.New(&fdbased.Options{
		FDs: []int{s.fd}, MTU: uint32(device.MTU), EthernetHeader: true,
		Address: tcpip.LinkAddress(device.HardwareAddr),
		// Readv ends at the first frame for somebody else, and the kernel shows
		// us its own.
		PacketDispatchMode: fdbased.RecvMMsg,
	})
	if err != nil {
		return nil, fmt.Errorf("make a link endpoint on %s: %w", options.Device, err)
	}
	s.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	return s, s.configure(end, options)
}

// withoutMerging has a device hand over each frame as it came: merged ones have
// no checksum that a second stack could verify.
func withoutMerging(device string) (undo func() error, err error) {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return nil, fmt.Errorf("open ethtool: %w", err)
	}
	features, err := tool.Features(device)
	if err == nil {
		err = tool.Change(device, map[string]bool{"rx-gro": false})
	}
	if err != nil {
		tool.Close()
		return nil, fmt.Errorf("turn GRO of %s off: %w", device, err)
	}
	return func() error {
		defer tool.Close()
		if err := tool.Change(device, map[string]bool{"rx-gro": features["rx-gro"]}); err != nil && !gone(err) {
			return fmt.Errorf("restore GRO of %s: %w", device, err)
		}
		return nil
	}, nil
}

// gone tells that the device has been removed.
func gone(err error) bool { return errors.Is(err, syscall.ENODEV) }

func openSocket(device int) (int, error) {
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, roomBytes),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device}),
	)
}

func (s *Stack) configure(end stack.LinkEndpoint, options Options) error {
	if err := s.stack.CreateNIC(nic, end); err != nil {
		return fmt.Errorf("make an interface: %s", err)
	}
	for _, address := range options.Addresses {
		own := tcpip.ProtocolAddress{
			Protocol:          protocolOf(address.Addr()),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: addressOf(address.Addr()), PrefixLen: address.Bits()},
		}
		if err := s.stack.AddProtocolAddress(nic, own, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("add %s: %s", address, err)
		}
		s.stack.AddRoute(tcpip.Route{Destination: own.AddressWithPrefix.Subnet(), NIC: nic})
	}
	for _, gateway := range options.Gateways {
		everything := header.IPv4EmptySubnet
		if gateway.Is6() {
			everything = header.IPv6EmptySubnet
		}
		itself := tcpip.AddressWithPrefix{Address: addressOf(gateway), PrefixLen: gateway.BitLen()}
		s.stack.AddRoute(tcpip.Route{Destination: itself.Subnet(), NIC: nic})
		s.stack.AddRoute(tcpip.Route{Destination: everything, Gateway: addressOf(gateway), NIC: nic})
	}
	sack := tcpip.TCPSACKEnabled(true)
	wait := tcpip.TCPTimeWaitTimeoutOption(options.TimeWait)
	if options.TimeWait == 0 {
		wait = tcpip.TCPTimeWaitTimeoutOption(tcp.DefaultTCPTimeWaitTimeout)
	}
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &wait} {
		if err := s.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("set an option of TCP: %s", err)
		}
	}
	return nil
}

func addressOf(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

func protocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// Dial connects to an address, as net.Dialer does.
func (s *Stack) Dial(ctx context.Context, address string) (net.Conn, error) {
	return s.DialFrom(ctx, 0, address)
}

// DialFrom does so from a port of its own, or any if it is 0.
func (s *Stack) DialFrom(ctx context.Context, port uint16, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	from := tcpip.FullAddress{NIC: nic, Port: port}
	for _, own := range s.own {
		if own.Addr().Is4() == to.Addr().Is4() {
			from.Addr = addressOf(own.Addr())
		}
	}
	remote := tcpip.FullAddress{NIC: nic, Addr: addressOf(to.Addr()), Port: to.Port()}
	conn, err := gonet.DialTCPWithBind(ctx, s.stack, from, remote, protocolOf(to.Addr()))
	if err != nil {
		return nil, told(err)
	}
	return &Conn{conn}, nil
}

// Conn is a connection whose errors are those of the net package.
type Conn struct{ *gonet.TCPConn }

// Read reads, as net.Conn says.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	return n, told(err)
}

// Write writes, as net.Conn says.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	return n, told(err)
}

// told adds the error of the system to those that gVisor has as text only.
func told(err error) error {
	if err == nil {
		return nil
	}
	for text, number := range map[string]syscall.Errno{
		(&tcpip.ErrConnectionReset{}).String():   syscall.ECONNRESET,
		(&tcpip.ErrConnectionRefused{}).String(): syscall.ECONNREFUSED,
		(&tcpip.ErrConnectionAborted{}).String(): syscall.ECONNABORTED,
		(&tcpip.ErrPortInUse{}).String():         syscall.EADDRINUSE,
		(&tcpip.ErrTimeout{}).String():           syscall.ETIMEDOUT,
	} {
		if strings.Contains(err.Error(), text) {
			return fmt.Errorf("%w: %w", err, number)
		}
	}
	return err
}

// Close ends the stack and what it has open.
func (s *Stack) Close() error {
	if s.stack != nil {
		s.stack.Destroy()
		s.stack = nil
	}
	var errs []error
	if s.fd >= 0 {
		errs = append(errs, unix.Close(s.fd))
		s.fd = -1
	}
	if s.regro != nil {
		errs = append(errs, s.regro())
		s.regro = nil
	}
	return errors.Join(errs...)
}

// Retransmits counts the segments that the stack has sent again.
func (s *Stack) Retransmits() uint64 { return s.stack.Stats().TCP.Retransmits.Value() }
