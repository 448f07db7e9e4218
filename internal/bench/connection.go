package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
)

// apart runs fn on a thread in a network namespace of its own, with nothing but
// loopback; both end with fn.
func apart(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			done <- fmt.Errorf("set loopback up: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// connection is one that the kernel has with itself, and what its next packets
// must bear.
type connection struct {
	flow     cookie.Flow // to the server
	seq, ack uint32      // of the client's next packet
	ends     []net.Conn
}

func (c *connection) close() {
	for _, end := range c.ends {
		end.Close()
	}
}

// connect makes a connection to a loopback address in the thread's namespace.
func connect(server netip.AddrPort) (*connection, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	listener, err := config.Listen(context.Background(), "tcp", server.String())
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", server.String())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &connection{ends: []net.Conn{client}}
	accepted, err := listener.Accept()
	if err != nil {
		c.close()
		return nil, fmt.Errorf("accept: %w", err)
	}
	c.ends = append(c.ends, accepted)
	c.flow = cookie.Flow{Source: accepted.RemoteAddr().(*net.TCPAddr).AddrPort(), Destination: server}
	if err := c.readNumbers(accepted.(*net.TCPConn)); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// readNumbers asks the server's socket for its sequence numbers, which the
// kernel tells in repair mode only (tcp(7)).
func (c *connection) readNumbers(accepted *net.TCPConn) error {
	raw, err := accepted.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach the socket: %w", err)
	}
	read := func(queue int, number *uint32) func(uintptr) error {
		return func(fd uintptr) error {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR_QUEUE, queue); err != nil {
				return err
			}
			n, err := unix.GetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_QUEUE_SEQ)
			*number = uint32(n)
			return err
		}
	}
	set := func(mode int) func(uintptr) error {
		return func(fd uintptr) error { return unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_REPAIR, mode) }
	}
	for _, step := range []func(uintptr) error{
		set(unix.TCP_REPAIR_ON), read(receiveQueue, &c.seq), read(sendQueue, &c.ack), set(unix.TCP_REPAIR_OFF_NO_WP),
	} {
		if err := control(raw, step); err != nil {
			return fmt.Errorf("read sequence numbers of a socket: %w", err)
		}
	}
	return nil
}

// Queues of TCP_REPAIR_QUEUE, include/uapi/linux/tcp.h.
const (
	receiveQueue = 1
	sendQueue    = 2
)

func control(raw syscall.RawConn, step func(uintptr) error) error {
	var inner error
	outer := raw.Control(func(fd uintptr) { inner = step(fd) })
	return errors.Join(outer, inner)
}
