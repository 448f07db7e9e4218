package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

// wireMode is what the recording server does with a connection.
type wireMode int

const (
	wireEcho  wireMode = iota // sends back what it receives, and never closes by itself
	wireIdle                  // accepts and does not read
	wireClose                 // closes at once
	wireAbort                 // aborts at once: SO_LINGER 0
)

// wireServer accepts connections at the protected port and records them.
type wireServer struct {
	t        *testing.T
	listener net.Listener
	mode     wireMode
	mu       sync.Mutex
	accepted []*wireConn
	ended    chan struct{}
}

// wireConn is a connection as the server's program sees it.
type wireConn struct {
	*net.TCPConn
	mu       sync.Mutex
	received []byte
	end      error // once it has ended
}

// serve listens until the test ends. All that is left is aborted then.
func (w *wireLab) serve(t *testing.T, mode wireMode) *wireServer {
	t.Helper()
	s := &wireServer{t: t, listener: w.listen(t, 128), mode: mode, ended: make(chan struct{})}
	go s.run()
	t.Cleanup(s.stop)
	return s
}

// listen makes a plain TCP listener of both families, or of IPv4 alone.
func (w *wireLab) listen(t *testing.T, backlog int) net.Listener {
	t.Helper()
	var fd int
	err := w.Server.Do(func() (err error) {
		domain, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: lab.HTTPPort})
		if w.only4 {
			domain, address = unix.AF_INET, &unix.SockaddrInet4{Port: lab.HTTPPort}
		}
		if fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open a socket: %w", err)
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, address),
			unix.Listen(fd, backlog),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	listener, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func (s *wireServer) run() {
	defer close(s.ended)
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.accept(&wireConn{TCPConn: conn.(*net.TCPConn)})
	}
}

// becomes changes what is done with connections from now on.
func (s *wireServer) becomes(mode wireMode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

func (s *wireServer) accept(c *wireConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted = append(s.accepted, c)
	switch s.mode {
	case wireEcho:
		go c.echo()
	case wireClose:
		c.Close()
	case wireAbort:
		c.abort()
	}
}

func (c *wireConn) echo() {
	buffer := make([]byte, 64<<10)
	for {
		n, err := c.Read(buffer)
		c.mu.Lock()
		c.received = append(c.received, buffer[:n]...)
		if err != nil {
			c.end = err
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		_, _ = c.Write(buffer[:n]) // whether it arrives, the client tells
	}
}

func (c *wireConn) abort() {
	_ = c.SetLinger(0) // Close says whether the connection is there
	_ = c.Close()
}

func (c *wireConn) read() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.received), c.end
}

func (s *wireServer) stop() {
	s.listener.Close()
	<-s.ended
	for _, c := range s.conns() {
		c.abort()
	}
}

func (s *wireServer) conns() []*wireConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*wireConn{}, s.accepted...)
}

// conn waits for the n-th connection, counted from 0.
func (s *wireServer) conn(n int) *wireConn {
	s.t.Helper()
	eventually(s.t, wirePatience, fmt.Sprintf("connection %d is accepted", n), func() bool { return len(s.conns()) > n })
	return s.conns()[n]
}

// expectOnly checks that there is one connection and what it has received.
func (s *wireServer) expectOnly(want string) {
	s.t.Helper()
	s.expectConns(want)
}

// expectConns checks what each connection has received.
func (s *wireServer) expectConns(want ...string) {
	s.t.Helper()
	s.conn(len(want) - 1)
	for i, data := range want {
		var got []byte
		wirePoll(s.t, wirePatience, func() bool {
			got, _ = s.conns()[i].read()
			return len(got) >= len(data)
		})
		if string(got) != data {
			s.t.Fatalf("connection %d has received %d bytes %.60q, want %d bytes %.60q", i, len(got), got, len(data), data)
		}
	}
	if n := len(s.conns()); n != len(want) {
		s.t.Fatalf("the server has accepted %d connections, want %d", n, len(want))
	}
}

// expectEnd waits until the connection has ended for the program as it should.
func (s *wireServer) expectEnd(c *wireConn, want error) {
	s.t.Helper()
	var end error
	eventually(s.t, wirePatience, "the server's program sees its connection end", func() bool {
		_, end = c.read()
		return end != nil
	})
	if !errors.Is(end, want) {
		s.t.Fatalf("the connection has ended with %v, want %v", end, want)
	}
}

func (s *wireServer) expectEOF(c *wireConn) {
	s.t.Helper()
	s.expectEnd(c, io.EOF)
}
