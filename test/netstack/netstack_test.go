package netstack_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"smartcookie/internal/lab"
	"smartcookie/test/netstack"
)

func newLab(t *testing.T, options lab.Options) *lab.Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("this test needs root, and CI has to give it")
		}
		t.Skip("this test needs root")
	}
	l, err := lab.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func newStack(t *testing.T, l *lab.Lab) *netstack.Stack {
	t.Helper()
	s, err := netstack.InLab(l, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// echoIn sends back what comes to port 80 of the lab's server, in capitals, and
// resets who says nothing.
func echoIn(t *testing.T, l *lab.Lab) {
	t.Helper()
	var listener net.Listener
	if err := l.Server.Do(func() (err error) {
		listener, err = net.Listen("tcp", ":80")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			go answer(conn.(*net.TCPConn))
		}
	}()
}

func answer(conn *net.TCPConn) {
	defer conn.Close()
	text := make([]byte, 100)
	n, err := conn.Read(text)
	if err != nil || string(text[:n]) == "reset" {
		_ = conn.SetLinger(0) // what goes wrong, the client finds out
		return
	}
	_, _ = io.WriteString(conn, strings.ToUpper(string(text[:n])))
}

func TestSecondStackTalksToAKernel(t *testing.T) {
	for name, topology := range map[string]lab.Topology{"route": lab.Route, "bridge": lab.Bridge} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, lab.Options{Topology: topology})
			if _, err := l.Defend(t.Context(), "none"); err != nil {
				t.Fatal(err)
			}
			echoIn(t, l)
			s := newStack(t, l)
			for _, ipv6 := range []bool{false, true, false} {
				if out, err := l.Client.Command(t.Context(), "curl", "-s", l.URL(ipv6)).CombinedOutput(); err != nil && len(out) > 0 {
					t.Fatalf("curl: %v: %s", err, out) // what the kernel says beside it does no harm
				}
				talk(t, s, net.JoinHostPort(l.Server.Addr(ipv6).String(), "80"))
			}
		})
	}
}

func talk(t *testing.T, s *netstack.Stack, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := s.Dial(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "HELLO" {
		t.Errorf("%s answers %q, %v", address, got, err)
	}
	if from, _, _ := net.SplitHostPort(conn.LocalAddr().String()); !strings.HasSuffix(from, "3") {
		t.Errorf("the connection comes from %s, which is the kernel's", from)
	}
}

func TestErrorsAreThoseOfTheSystem(t *testing.T) {
	l := newLab(t, lab.Options{})
	echoIn(t, l)
	s := newStack(t, l)
	address := l.Server.IPv4.String()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.Dial(ctx, net.JoinHostPort(address, "81")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port says %v", err)
	}
	conn, err := s.Dial(ctx, net.JoinHostPort(address, "80"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "reset"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a reset connection says %v", err)
	}
}

func TestPortCanBeUsedAgain(t *testing.T) {
	l := newLab(t, lab.Options{})
	echoIn(t, l)
	s := newStack(t, l)
	address := net.JoinHostPort(l.Server.IPv6.String(), "80")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 3 {
		conn, err := s.DialFrom(ctx, 30000, address)
		for errors.Is(err, syscall.EADDRINUSE) && ctx.Err() == nil { // until the last one is gone
			<-tick.C
			conn, err = s.DialFrom(ctx, 30000, address)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != "HELLO" {
			t.Errorf("%q, %v", got, err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
