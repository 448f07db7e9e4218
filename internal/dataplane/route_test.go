package dataplane

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"smartcookie/test/wire"
)

// Addresses behind the routing edge; every one has its own fate.
const (
	resolved4, resolved6     = "203.0.113.50:444", "[2001:db8:1::50]:444"
	unresolved4, unresolved6 = "203.0.113.60:444", "[2001:db8:1::60]:444"
	elsewhere4               = "10.9.9.9:444" // by a device that is not the edge's
	nowhere4                 = "172.31.0.1:444"
)

var (
	serverMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x55}
	insideMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x11}
)

// routed makes the devices, routes and neighbours of a router whose outside is
// the loopback device, which is where test frames come in.
var routed = sync.OnceValues(func() (inside int, err error) {
	steps := []func() error{
		loopback,
		func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) },
		func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644) },
		func() error { return addDevice("inside", insideMAC, "203.0.113.1/24", "2001:db8:1::1/64") },
		func() error { return addDevice("elsewhere", net.HardwareAddr{2, 0, 0, 0, 0, 0x22}, "10.9.9.1/24") },
		func() error { inside, err = linkIndex("inside"); return err },
		func() error { return addNeighbours(inside) },
		addRefusals,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return 0, err
		}
	}
	return inside, nil
})

func linkIndex(name string) (int, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

// addDevice makes a device with a carrier: one end of a pair.
func addDevice(name string, mac net.HardwareAddr, addresses ...string) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac, MTU: 1500}, PeerName: name + "-end"}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	peer, err := netlink.LinkByName(link.PeerName)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(peer); err != nil {
		return err
	}
	for _, a := range addresses {
		address, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		address.Flags = syscall.IFA_F_NODAD
		if err := netlink.AddrAdd(link, address); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

func addNeighbours(index int) error {
	for _, a := range []string{resolved4, resolved6} {
		if err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: index, State: netlink.NUD_PERMANENT, HardwareAddr: serverMAC,
			IP: netip.MustParseAddrPort(a).Addr().AsSlice(),
		}); err != nil {
			return err
		}
	}
	return nil
}

// refusals are destinations that the router is told not to serve.
var refusals = map[string]int{
	"172.30.1.0/24": syscall.RTN_BLACKHOLE, "172.30.2.0/24": syscall.RTN_UNREACHABLE, "172.30.3.0/24": syscall.RTN_PROHIBIT,
}

func addRefusals() error {
	for prefix, kind := range refusals {
		_, network, err := net.ParseCIDR(prefix)
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: network, Type: kind}); err != nil {
			return err
		}
	}
	return nil
}

func newRouter(t *testing.T) edgeAgent {
	t.Helper()
	needRoot(t)
	inside, err := routed()
	if err != nil {
		t.Fatal(err)
	}
	e := newEdge(t, func(c *EdgeConfig) {
		c.Forward, c.Inside = Route, []Interface{{Name: "inside", Index: inside}}
	})
	for _, p := range []wire.Packet{to(syn4(""), resolved4), to(syn6(""), resolved6)} {
		eventually(t, "the kernel uses the new routes", func() bool {
			action, _ := e.runUncounted(e.EdgeOutside, p.Frame())
			return action == xdpRedirect
		})
	}
	return e
}

// hop is the frame one hop later.
func hop(p wire.Packet) []byte {
	p.Hops--
	frame := p.Frame()
	copy(frame, serverMAC)
	copy(frame[6:], insideMAC)
	return frame
}

// overflowing is a packet whose IPv4 checksum becomes ffff with 64 hops left,
// which is written as 0.
func overflowing() wire.Packet {
	p := to(syn4(linuxOptions), resolved4)
	for !bytes.Equal(p.Frame()[24:26], []byte{0xfe, 0xff}) {
		p = neighbour(p)
	}
	return p
}

func TestRouterForwardsToItsNeighbours(t *testing.T) {
	e := newRouter(t)
	packets := []wire.Packet{overflowing(), to(syn4(linuxOptions), resolved4), to(syn6(linuxOptions), resolved6)}
	for hops := 2; hops <= 255; hops++ {
		for _, p := range packets {
			p.Hops = uint8(hops)
			got := e.outside(p.Frame())
			if got.action != xdpRedirect || got.verdict != "pass_other" || !bytes.Equal(got.out, hop(p)) {
				t.Fatalf("%v, %d hops left: action %d, %s\ngot  %x\nwant %x", p.To, hops, got.action, got.verdict, got.out, hop(p))
			}
		}
	}
}

func TestRouterLeavesTheRestToTheKernel(t *testing.T) {
	e := newRouter(t)
	four, six := to(syn4(linuxOptions), resolved4), to(syn6(linuxOptions), resolved6)
	for name, p := range map[string]wire.Packet{
		"neighbour to resolve":            to(four, unresolved4),
		"neighbour to resolve, IPv6":      to(six, unresolved6),
		"last hop":                        with(four, func(p *wire.Packet) { p.Hops = 1 }),
		"last hop, IPv6":                  with(six, func(p *wire.Packet) { p.Hops = 1 }),
		"device that is not ours":         to(four, elsewhere4),
		"no route":                        to(four, nowhere4),
		"tag":                             tagged(four, wire.Tag{Type: wire.Customer, ID: 5}),
		"larger than the network carries": carrying(four, 1600),
		"address of our own":              to(four, "203.0.113.1:444"),
	} {
		frame := p.Frame()
		if got := e.outside(frame); got.action != xdpPass || got.verdict != "pass_other" || !bytes.Equal(got.out, frame) {
			t.Errorf("%s: action %d, %s, changed %v", name, got.action, got.verdict, !bytes.Equal(got.out, frame))
		}
	}
	arp := put(12, 0x0806)(four.Frame())
	if got := e.outside(arp); got.action != xdpPass || !bytes.Equal(got.out, arp) {
		t.Errorf("ARP: action %d", got.action)
	}
}

func TestRouterDropsWhatItsRoutesRefuse(t *testing.T) {
	e := newRouter(t)
	for prefix := range refusals {
		p := to(syn4(linuxOptions), strings.Replace(prefix, ".0/24", ".9:444", 1))
		for name, got := range map[string]outcome{"outside": e.outside(p.Frame()), "inside": e.inside(p.Frame())} {
			if got.action != xdpDrop || got.verdict != "drop_unroutable" {
				t.Errorf("%s from %s: action %d, %s", prefix, name, got.action, got.verdict)
			}
		}
	}
}

func TestRouterAnswersAndVerifiesAsABridgeDoes(t *testing.T) {
	e := newRouter(t)
	ack := e.handshake(to(syn4(linuxOptions), "203.0.113.50:443"))
	ack.Hops = 64
	got := e.outside(ack.Frame())
	if got.action != xdpRedirect || got.verdict != "pass_cookie" || !bytes.Equal(got.out, hop(ack)) {
		t.Errorf("ACK: action %d, %s", got.action, got.verdict)
	}
	e.want("ACK again", ack, "pass_verified")
}
