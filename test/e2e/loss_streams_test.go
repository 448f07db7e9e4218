package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

// kind is what a connection across a bad wire says. The server sends back all
// that it gets, so that what the client reads proves both directions.
type kind struct {
	name        string
	port        uint16
	bytes       int
	serverFirst bool
}

// banner is what a server that speaks first says.
var banner = []byte("220 lab ready\r\n")

var (
	lossKinds = []kind{
		{"1 B", 8101, 1, false},
		{"2 kB", 8102, 2000, false}, // a first flight of two segments
		{"100 kB", 8103, 100_000, false},
		{"server first", 8104, 100, true},
	}
	lossPorts = fmt.Sprintf("%d-%d", lossKinds[0].port, lossKinds[len(lossKinds)-1].port)
)

// errHole is a stream that ended as if it were whole and is not. Nothing
// excuses it.
var errHole = errors.New("the stream has ended and is not what was sent")

// stream is what became of a connection.
type stream struct {
	err         error
	firstByte   time.Duration // from the SYN to the server's first byte
	retransmits uint32        // the client's, its SYN included
}

// tally is what became of many.
type tally struct {
	mu      sync.Mutex
	streams []stream
}

func (c *tally) add(s stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams = append(c.streams, s)
}

// count tells how many streams satisfy a condition.
func (c *tally) count(is func(error) bool) (n int) {
	for _, s := range c.streams {
		if is(s.err) {
			n++
		}
	}
	return n
}

func (c *tally) failed() int { return c.count(func(err error) bool { return err != nil }) }
func (c *tally) holes() int  { return c.count(func(err error) bool { return errors.Is(err, errHole) }) }

// example is one of the errors.
func (c *tally) example() error {
	for _, s := range c.streams {
		if s.err != nil {
			return s.err
		}
	}
	return nil
}

// firstByte returns the time that a share of the streams that completed do not
// exceed.
func (c *tally) firstByte(share float64) time.Duration {
	var times []time.Duration
	for _, s := range c.streams {
		if s.err == nil {
			times = append(times, s.firstByte)
		}
	}
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(len(times)-1, int(share*float64(len(times))))]
}

// retransmits returns their mean over the streams that completed.
func (c *tally) retransmits() float64 {
	total, n := 0.0, 0
	for _, s := range c.streams {
		if s.err == nil {
			total += float64(s.retransmits)
			n++
		}
	}
	return total / float64(max(n, 1))
}

// serveKinds serves every kind until the test ends.
func serveKinds(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, kind := range lossKinds {
		listener := listenIn(t, l.Server.Namespace, fmt.Sprintf(":%d", kind.port))
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return // the test is over
				}
				go kind.serve(conn)
			}
		}()
	}
}

// serverPatience is longer than any client's.
const serverPatience = 3 * time.Minute

func (k kind) serve(conn net.Conn) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(serverPatience)); err != nil {
		return
	}
	if k.serverFirst {
		if _, err := conn.Write(banner); err != nil {
			return
		}
	}
	_, _ = io.Copy(conn, conn) // how it ends, the client finds out
}

// talkAcross makes one connection of the kind.
func (k kind) talkAcross(ctx context.Context, l *lab.Lab, ipv6 bool, seed uint64, limit time.Duration) (s stream) {
	begin := time.Now()
	address := netip.AddrPortFrom(l.Server.Addr(ipv6), k.port).String()
	conn, err := dialBy(ctx, net.Dialer{KeepAlive: -1, Timeout: limit}, l.Client.Namespace, address)
	if err != nil {
		return stream{err: err}
	}
	defer conn.Close()
	if s.err = conn.SetDeadline(begin.Add(limit)); s.err != nil {
		return s
	}
	payload := make([]byte, k.bytes)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(k.port)}).Read(payload) // never fails
	s.firstByte, s.err = k.exchange(conn, payload, begin)
	if s.err == nil {
		s.retransmits, s.err = retransmitsOf(conn)
	}
	return s
}

// exchange sends the payload while it reads, up to the end of the stream.
func (k kind) exchange(conn net.Conn, payload []byte, begin time.Time) (firstByte time.Duration, err error) {
	want := payload
	if k.serverFirst {
		if err := awaitFirst(conn, banner); err != nil {
			return 0, err
		}
		firstByte = time.Since(begin)
		want = payload
	}
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(payload)
		written <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	defer func() { err = errors.Join(err, <-written) }()
	got := make([]byte, 1, len(want)+1)
	if _, err := io.ReadFull(conn, got); err != nil {
		return 0, ended(err)
	}
	if !k.serverFirst {
		firstByte = time.Since(begin)
	}
	rest, err := io.ReadAll(io.LimitReader(conn, int64(len(want))))
	if err != nil {
		return 0, err
	}
	if !bytes.Equal(append(got, rest...), want) {
		return 0, fmt.Errorf("%w: %d bytes of %d", errHole, len(rest)+1, len(want))
	}
	return firstByte, nil
}

func awaitFirst(conn net.Conn, want []byte) error {
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil {
		return ended(err)
	}
	if !bytes.Equal(got, want) {
		return errHole
	}
	return nil
}

// ended calls a stream that ends before its time a hole.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errHole
	}
	return err
}

// retransmitsOf asks the kernel how often the connection's client sent anything
// again.
func retransmitsOf(conn net.Conn) (uint32, error) {
	info, err := infoOf(conn)
	if err != nil {
		return 0, err
	}
	return info.Total_retrans, nil
}

// infoOf is what the kernel tells of a connection.
func infoOf(conn net.Conn) (info *unix.TCPInfo, err error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	controlled := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	return info, errors.Join(controlled, err)
}
