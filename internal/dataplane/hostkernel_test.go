package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// The host of these tests has a cable to a client that no kernel knows: what
// the kernel says to the same SYN is seen there.
const (
	kernelDevice, kernelPeer = "hk0", "hk1"

	plainPort   = 7080 // of a listener for both families, as it comes
	closedPort  = 7081 // protected, and nobody listens
	foreignPort = 7082 // somebody listens, and it is not protected
)

var (
	kernelServer4, kernelClient4 = netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.1.77")
	kernelServer6, kernelClient6 = netip.MustParseAddr("2001:db8:7::1"), netip.MustParseAddr("2001:db8:7::77")
)

// kernelCable makes the device once; the tests share a namespace.
var kernelCable = sync.OnceValue(func() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = kernelDevice
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: kernelPeer}); err != nil {
		return err
	}
	device, err := netlink.LinkByName(kernelDevice)
	if err != nil {
		return err
	}
	peer, err := netlink.LinkByName(kernelPeer)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return netlink.LinkSetUp(device) },
		func() error { return netlink.LinkSetUp(peer) },
		func() error { return kernelAddress(device, peer, kernelServer4, kernelClient4, 24) },
		func() error { return kernelAddress(device, peer, kernelServer6, kernelClient6, 64) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
})

func kernelAddress(device, peer netlink.Link, own, client netip.Addr, bits int) error {
	address := &netlink.Addr{
		IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(bits, own.BitLen())}, Flags: syscall.IFA_F_NODAD,
	}
	if err := netlink.AddrReplace(device, address); err != nil {
		return err
	}
	return netlink.NeighSet(&netlink.Neigh{
		LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: client.AsSlice(), HardwareAddr: peer.Attrs().HardwareAddr,
	})
}

// setSysctl changes one of this namespace for the test.
func setSysctl(t testing.TB, name, value string) {
	t.Helper()
	path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, before, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
}

// kernelListen listens on a port of every address, or of IPv4's alone.
func kernelListen(t testing.TB, network string, port uint16, options ...func(fd int) error) {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			for _, set := range options {
				err = errors.Join(err, set(int(fd)))
			}
		}), err)
	}}
	config.SetMultipathTCP(false)
	listener, err := config.Listen(context.Background(), network, fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
}

type kernelHostAgent struct {
	agent
	*hostKernelObjects
	host *HostKernel
}

// newHostKernel loads a host that protects ports at its addresses and is always
// in flood mode, if nothing else is said.
func newHostKernel(t testing.TB, limits FloodLimits, ports ...uint16) kernelHostAgent {
	t.Helper()
	mode := policy.Adaptive
	if limits.SYNs == 0 {
		mode = policy.Always
	}
	needRoot(t)
	if err := errors.Join(loopback(), kernelCable()); err != nil {
		t.Fatal(err)
	}
	setSysctl(t, "net.ipv4.tcp_syncookies", "2")
	setSysctl(t, "net.ipv4.tcp_timestamps", "2")
	c := HostKernelConfig{Interface: Interface{Name: "lo", Index: 1, MTU: 1500}, MSS4: 1460, MSS6: 1440, Limits: limits}
	for _, p := range ports {
		c.Services = append(c.Services, policy.Service{
			Name: fmt.Sprint(p), Domain: "host", Mode: mode, Ports: []policy.PortRange{port(p)},
			Prefixes: prefixes(kernelServer4.String()+"/32", kernelServer6.String()+"/128"),
		})
	}
	c.Table = compile(t, c.Services)
	h, err := LoadHostKernel(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	var most uint32
	text, err := os.ReadFile("/proc/sys/net/core/rmem_max")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &most); err != nil {
		t.Fatal(err)
	}
	if err := h.SetReceiveMost(most); err != nil {
		t.Fatal(err)
	}
	return kernelHostAgent{agent{&h.tables, t}, &h.objects, h}
}

