package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
	"smartcookie/test/netstack"
)

// stackUnderTest is a client's TCP stack, with addresses of its own.
type stackUnderTest struct {
	name string
	// dial connects from a port, or from any if it is 0.
	dial func(ctx context.Context, port uint16, address string) (net.Conn, error)
}

// twoStacks are the client's kernel and gVisor's netstack beside it.
func twoStacks(t *testing.T, l *lab.Lab) []stackUnderTest {
	t.Helper()
	second, err := netstack.InLab(l, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	})
	kernel := func(ctx context.Context, port uint16, address string) (net.Conn, error) {
		dialer := net.Dialer{KeepAlive: -1, Control: onSocket(func(fd int) error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		})}
		if port != 0 {
			dialer.LocalAddr = &net.TCPAddr{Port: int(port)}
		}
		return dialBy(ctx, dialer, l.Client.Namespace, address)
	}
	return []stackUnderTest{{"Linux", kernel}, {"netstack", second.DialFrom}}
}

// exchange is what goes over a connection: so many bytes up and down, and the
// server's word on the hash of what it got.
type exchange struct {
	up, down      uint32
	serverFirst   bool // the server has a word before the client has any
	serverCloses  bool // it ends the connection, and has its TIME_WAIT
	seed          uint64
	whileItStands func(net.Conn) // between the last byte and the end
}

var errCorrupt = errors.New("the stream is not what was sent")

// headerBytes say the server what is asked of it: sizes, seed, who closes.
const headerBytes = 4 + 4 + 8 + 1

func (e exchange) header() []byte {
	b := binary.BigEndian.AppendUint32(nil, e.up)
	b = binary.BigEndian.AppendUint32(b, e.down)
	b = binary.BigEndian.AppendUint64(b, e.seed)
	if e.serverCloses {
		return append(b, 1)
	}
	return append(b, 0)
}

func exchangeOf(header []byte) exchange {
	return exchange{
		up: binary.BigEndian.Uint32(header), down: binary.BigEndian.Uint32(header[4:]),
		seed: binary.BigEndian.Uint64(header[8:]), serverCloses: header[16] == 1,
	}
}

// data are the bytes of one direction.
func (e exchange) data(way byte, size uint32) io.Reader {
	key := [32]byte{31: way}
	binary.BigEndian.PutUint64(key[:], e.seed)
	return io.LimitReader(rand.NewChaCha8(key), int64(size))
}

// exchangeServer answers exchanges on port 80 of the lab's server.
type exchangeServer struct {
	speaksFirst atomic.Bool
	accepted    atomic.Uint64
}

func serveExchanges(t *testing.T, l *lab.Lab) *exchangeServer {
	t.Helper()
	s := &exchangeServer{}
	listener := listenIn(t, l.Server.Namespace, ":80")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			s.accepted.Add(1)
			go s.serve(conn)
		}
	}()
	return s
}

// serve leaves it to the client to find out how it ends.
func (s *exchangeServer) serve(conn net.Conn) {
	defer conn.Close()
	if conn.SetDeadline(time.Now().Add(serverPatience)) != nil {
		return
	}
	if s.speaksFirst.Load() {
		if _, err := conn.Write(banner); err != nil {
			return
		}
	}
	header := make([]byte, headerBytes)
	if _, err := io.ReadFull(conn, header); err != nil {
		return
	}
	e := exchangeOf(header)
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, e.data('d', e.down))
		sent <- err
	}()
	sum := sha256.New()
	_, err := io.CopyN(sum, conn, int64(e.up))
	if errors.Join(err, <-sent) != nil {
		return
	}
	_, err = conn.Write(sum.Sum(nil))
	if err == nil && !e.serverCloses {
		_, _ = io.Copy(io.Discard, conn) // until the client closes
	}
}

// run makes the exchange over a new connection.
func (e exchange) run(ctx context.Context, from stackUnderTest, port uint16, address string) error {
	conn, err := from.dial(ctx, port, address)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New("an exchange needs a deadline")
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if e.serverFirst {
		if err := awaitFirst(conn, banner); err != nil {
			return fmt.Errorf("await the server's first word: %w", err)
		}
	}
	if err := e.talk(conn); err != nil {
		return err
	}
	if e.whileItStands != nil {
		e.whileItStands(conn)
	}
	if !e.serverCloses {
		return nil
	}
	if n, err := io.Copy(io.Discard, conn); err != nil || n > 0 {
		return fmt.Errorf("%d bytes behind the end: %w", n, err)
	}
	return nil
}

// talk sends and receives at the same time.
func (e exchange) talk(conn net.Conn) error {
	uploaded := sha256.New()
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(e.header())
		if err == nil {
			_, err = io.Copy(conn, io.TeeReader(e.data('u', e.up), uploaded))
		}
		sent <- err
	}()
	got, want := sha256.New(), sha256.New()
	_, err := io.CopyN(got, conn, int64(e.down))
	word := make([]byte, sha256.Size)
	if err == nil {
		_, err = io.ReadFull(conn, word)
	}
	if err := errors.Join(err, <-sent); err != nil {
		return fmt.Errorf("exchange: %w", err)
	}
	_, _ = io.Copy(want, e.data('d', e.down)) // never fails
	if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		return fmt.Errorf("download: %w", errCorrupt)
	}
	if !bytes.Equal(word, uploaded.Sum(nil)) {
		return fmt.Errorf("upload: %w", errCorrupt)
	}
	return nil
}

// wasReset tells that the other end, or somebody for it, has sent a RST.
func wasReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED)
}

// everyStack runs a test for both stacks and families.
func everyStack(t *testing.T, l *lab.Lab, stacks []stackUnderTest, test func(t *testing.T, from stackUnderTest, address string)) {
	for _, from := range stacks {
		for _, ipv6 := range []bool{false, true} {
			t.Run(from.name+" "+family(ipv6), func(t *testing.T) { test(t, from, webAddress(l, ipv6)) })
		}
	}
}

// together waits for all of the errors of what runs at the same time.
func together(n int, run func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = run(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}
