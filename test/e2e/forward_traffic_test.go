package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

func TestFirstRequestSucceedsWhileNeighboursAreUnknown(t *testing.T) {
	need(t, "curl", "nginx", "ip")
	for _, shape := range allShapes {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{Resolve: true}, protection{})
			startNginx(t, l)
			for _, ipv6 := range []bool{false, true} {
				for _, at := range []*lab.Namespace{l.Client.Namespace, l.Edge.Namespace, l.Server.Namespace} {
					runIn(t, at, "ip", "neighbour", "flush", "all")
				}
				mustGreet(t, l.Client.Namespace, url(l, ipv6, "/hello"))
			}
		})
	}
}

func TestOtherTrafficPassesUntouched(t *testing.T) {
	for _, shape := range allShapes {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{Resolve: true}, protection{})
			for _, ipv6 := range []bool{false, true} {
				t.Run(family(ipv6), func(t *testing.T) {
					pingIs(t, l.Client, l.Server.Addr(ipv6))
					echo := echoUDP(t, l.Server, ipv6)
					for _, size := range []int{1, 1400, 20_000} { // the last in fragments
						datagramReturns(t, l.Client.Namespace, echo, size)
					}
				})
			}
		})
	}
}

// pingIs wants an ICMP echo answered.
func pingIs(t *testing.T, from lab.Host, to netip.Addr) {
	t.Helper()
	request, reply, network := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}, byte(0), "ip4:icmp"
	if to.Is6() {
		request, reply, network = []byte{128, 0, 0, 0, 0, 0, 0, 0}, 129, "ip6:ipv6-icmp"
	}
	var conn *net.IPConn
	err := from.Do(func() (err error) {
		conn, err = net.DialIP(network, nil, &net.IPAddr{IP: to.WithZone("").AsSlice(), Zone: to.Zone()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(request); err != nil {
		t.Error(err)
	}
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	answer := make([]byte, 100)
	for {
		n, _, err := conn.ReadFrom(answer)
		if err != nil {
			t.Errorf("no echo from %s: %v", to, err)
			return
		}
		if n > 0 && answer[0] == reply {
			return
		}
	}
}

// echoUDP answers datagrams on a host and returns its address.
func echoUDP(t *testing.T, h lab.Host, ipv6 bool) *net.UDPAddr {
	t.Helper()
	address := net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Addr(ipv6), 7))
	var conn *net.UDPConn
	err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return // closed
			}
			_, _ = conn.WriteTo(buffer[:n], from) // a lost answer shows at the other end
		}
	}()
	return address
}

func datagramReturns(t *testing.T, from *lab.Namespace, to *net.UDPAddr, size int) {
	t.Helper()
	var conn *net.UDPConn
	err := from.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, to)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent, got := bytes.Repeat([]byte{0x5a}, size), make([]byte, 1<<16)
	if _, err := conn.Write(sent); err != nil {
		t.Error(err)
	}
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := conn.Read(got); err != nil || !bytes.Equal(got[:n], sent) {
		t.Errorf("a datagram of %d bytes to %s: %d bytes came back: %v", size, to, n, err)
	}
}

func TestRoutingEdgesKernelTellsThatTheTimeIsExceeded(t *testing.T) {
	l := deploy(t, splitRoute, lab.Options{}, protection{})
	for _, ipv6 := range []bool{false, true} {
		got, err := lastHop(l.Client.Namespace, l.Server.Addr(ipv6))
		if want := gatewayOf(l.Client, ipv6); err != nil || got != want {
			t.Errorf("%s: time exceeded from %v, want %s: %v", family(ipv6), got, want, err)
		}
	}
}

// lastHop sends a datagram that may go one hop, as traceroute does, and returns
// who says that its time is exceeded.
func lastHop(from *lab.Namespace, to netip.Addr) (netip.Addr, error) {
	dialer := net.Dialer{Control: onSocket(func(fd int) error {
		if to.Is6() {
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 1),
				unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1))
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1))
	})}
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = dialer.Dial("udp", netip.AddrPortFrom(to, 33434).String())
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("probe")); err != nil {
		return netip.Addr{}, err
	}
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.EHOSTUNREACH) {
		return netip.Addr{}, fmt.Errorf("read: %w", err)
	}
	return offender(conn.(*net.UDPConn), to.Is6())
}

// offender reads who sent an ICMP error: an address behind struct
// sock_extended_err.
func offender(conn *net.UDPConn, ipv6 bool) (netip.Addr, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.Addr{}, err
	}
	control := make([]byte, 512)
	var n int
	if e := raw.Control(func(fd uintptr) {
		_, n, _, _, err = unix.Recvmsg(int(fd), nil, control, unix.MSG_ERRQUEUE)
	}); e != nil || err != nil {
		return netip.Addr{}, errors.Join(e, err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) == 0 {
		return netip.Addr{}, fmt.Errorf("no ICMP error is queued: %w", err)
	}
	const extended = 16
	b := messages[0].Data[extended:]
	if ipv6 {
		return netip.AddrFrom16([16]byte(b[8:24])), nil
	}
	return netip.AddrFrom4([4]byte(b[4:8])), nil
}