func (h kernelHostAgent) arrive(p wire.Packet) outcome {
	h.t.Helper()
	return h.run(h.HostArrive, p.Frame())
}

// want wants a verdict, what it does, and every byte left as it was.
func (h kernelHostAgent) want(what string, p wire.Packet, verdict string) {
	h.t.Helper()
	got, action := h.arrive(p), uint32(xdpPass)
	if strings.HasPrefix(verdict, "drop") {
		action = xdpDrop
	}
	if got.verdict != verdict || got.action != action || string(got.out) != string(p.Frame()) {
		h.t.Errorf("%s: %s, action %d, changed %t; want %s, %d", what, got.verdict, got.action, string(got.out) != string(p.Frame()), verdict, action)
	}
}

// kernelSYN is a client's, from a port of its own.
func kernelSYN(v6 bool, port uint16, from uint16, options string) wire.Packet {
	p := wire.Packet{Flags: wire.SYN, Seq: testISN, Window: 64240, Options: hexBytes(options)}
	p.Source, p.To = netip.AddrPortFrom(kernelClient4, from), netip.AddrPortFrom(kernelServer4, port)
	if v6 {
		p.Source, p.To = netip.AddrPortFrom(kernelClient6, from), netip.AddrPortFrom(kernelServer6, port)
	}
	return p
}

// kernelPort sends and sees frames at the client's end of the cable.
func kernelPort(t testing.TB) (fd int, server, client net.HardwareAddr) {
	t.Helper()
	device, err := net.InterfaceByName(kernelDevice)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := net.InterfaceByName(kernelPeer)
	if err != nil {
		t.Fatal(err)
	}
	const allBE = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allBE, Ifindex: peer.Index}),
	); err != nil {
		t.Fatal(err)
	}
	return fd, device.HardwareAddr, peer.HardwareAddr
}

// answerOfKernel is what the kernel itself says to a SYN.
func answerOfKernel(t testing.TB, p wire.Packet) []byte {
	t.Helper()
	fd, server, client := kernelPort(t)
	frame := p.Frame()
	copy(frame, server)
	copy(frame[6:], client)
	if _, err := unix.Write(fd, frame); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2048)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if err != nil {
			continue
		}
		seen := wire.Read(buffer[:n])
		if seen.Kind == wire.KindTCP && seen.Flags&(wire.SYN|wire.ACK) == wire.SYN|wire.ACK && seen.ToPort == p.Source.Port() {
			return buffer[:n]
		}
	}
	t.Fatal("the kernel does not answer")
	return nil
}

// terms are what an answer says, but for the clock in its TSval.
func answerTerms(frame []byte) string {
	seen := wire.Read(frame)
	o := wire.ReadOptions(seen.Options, 0)
	o.ECN = seen.Flags&wire.ECE != 0
	text := fmt.Sprintf("cookie %08x ack %08x: %s", seen.Seq, seen.Ack, words(o.Options))
	if o.Timestamps {
		text += fmt.Sprintf(" %#x in TSval, TSecr %d", o.TSval&63, o.TSecr)
	}
	return text
}

func windowOf(frame []byte) int {
	return int(binary.BigEndian.Uint16(frame[wire.Read(frame).TransportAt+14:]))
}

