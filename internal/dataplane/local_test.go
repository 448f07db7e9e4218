package dataplane

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// loopback gives the addresses of client and server to the namespace.
var loopback = sync.OnceValue(func() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, a := range []string{"203.0.113.5/32", "192.0.2.1/32", "2001:db8:1::5/128", "2001:db8:c::1/128"} {
		address, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		address.Flags = syscall.IFA_F_NODAD // at once, without asking anybody
		if err := netlink.AddrReplace(lo, address); err != nil {
			return err
		}
	}
	return nil
})

// connect makes a connection within the namespace and returns its client's next
// packet; no program is attached anywhere.
func connect(t *testing.T, syn wire.Packet) wire.Packet {
	t.Helper()
	if err := loopback(); err != nil {
		t.Fatal(err)
	}
	var listener net.Listener
	eventually(t, "the kernel makes the addresses usable", func() (listening bool) {
		var err error
		listener, err = net.Listen("tcp", syn.To.String())
		if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() { listener.Close() })
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(syn.Source), Control: reuseAddress}
	var conn net.Conn
	eventually(t, "the client's address is usable", func() bool {
		var err error
		conn, err = dialer.DialContext(context.Background(), "tcp", syn.To.String())
		if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.ENETUNREACH) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() {
		_ = conn.(*net.TCPConn).SetLinger(0) // nothing may stay in TIME_WAIT
		conn.Close()
	})
	return flagged(syn, wire.ACK)
}

func reuseAddress(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}); e != nil {
		return e
	}
	return err
}

func local(c *EdgeConfig) { c.Forward = Local }

func TestLocalEdgePassesToItsOwnHost(t *testing.T) {
	e := newEdge(t, local)
	for _, g := range goldens() {
		if g.service != none && services[g.service-1].Strategy != policy.Split {
			continue // the host shape has no other
		}
		frame := g.frame()
		verdict := g.verdict
		if len(g.in.Tags) == 2 && verdict == "answer_syn" {
			verdict = "pass_off" // below two tags the kernel sets nothing up
		}
		got, want := e.outside(frame), actionOf(verdict)
		if want == xdpRedirect {
			want = xdpPass
		}
		if got.verdict != verdict || got.action != want {
			t.Errorf("%s: %s, action %d; want %s, %d", g.name, got.verdict, got.action, verdict, want)
		}
	}
}

func TestLocalEdgeAsksTheKernelForOlderConnections(t *testing.T) {
	e := newEdge(t, local)
	for _, syn := range []wire.Packet{syn4(""), syn6("")} {
		next := connect(t, syn)
		e.want("RST of a connection that the kernel has", flagged(next, wire.RST), "pass_socket")
		e.want("the same flow", next, "pass_verified")
		e.forget()
		e.want("ACK of a connection that the kernel has", next, "pass_socket")
		e.want("the same again", next, "pass_verified")
		e.want("a listener is no connection", neighbour(next), "drop_bad_cookie")
	}
}

func TestServerLeavesConnectionsAlone(t *testing.T) {
	s := newServer(t)
	for _, syn := range []wire.Packet{syn4(""), syn6("")} {
		next := connect(t, syn)
		for name, flags := range map[string]wire.Flags{
			"ACK": wire.ACK, "data": wire.ACK | wire.PSH, "FIN": wire.ACK | wire.FIN, "RST": wire.RST, "SYN-ACK": wire.SYN | wire.ACK,
		} {
			frame := flagged(next, flags).Frame()
			if got := s.ingress(frame); got.verdict != "pass_connection" || got.action != tcNext || !bytes.Equal(got.out, frame) {
				t.Errorf("%s: %s, action %d", name, got.verdict, got.action)
			}
		}
		if got := s.ingress(flagged(syn, wire.SYN).Frame()); got.verdict != "pass_syn" {
			t.Errorf("SYN: %s", got.verdict)
		}
		if got := s.ingress(flagged(syn, wire.SYN|wire.FIN).Frame()); got.verdict != "drop_flags_syn_fin" {
			t.Errorf("illegal flags: %s", got.verdict)
		}
	}
}

const hostEpoch = 300 * time.Millisecond

// hostShape is an edge whose kernel makes the keys itself, by its own clock.
func hostShape(t *testing.T) edgeAgent {
	t.Helper()
	e := hostToStart(t)
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	return edgeAgent{agent{&e.tables, t}, &e.objects}
}

func hostToStart(t *testing.T) *Edge {
	t.Helper()
	needRoot(t)
	lo := []Interface{{Name: "lo", Index: 1}}
	one := []policy.Service{services[web-1]}
	e, err := LoadEdge(nil, EdgeConfig{
		Services: one, Table: compile(t, one), Domains: domains[:1], Epochs: 4, Outside: lo,
		Forward: Local, Flows: 1000, Generation: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if err := e.SetClock(Clock{EpochNS: uint64(hostEpoch)}); err != nil {
		t.Fatal(err)
	}
	if err := e.HostKey(6); err != nil {
		t.Fatal(err)
	}
	return e
}

// The clock that packets are judged by is up to a tick behind: right after an epoch
// has begun it is still that of the last one.
func TestHostThatStartsWithAnEpochHasAKey(t *testing.T) {
	e := hostToStart(t)
	const soon = int64(100 * time.Microsecond)
	for now := (unix.Timespec{Nsec: soon + 1}); now.Nano()%int64(hostEpoch) > soon; {
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	edgeAgent{agent{&e.tables, t}, &e.objects}.handshake(syn4(linuxOptions))
}

// The kernel's timer makes the keys: no daemon takes part. A machine that
// stands still for an epoch proves nothing either way.
func TestKernelMakesTheKeysOfTheHostShape(t *testing.T) {
	e := hostShape(t)
	epoch := func() uint64 { return monotonic(t) / uint64(hostEpoch) }
	first := epoch()
	var old wire.Packet
	for n := uint64(0); epoch() < first+5; n++ {
		before := epoch()
		ack := e.handshake(with(syn4(linuxOptions), func(p *wire.Packet) { p.Seq = uint32(n) }))
		if n == 0 {
			old = ack
		}
		e.forget()
		if got := e.outside(ack.Frame()); got.verdict != "pass_cookie" && epoch() <= before+1 {
			t.Fatalf("ACK in the epoch of its SYN: %s", got.verdict)
		}
	}
	e.forget()
	e.want("ACK after five epochs", old, "drop_bad_cookie")
}

func TestHostKeyThatIsThereGoesOn(t *testing.T) {
	e := hostShape(t)
	ack := e.handshake(syn4(linuxOptions))
	edge := Edge{objects: *e.edgeObjects}
	if err := edge.HostKey(14); err != nil {
		t.Fatal(err)
	}
	var m edgeMasterKey
	if err := e.Master.Lookup(uint32(0), &m); err != nil {
		t.Fatal(err)
	}
	if m.WindowScale != 6 {
		t.Error("the key was replaced")
	}
	e.want("ACK", ack, "pass_cookie")
}