func TestSmallerLinkBehindARoutingEdgeIsFoundByPathMTUDiscovery(t *testing.T) {
	need(t, "curl", "nginx", "ip")
	for _, shape := range []shape{splitRoute, hostShape} {
		for _, ipv6 := range []bool{false, true} {
			t.Run(shape.name+" "+family(ipv6), func(t *testing.T) {
				l := deploy(t, shape, lab.Options{}, protection{})
				const narrow = 1400
				// The server announces 1460 bytes all the same: through its edge, or
				// because its link was wider when its agent started.
				for at, port := range map[*lab.Namespace]string{l.Edge.Namespace: l.Edge.Inside, l.Server.Namespace: l.Server.Port} {
					runIn(t, at, "ip", "link", "set", port, "mtu", fmt.Sprint(narrow))
				}
				root := startNginx(t, l)
				sum := randomFile(t, filepath.Join(root, "file"), 1<<20)
				tap := newTap(t, l.Client.Namespace, l.Client.Port)
				uploadIs(t, l, ipv6, root, sum)
				_, frame := tap.find("ICMP error about the size", func(_ wire.Seen, frame []byte) bool { return tooBig(frame, ipv6) != 0 })
				if got := tooBig(frame, ipv6); got != narrow {
					t.Errorf("the ICMP error tells of MTU %d, not %d", got, narrow)
				}
				downloadIs(t, l, ipv6, sum)
			})
		}
	}
}

// tooBig returns the MTU that an ICMP error tells of, 0 if the frame is none.
func tooBig(frame []byte, ipv6 bool) uint16 {
	const ethernet, ip4, ip6 = 14, 20, 40
	switch {
	case !ipv6 && len(frame) > ethernet+ip4+8 && frame[ethernet+9] == unix.IPPROTO_ICMP && frame[12] == 8:
		if icmp := frame[ethernet+ip4:]; icmp[0] == 3 && icmp[1] == 4 { // RFC 1191 4
			return binary.BigEndian.Uint16(icmp[6:])
		}
	case ipv6 && len(frame) > ethernet+ip6+8 && frame[ethernet+6] == unix.IPPROTO_ICMPV6 && frame[12] == 0x86:
		if icmp := frame[ethernet+ip6:]; icmp[0] == 2 { // RFC 4443 3.2
			return binary.BigEndian.Uint16(icmp[6:])
		}
	}
	return 0
}

func TestLinkLocalAddressesAreDefended(t *testing.T) {
	need(t, "curl", "nginx")
	for _, test := range []struct {
		shape
		daemon string
		client func(*lab.Lab) (*lab.Namespace, string) // on the server's link
	}{
		{splitBridge, "edge", func(l *lab.Lab) (*lab.Namespace, string) { return l.Client.Namespace, l.Client.Port }},
		{hostShape, "host", func(l *lab.Lab) (*lab.Namespace, string) { return l.Edge.Namespace, l.Edge.Inside }},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := deploy(t, test.shape, lab.Options{Resolve: true}, protection{prefixes: []string{"fe80::/64"}})
			startNginx(t, l)
			from, port := test.client(l)
			mustGreet(t, from, fmt.Sprintf("http://[%s%%25%s]/hello", linkLocal(t, l.Server), port))
			counted(t, l, test.daemon, "answer_syn", "pass_cookie")
		})
	}
}

func TestRoutingEdgeItselfIsReachedByItsLinkLocalAddress(t *testing.T) {
	l := deploy(t, splitRoute, lab.Options{Resolve: true}, protection{})
	edge := lab.Host{Namespace: l.Edge.Namespace, Port: l.Edge.Outside[0]}
	pingIs(t, l.Client, linkLocal(t, edge).WithZone(l.Client.Port))
}

func linkLocal(t *testing.T, h lab.Host) netip.Addr {
	t.Helper()
	for _, word := range strings.Fields(runIn(t, h.Namespace, "ip", "-6", "address", "show", "dev", h.Port, "scope", "link")) {
		if prefix, err := netip.ParsePrefix(word); err == nil {
			return prefix.Addr()
		}
	}
	t.Fatalf("%s of %s has no link-local address", h.Port, h.Name)
	return netip.Addr{}
}

func TestProtectedServerOpensConnections(t *testing.T) {
	for _, shape := range allShapes {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{}, protection{ports: "80,8000-8099"})
			for _, ipv6 := range []bool{false, true} {
				peer := echoTCP(t, l.Client, ipv6)
				own := 8001 // a protected port, bound once: TIME_WAIT holds it
				if ipv6 {
					own++
				}
				for _, local := range []int{0, own} {
					t.Run(fmt.Sprintf("%s from port %d", family(ipv6), local), func(t *testing.T) {
						dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: local}}
						if err := megabyteReturns(l.Server.Namespace, dialer, peer); err != nil {
							t.Error(err)
						}
					})
				}
			}
		})
	}
}

// echoTCP sends back, on a host, what comes by any connection.
func echoTCP(t *testing.T, h lab.Host, ipv6 bool) (address string) {
	t.Helper()
	listener := listenIn(t, h.Namespace, netip.AddrPortFrom(h.Addr(ipv6), 9000).String())
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // the other end sees what is missing
			}()
		}
	}()
	return listener.Addr().String()
}

func megabyteReturns(from *lab.Namespace, dialer net.Dialer, address string) error {
	conn, err := dialIn(from, dialer, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	sent := bytes.Repeat([]byte("outbound"), 1<<17)
	go func() {
		_, _ = conn.Write(sent) // a failed write shows as bytes that do not return
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if !bytes.Equal(got, sent) {
		return errors.New("other bytes came back")
	}
	return nil
}