// sameAnswer compares with the kernel's own; cookies change once a minute. The
// kernel rounds the window of its SYN-ACK to segments with timestamps, and that
// of the connection to those of the cookie, which is ours.
func sameAnswer(t *testing.T, h kernelHostAgent, syn wire.Packet) {
	t.Helper()
	var ours, kernels []byte
	for range 3 {
		kernels = answerOfKernel(t, syn)
		got := h.arrive(syn)
		if got.verdict != "answer_syn" || got.action != xdpTX {
			t.Fatalf("%s, action %d", got.verdict, got.action)
		}
		if ours = got.out; answerTerms(ours) == answerTerms(kernels) {
			break
		}
	}
	if got, want := answerTerms(ours), answerTerms(kernels); got != want {
		t.Errorf("\nwe say            %s\nthe kernel itself %s", got, want)
	}
	if off := windowOf(ours) - windowOf(kernels); off < -1460 || off > 1460 {
		t.Errorf("our window is %d, the kernel's %d", windowOf(ours), windowOf(kernels))
	}
	a, b := wire.Read(ours), wire.Read(kernels)
	first, second := wire.ReadOptions(b.Options, 0).TSval, wire.ReadOptions(a.Options, 0).TSval
	if late := int32(second - first); late < -64 || late > 5000 {
		t.Errorf("our TSval is %d ms behind the kernel's", -late)
	}
	if ahead := int32(second - uint32(monotonic(t)/1e6)); ahead > 0 {
		t.Errorf("our TSval is %d ms ahead of what the kernel says next", ahead)
	}
	if a.Kind != wire.KindTCP || a.Source != b.Source || a.To != b.To || a.SourcePort != b.SourcePort || a.ToPort != b.ToPort {
		t.Errorf("from %s:%d to %s:%d", a.Source, a.SourcePort, a.To, a.ToPort)
	}
	checkSums(t, ours)
}

// checkSums wants the checksums that the model makes of the same packet.
func checkSums(t *testing.T, frame []byte) {
	t.Helper()
	seen := wire.Read(frame)
	p := wire.Packet{
		Source: netip.AddrPortFrom(seen.Source, seen.SourcePort), To: netip.AddrPortFrom(seen.To, seen.ToPort),
		Flags: seen.Flags, Seq: seen.Seq, Ack: seen.Ack, Options: seen.Options,
		Window: uint16(windowOf(frame)),
	}
	want := wire.Read(p.Frame())
	if got, want := frame[seen.TransportAt+16:][:2], p.Frame()[want.TransportAt+16:][:2]; string(got) != string(want) {
		t.Errorf("the TCP checksum is %x, want %x", got, want)
	}
}

func receiveBuffer(bytes int) func(int) error {
	return func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes) }
}

func windowClamp(bytes int) func(int) error {
	return func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, bytes) }
}

// The kernel takes a cookie on its own terms: what our SYN-ACK promises must be
// what its own would have.
func TestKernelCookiesArePromisedAsTheKernelPromisesThem(t *testing.T) {
	h := newHostKernel(t, FloodLimits{}, plainPort)
	for _, listener := range []struct {
		name    string
		options []func(int) error
		sysctls map[string]string
	}{
		{name: "as it comes"},
		{name: "small buffer", options: []func(int) error{receiveBuffer(4096)}},
		{name: "medium buffer", options: []func(int) error{receiveBuffer(100_000)}},
		{name: "large buffer", options: []func(int) error{receiveBuffer(3_000_000)}},
		{name: "huge buffer", options: []func(int) error{receiveBuffer(100_000_000)}},
		{name: "clamped window", options: []func(int) error{windowClamp(20_000)}},
		{name: "clamped window and buffer", options: []func(int) error{windowClamp(90_000), receiveBuffer(120_000)}},
		{name: "little tcp_rmem", sysctls: map[string]string{"net.ipv4.tcp_rmem": "4096 16384 262144"}},
		{name: "signed windows", sysctls: map[string]string{"net.ipv4.tcp_workaround_signed_windows": "1"}},
		{name: "without SACK", sysctls: map[string]string{"net.ipv4.tcp_sack": "0"}},
		{name: "without scaling", sysctls: map[string]string{"net.ipv4.tcp_window_scaling": "0"}},
		{name: "without ECN", sysctls: map[string]string{"net.ipv4.tcp_ecn": "0"}},
	} {
		t.Run(listener.name, func(t *testing.T) {
			for name, value := range listener.sysctls {
				setSysctl(t, name, value)
			}
			kernelListen(t, "tcp", plainPort, listener.options...)
			h := kernelHostAgent{agent{h.tables, t}, h.hostKernelObjects, h.host}
			for i, options := range []string{
				linuxOptions, "020405b4 0402080a 00000001 00000000 0103030e", "020405b4 0101080a 00000001 00000000",
				"020405b4 01030300 0101080a 00000001 00000000",
			} {
				for v6, mss := range map[bool]string{false: "05b4", true: "05a0"} {
					syn := kernelSYN(v6, plainPort, uint16(20000+i), strings.Replace(options, "05b4", mss, 1))
					sameAnswer(t, h, syn)
					syn.Flags |= wire.ECE | wire.CWR
					sameAnswer(t, h, syn)
				}
			}
		})
	}
}

