package e2e

import (
	"fmt"
	"net"
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
)

// A server that takes a far client for a neighbour sends everything again long
// before he can have acknowledged it.
func TestServerKnowsHowFarItsClientIs(t *testing.T) {
	const oneWay = 60 * time.Millisecond
	// Both ends have the clock that the kernel has at hand: it is a tick old.
	const least = 2*oneWay - 20*time.Millisecond
	for _, shape := range []shape{splitRoute, hostShape} {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{Wire: &badwire.Faults{Delay: oneWay}, Setup: "native"}, protection{})
			listener := listenIn(t, l.Server.Namespace, fmt.Sprintf(":%d", lab.HTTPPort))
			for _, ipv6 := range []bool{false, true} {
				t.Run(family(ipv6), func(t *testing.T) {
					if got := roundTripAtServer(t, l, listener, ipv6); got < least {
						t.Errorf("the server takes its client to be %s away, of %s", got, 2*oneWay)
					}
				})
			}
		})
	}
}

// roundTripAtServer is what its kernel thinks before it has sent anything.
func roundTripAtServer(t *testing.T, l *lab.Lab, listener net.Listener, ipv6 bool) time.Duration {
	t.Helper()
	conn, err := dialIn(l.Client.Namespace, net.Dialer{}, webAddress(l, ipv6))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	info, err := infoOf(accepted)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(info.Rtt) * time.Microsecond
}
