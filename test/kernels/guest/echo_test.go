package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

const (
	echoSize     = 256 << 10
	connections  = 4 // of each family
	talkDeadline = 30 * time.Second
	greeting     = "served\n"
)

// serveEcho returns to each client what it sent.
func serveEcho(t *testing.T, l *lab.Lab, device string) {
	t.Helper()
	serve(t, l, device, echo)
}

// serve listens on both families in the server's namespace, bound to a device
// if one is named.
func serve(t *testing.T, l *lab.Lab, device string, handle func(*net.TCPConn)) {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the kernel refuses to adopt cookies for MPTCP
	config.Control = func(_, _ string, socket syscall.RawConn) error {
		if device == "" {
			return nil
		}
		var bound error
		err := socket.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), device) })
		if err != nil {
			return err
		}
		return bound
	}
	var listener net.Listener
	err := l.Server.Do(func() (err error) {
		listener, err = config.Listen(t.Context(), "tcp", fmt.Sprintf(":%d", lab.HTTPPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return // closed with the test
			}
			go handle(connection.(*net.TCPConn))
		}
	}()
}

// echo shows its failures to the client, which gets less than it sent.
func echo(connection *net.TCPConn) {
	defer connection.Close()
	_, _ = io.Copy(connection, connection)
	_ = connection.CloseWrite()
}

// greet closes first, so that the connection's TIME_WAIT is the server's.
func greet(connection *net.TCPConn) {
	_, _ = io.WriteString(connection, greeting)
	connection.Close()
}

// talk opens a connection from the client, sends and receives at once, and
// says what went wrong.
func talk(l *lab.Lab, ipv6 bool, data []byte) error {
	connection, err := dial(l, ipv6, 0)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(talkDeadline)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		if _, err := connection.Write(data); err != nil {
			sent <- err
			return
		}
		sent <- connection.CloseWrite()
	}()
	back, err := io.ReadAll(connection)
	if err != nil {
		return fmt.Errorf("receive after %d bytes: %w", len(back), err)
	}
	if err := <-sent; err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if !bytes.Equal(back, data) {
		return fmt.Errorf("%d bytes came back of %d, or others", len(back), len(data))
	}
	return nil
}

// dial connects the client from a port, 0 for any.
func dial(l *lab.Lab, ipv6 bool, port int) (connection *net.TCPConn, err error) {
	err = l.Client.Do(func() error {
		dialer := net.Dialer{Timeout: talkDeadline}
		if port != 0 {
			dialer.LocalAddr = &net.TCPAddr{IP: l.Client.Addr(ipv6).AsSlice(), Port: port}
		}
		dialer.SetMultipathTCP(false)
		made, err := dialer.Dial("tcp", netip.AddrPortFrom(l.Server.Addr(ipv6), lab.HTTPPort).String())
		if err == nil {
			connection = made.(*net.TCPConn)
		}
		return err
	})
	return connection, err
}

// mustTalk makes several connections over each family.
func mustTalk(t *testing.T, l *lab.Lab) {
	t.Helper()
	const seed = 7
	random := rand.NewChaCha8([32]byte{seed})
	data := make([]byte, echoSize)
	for _, ipv6 := range []bool{false, true} {
		for i := range connections {
			_, _ = random.Read(data) // it never fails
			began := time.Now()
			if err := talk(l, ipv6, data); err != nil {
				t.Fatalf("connection %d to %s (seed %d): %v", i, l.Server.Addr(ipv6), seed, err)
			}
			t.Logf("%s: %d bytes there and back in %s", l.Server.Addr(ipv6), echoSize, time.Since(began).Round(time.Millisecond))
		}
	}
}

// mustBeDefended talks, and checks that both halves have done their work: one
// answer and one setup for each connection.
func mustBeDefended(t *testing.T, l *lab.Lab, guard *lab.Guard) {
	t.Helper()
	mustTalk(t, l)
	edge, server := countsOf(t, guard)
	t.Logf("edge: %v", edge)
	t.Logf("server: %v", server)
	if edge["answer_syn"] != 2*connections || server["setup"] != 2*connections {
		t.Errorf("answer_syn is %d and setup is %d, want %d each", edge["answer_syn"], server["setup"], 2*connections)
	}
	for _, verdict := range []string{"drop_bad_cookie", "drop_refused", "pass_closed_port"} {
		if n := server[verdict]; n != 0 {
			t.Errorf("server: %s is %d", verdict, n)
		}
	}
}

// mustBeGreeted makes several connections from one port over each family.
func mustBeGreeted(t *testing.T, l *lab.Lab) {
	t.Helper()
	const port = 40000
	for _, ipv6 := range []bool{false, true} {
		for i := range connections {
			connection, err := dial(l, ipv6, port)
			if err != nil {
				t.Fatalf("connection %d from one port: %v", i, err)
			}
			err = connection.SetDeadline(time.Now().Add(talkDeadline))
			said, readErr := io.ReadAll(connection)
			connection.Close()
			if err := errors.Join(err, readErr); err != nil || string(said) != greeting {
				t.Fatalf("connection %d from one port: %q, %v", i, said, err)
			}
		}
	}
}