// Without a TSval that the kernel would understand there is nothing to promise.
func TestWithoutPlainTimestampsACookiePromisesNoOption(t *testing.T) {
	h := newHostKernel(t, FloodLimits{}, plainPort)
	kernelListen(t, "tcp", plainPort)
	for _, stamps := range []string{"0", "1"} {
		setSysctl(t, "net.ipv4.tcp_timestamps", stamps)
		for _, v6 := range []bool{false, true} {
			got := h.arrive(kernelSYN(v6, plainPort, 20100, linuxOptions))
			o := wire.ReadOptions(wire.Read(got.out).Options, 0)
			if want := map[bool]uint16{false: 1460, true: 1440}[v6]; got.verdict != "answer_syn" || o.Options != (cookie.Options{MSS: want}) {
				t.Errorf("tcp_timestamps %s: %s, %+v", stamps, got.verdict, o)
			}
		}
	}
	setSysctl(t, "net.ipv4.tcp_timestamps", "2")
	got := h.arrive(kernelSYN(false, plainPort, 20100, windowsOptions))
	if o := wire.ReadOptions(wire.Read(got.out).Options, 0); o.Options != (cookie.Options{MSS: 1460}) {
		t.Errorf("a client without timestamps is promised %+v", o)
	}
}

// The MSS is the kernel's for its cookie, and never more than the device has.
func TestKernelCookieKeepsTheMSSRoundedDown(t *testing.T) {
	h := newHostKernel(t, FloodLimits{}, plainPort)
	kernelListen(t, "tcp", plainPort)
	for _, test := range []struct {
		v6        bool
		mss, want uint16
	}{
		{false, 536, 536}, {false, 1200, 536}, {false, 1300, 1300}, {false, 1452, 1440}, {false, 1460, 1460}, {false, 8960, 1460},
		{true, 1220, 1220}, {true, 1430, 1420}, {true, 1440, 1440}, {true, 8940, 1440},
	} {
		got := h.arrive(kernelSYN(test.v6, plainPort, 20200, fmt.Sprintf("0204%04x", test.mss)))
		if o := wire.ReadOptions(wire.Read(got.out).Options, 0); o.MSS != test.want {
			t.Errorf("IPv6 %t, MSS %d: %s with %d, want %d", test.v6, test.mss, got.verdict, o.MSS, test.want)
		}
	}
}

// handshake answers a SYN and returns the ACK that its client sends.
func (h kernelHostAgent) handshake(syn wire.Packet) wire.Packet {
	h.t.Helper()
	got := h.arrive(syn)
	if got.verdict != "answer_syn" {
		h.t.Fatalf("SYN: %s", got.verdict)
	}
	ack := syn
	ack.Flags, ack.Seq, ack.Ack, ack.Options = wire.ACK, syn.Seq+1, wire.Read(got.out).Seq+1, nil
	return ack
}

func TestPacketsToAFloodedPortEndAsTheTableSays(t *testing.T) {
	h := newHostKernel(t, FloodLimits{}, plainPort, closedPort)
	kernelListen(t, "tcp", plainPort)
	kernelListen(t, "tcp", foreignPort)
	for _, v6 := range []bool{false, true} {
		syn := kernelSYN(v6, plainPort, 21000, linuxOptions)
		other := func(flags wire.Flags) wire.Packet { return flagged(kernelSYN(v6, plainPort, 21001, ""), flags) }
		h.want("ACK without a cookie", other(wire.ACK), "drop_bad_cookie")
		h.want("data", carrying(other(wire.ACK|wire.PSH), 100), "drop_bad_cookie")
		h.want("FIN", other(wire.ACK|wire.FIN), "drop_bad_cookie")
		h.want("RST", other(wire.RST), "drop_unverified_rst")
		h.want("SYN-ACK", other(wire.SYN|wire.ACK), "drop_unverified_synack")
		h.want("no flag", other(0), "drop_flags_null")
		h.want("Xmas", other(wire.FIN|wire.PSH|wire.URG), "drop_flags_xmas")

		ack := h.handshake(syn)
		second := with(carrying(ack, 100), func(p *wire.Packet) { p.Seq += 1448 })
		h.want("second segment of a flow that nobody knows", neighbour(second), "drop_bad_cookie")
		h.want("second segment, too early", second, "drop_bad_cookie")
		h.want("ACK with the cookie", ack, "pass_kernel_cookie")
		h.want("first segment", carrying(ack, 1448), "pass_kernel_cookie")
		h.want("second segment, behind the first", second, "pass_behind")
		h.forgetReturned()
		h.want("second segment, long behind", second, "drop_bad_cookie")
		h.want("of another port", with(second, func(p *wire.Packet) { p.Source = netip.AddrPortFrom(p.Source.Addr(), 21002) }), "drop_bad_cookie")
		h.want("one off", with(ack, func(p *wire.Packet) { p.Source = neighbour(*p).Source; p.Ack++ }), "drop_bad_cookie")

		h.want("SYN to a port without listener", kernelSYN(v6, closedPort, 21000, linuxOptions), "pass_no_listener")
		h.want("ACK to it", flagged(kernelSYN(v6, closedPort, 21000, ""), wire.ACK), "pass_no_listener")
		h.want("SYN to a port that is not protected", kernelSYN(v6, foreignPort, 21000, linuxOptions), "pass_other")
		h.want("ACK to it", flagged(kernelSYN(v6, foreignPort, 21000, ""), wire.ACK), "pass_other")
		elsewhere := with(syn, func(p *wire.Packet) {
			p.To = netip.AddrPortFrom(neighbour(wire.Packet{Source: p.To}).Source.Addr(), plainPort)
		})
		h.want("SYN to another host", elsewhere, "pass_other")
		h.want("UDP", with(syn, func(p *wire.Packet) { p.Protocol = wire.UDP }), "pass_other")
		h.want("SYN from the server's own address", with(syn, func(p *wire.Packet) { p.Source = netip.AddrPortFrom(p.To.Addr(), 1) }), "drop_bad_source")
	}
	h.want("fragment", with(kernelSYN(false, plainPort, 21000, ""), func(p *wire.Packet) { p.More = true }), "pass_other")
}

// forgetReturned makes all cookies that came back old.
func (h kernelHostAgent) forgetReturned() {
	h.t.Helper()
	var flow hostKernelEndpoints
	var when uint64
	var all []hostKernelEndpoints
	for entries := h.Returned.Iterate(); entries.Next(&flow, &when); {
		all = append(all, flow)
	}
	if len(all) == 0 {
		h.t.Fatal("no cookie has come back")
	}
	for _, flow := range all {
		if err := h.Returned.Put(flow, monotonic(h.t)-uint64(time.Second)); err != nil {
			h.t.Fatal(err)
		}
	}
}

// A SYN of an IPv4 client at a socket for IPv6 alone finds nobody.
func TestKernelCookiesAreOnlyForTheFamiliesOfTheListener(t *testing.T) {
	h := newHostKernel(t, FloodLimits{}, plainPort)
	kernelListen(t, "tcp6", plainPort)
	h.want("IPv4", kernelSYN(false, plainPort, 21100, linuxOptions), "pass_no_listener")
	if got := h.arrive(kernelSYN(true, plainPort, 21100, linuxOptions)); got.verdict != "answer_syn" {
		t.Errorf("IPv6: %s", got.verdict)
	}
}

// Where the kernel gives and takes no cookies it is asked itself.
func TestWithoutSyncookiesEverythingPasses(t *testing.T) {
	h := newHostKernel(t, FloodLimits{}, plainPort)
	kernelListen(t, "tcp", plainPort)
	ack := h.handshake(kernelSYN(false, plainPort, 21200, linuxOptions))
	setSysctl(t, "net.ipv4.tcp_syncookies", "0")
	h.want("SYN", kernelSYN(false, plainPort, 21200, linuxOptions), "pass_no_cookie")
	h.want("ACK", ack, "pass_no_cookie")
}

func TestConnectionsPassAFloodedPort(t *testing.T) {
	h := newHostKernel(t, FloodLimits{}, plainPort)
	kernelListen(t, "tcp", plainPort)
	for client, server := range map[string]netip.Addr{"192.0.2.1": kernelServer4, "2001:db8:c::1": kernelServer6} {
		to := netip.AddrPortFrom(server, plainPort)
		conn := kernelDial(t, netip.MustParseAddr(client), to)
		p := wire.Packet{Source: conn.LocalAddr().(*net.TCPAddr).AddrPort(), To: to, Seq: 1, Ack: 2}
		for _, flags := range []wire.Flags{wire.SYN, wire.ACK, wire.ACK | wire.PSH, wire.ACK | wire.FIN, wire.RST, wire.SYN | wire.ACK} {
			h.want(fmt.Sprintf("flags %x", flags), flagged(p, flags), "pass_socket")
		}
	}
}

// kernelDial connects within the namespace; no program is attached anywhere.
func kernelDial(t testing.TB, from netip.Addr, to netip.AddrPort) net.Conn {
	t.Helper()
	var conn net.Conn
	eventually(t, "the addresses are usable", func() bool {
		var err error
		conn, err = (&net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}).Dial("tcp", to.String())
		if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.ENETUNREACH) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() {
		_ = conn.(*net.TCPConn).SetLinger(0) // nothing may stay in TIME_WAIT
		conn.Close()
	})
	return conn
}

func TestSYNsCutAtEveryLengthPassOrAreAnswered(t *testing.T) {
	h := newHostKernel(t, FloodLimits{}, plainPort)
	kernelListen(t, "tcp", plainPort)
	for _, v6 := range []bool{false, true} {
		for _, tags := range [][]wire.Tag{nil, {{Type: wire.Customer, ID: 5}}, {{Type: wire.Service, ID: 5}, {Type: wire.Customer, ID: 6}}} {
			syn := kernelSYN(v6, plainPort, 21300, linuxOptions)
			syn.Tags = tags
			frame := syn.Frame()
			for length := 14; length < len(frame); length++ {
				if got := h.run(h.HostArrive, frame[:length]); got.verdict != "pass_other" || string(got.out) != string(frame[:length]) {
					t.Fatalf("IPv6 %t, %d tags, %d bytes: %s", v6, len(tags), length, got.verdict)
				}
			}
			got := h.run(h.HostArrive, frame)
			if tag := frame[12:][:4*len(tags)]; got.verdict != "answer_syn" || string(got.out[12:][:len(tag)]) != string(tag) {
				t.Errorf("IPv6 %t, %d tags: %s, %x", v6, len(tags), got.verdict, got.out)
			}
		}
	}
}

// patient are limits within which no test takes so long that time matters.
var patient = FloodLimits{SYNs: 5, Window: time.Hour, Calm: time.Hour, CalmMost: 4 * time.Hour}

func TestPortIsFloodedByManySYNsUntilItIsCalm(t *testing.T) {
	h := newHostKernel(t, patient, closedPort, plainPort)
	kernelListen(t, "tcp", plainPort)
	changes, err := h.host.OpenModeChanges()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { changes.Close() })
	stray := flagged(kernelSYN(false, plainPort, 22000, ""), wire.ACK)
	h.want("ACK while all is calm", stray, "pass_calm")
	for i := range patient.SYNs - 1 { // cookies for all, by tcp_syncookies, are no full queue
		h.want("SYN in passive mode", kernelSYN(i%2 == 0, plainPort, uint16(22000+i), linuxOptions), "pass_syn")
	}
	h.want("ACK before", stray, "pass_calm")
	if got := h.arrive(kernelSYN(false, plainPort, 22010, linuxOptions)); got.verdict != "answer_syn" || got.service != 2 {
		t.Errorf("the SYN that reaches the limit: %s of service %d", got.verdict, got.service)
	}
	h.want("ACK in flood mode", stray, "drop_bad_cookie")
	h.want("ACK to a port that is not flooded", flagged(kernelSYN(false, closedPort, 22000, ""), wire.ACK), "pass_calm")
	wantChange(t, changes, ModeChange{Port: plainPort, Cause: ManySYNs, SYNs: uint32(patient.SYNs), Calm: time.Hour})

	if err := h.host.EndFloods(); err != nil {
		t.Fatal(err)
	}
	h.want("ACK: the calm time is not over", stray, "drop_bad_cookie")
	h.press(2, -time.Hour)
	if err := h.host.EndFloods(); err != nil {
		t.Fatal(err)
	}
	h.want("ACK when it is", stray, "pass_calm")
	wantChange(t, changes, ModeChange{Port: plainPort, Cause: CalmOver, Calm: time.Hour})
	if got := h.arrive(kernelSYN(false, plainPort, 22011, linuxOptions)); got.verdict != "answer_syn" {
		t.Errorf("SYN in a window that was full: %s", got.verdict)
	}
	wantChange(t, changes, ModeChange{Port: plainPort, Cause: ManySYNs, SYNs: uint32(patient.SYNs), Calm: 2 * time.Hour})
	h.press(2, -2*time.Hour)
	h.want("the first packet after it ends a flood too", stray, "pass_calm")
	if got := h.arrive(stray); got.service != none {
		t.Error("a packet is looked at though no port is in flood mode any more")
	}
	wantChange(t, changes, ModeChange{Port: plainPort, Cause: CalmOver, Calm: 2 * time.Hour})
}

// press moves the last pressure of a port to some time from now.
func (h kernelHostAgent) press(service uint32, from time.Duration) {
	h.t.Helper()
	var b hostKernelBimodal
	if err := h.PortModes.Lookup(service, &b); err != nil {
		h.t.Fatal(err)
	}
	b.PressedNs = monotonic(h.t) + uint64(from)
	if err := h.PortModes.Put(service, b); err != nil {
		h.t.Fatal(err)
	}
}

// wantChange compares all but the times, which are the machine's.
func wantChange(t *testing.T, changes *ModeChanges, want ModeChange) {
	t.Helper()
	changes.reader.SetDeadline(time.Now().Add(10 * time.Second))
	got, err := changes.Read()
	if err != nil {
		t.Fatal(err)
	}
	if got.Within < 0 || got.Cause == ManySYNs && got.Within > time.Hour || got.Lasted < 0 {
		t.Errorf("within %s, lasted %s", got.Within, got.Lasted)
	}
	if got.Within, got.Lasted = 0, 0; want.SYNs == 0 {
		got.SYNs = 0
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// shortQueue listens with room for one handshake and one connection.
func shortQueue(t *testing.T, port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Port: port}), unix.Listen(fd, 1),
	); err != nil {
		t.Fatal(err)
	}
}

// As in the paper: one SYN in T1 tries the queue.
func TestPortIsFloodedWhenItsQueueIsFull(t *testing.T) {
	h := newHostKernel(t, FloodLimits{SYNs: 1000, Window: 10 * time.Millisecond, Calm: time.Hour, CalmMost: time.Hour}, plainPort)
	setSysctl(t, "net.ipv4.tcp_syncookies", "1")
	shortQueue(t, plainPort)
	changes, err := h.host.OpenModeChanges()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { changes.Close() })
	syn := kernelSYN(false, plainPort, 23000, linuxOptions)
	h.want("SYN while the queue has room", syn, "pass_syn")
	for from := range uint16(3) { // take the room
		answerOfKernel(t, kernelSYN(false, plainPort, 23001+from, linuxOptions))
	}
	eventually(t, "a SYN finds the queue full", func() bool { return h.arrive(syn).verdict == "answer_syn" })
	wantChange(t, changes, ModeChange{Port: plainPort, Cause: FullQueue, Calm: time.Hour})
	if got := h.arrive(syn); got.verdict != "answer_syn" {
		t.Errorf("the next SYN: %s", got.verdict)
	}
	h.want("an ACK without cookie", flagged(syn, wire.ACK), "drop_bad_cookie")
}

// What the kernel would drop need not get there.
func TestListenerThatCanTakeNoConnectionIsNotAsked(t *testing.T) {
	h := newHostKernel(t, FloodLimits{}, plainPort)
	shortQueue(t, plainPort)
	for range 2 { // one more than it was said, as the kernel counts
		kernelDial(t, netip.MustParseAddr("192.0.2.1"), netip.AddrPortFrom(kernelServer4, plainPort))
	}
	eventually(t, "both wait to be accepted", func() bool {
		return h.arrive(kernelSYN(false, plainPort, 23100, linuxOptions)).verdict == "drop_accept_full"
	})
}

// setMode does what `smartcookie mode` does.
func (h kernelHostAgent) setMode(service uint32, mode policy.Mode) {
	h.t.Helper()
	if err := putMode(h.services, service, mode); err != nil {
		h.t.Fatal(err)
	}
}

func TestModeOfAPortDecidesWhatIsDone(t *testing.T) {
	h := newHostKernel(t, patient, plainPort)
	kernelListen(t, "tcp", plainPort)
	changes, err := h.host.OpenModeChanges()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { changes.Close() })
	syn, stray := kernelSYN(false, plainPort, 24000, linuxOptions), flagged(kernelSYN(true, plainPort, 24001, ""), wire.ACK)
	h.setMode(1, policy.Off)
	for range patient.SYNs {
		h.want("off: SYN", syn, "pass_off")
	}
	h.setMode(1, policy.Always)
	got := h.arrive(syn)
	if got.verdict != "answer_syn" || got.action != xdpTX {
		t.Errorf("always: SYN: %s, action %d", got.verdict, got.action)
	}
	wantChange(t, changes, ModeChange{Port: plainPort, Cause: Ordered, Calm: time.Hour})
	h.press(1, -2*time.Hour)
	if err := h.host.EndFloods(); err != nil {
		t.Fatal(err)
	}
	h.want("always: ACK, however calm it is", stray, "drop_bad_cookie")

	h.setMode(1, policy.Monitor) // in a flood
	h.press(1, 0)
	for what, p := range map[string]wire.Packet{"answer_syn": syn, "drop_bad_cookie": stray, "drop_unverified_rst": flagged(stray, wire.RST)} {
		if got := h.arrive(p); got.verdict != what || got.action != xdpPass || string(got.out) != string(p.Frame()) {
			t.Errorf("monitor: %s, action %d, want %s that passes", got.verdict, got.action, what)
		}
	}
	h.setMode(1, policy.Off)
	h.want("off: ACK in a flood", stray, "pass_off")
	h.press(1, -2*time.Hour)
	h.setMode(1, policy.Adaptive)
	h.want("auto: ACK when it is calm", stray, "pass_calm")
	h.want("auto: SYN", syn, "pass_syn")
}
