package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
)

// firstFlight is as long as a ClientHello with a post-quantum key share: two
// segments, whatever of our MSSs the client is given.
const firstFlight = 1800

// helloPort has a server that says its first byte when it has read all of a
// client's first flight.
const helloPort = 8010

func serveHello(t *testing.T, l *lab.Lab) {
	t.Helper()
	listener := listenIn(t, l.Server.Namespace, fmt.Sprintf(":%d", helloPort))
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			go func() {
				defer conn.Close()
				if conn.SetDeadline(time.Now().Add(serverPatience)) != nil {
					return
				}
				if _, err := io.ReadFull(conn, make([]byte, firstFlight)); err == nil {
					_, _ = conn.Write([]byte{1}) // if it is lost, the client says so
				}
			}()
		}
	}()
}

// hello makes one connection and measures from its SYN to the server's first byte.
func hello(t *testing.T, l *lab.Lab, ipv6 bool) (s stream) {
	begin := time.Now()
	at := netip.AddrPortFrom(l.Server.Addr(ipv6), helloPort)
	conn, err := dialBy(t.Context(), net.Dialer{KeepAlive: -1, Timeout: requestLimit}, l.Client.Namespace, at.String())
	if err != nil {
		return stream{err: err}
	}
	defer conn.Close()
	if s.err = conn.SetDeadline(begin.Add(requestLimit)); s.err != nil {
		return s
	}
	if _, s.err = conn.Write(make([]byte, firstFlight)); s.err != nil {
		return s
	}
	_, s.err = io.ReadFull(conn, make([]byte, 1))
	s.firstByte = time.Since(begin)
	retransmits, err := retransmitsOf(conn)
	s.retransmits, s.err = retransmits, errors.Join(s.err, err)
	return s
}

// hellos makes connections, 20 a second, IPv4 and IPv6 in turn.
func hellos(t *testing.T, l *lab.Lab, count int) *tally {
	t.Helper()
	var result tally
	var all sync.WaitGroup
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := range count {
		all.Go(func() { result.add(hello(t, l, i%2 == 1)) })
		<-tick.C
	}
	all.Wait()
	return &result
}

var admissions = []struct{ name, mode string }{
	{"on-cookie", "mode: always"},
	{"on-confirm", onConfirm},
	{"on-confirm, probes", onConfirm + "\n    probes: 1000"},
}

const admissionHead = `| edge to server | admission | failed | first byte p50 | p99 | retransmits |
|---|---|---|---|---|---|
`

// The table of docs/admission.md; nothing may fail in either way.
func TestTimeToFirstByteByAdmission(t *testing.T) {
	count := 20
	if long() {
		count = 300
	}
	table := admissionHead
	for _, delay := range []time.Duration{time.Millisecond, 20 * time.Millisecond} {
		for _, admission := range admissions {
			t.Run(fmt.Sprint(delay, " ", admission.name), func(t *testing.T) {
				l := newLab(t, lab.Options{InsideWire: &badwire.Faults{Delay: delay}})
				serveHello(t, l)
				split := newSpeaking(t, l, false, "learn: 0s", "learn: 0s\ngeneration: 5s",
					"mode: always", admission.mode, fmt.Sprintf("ports: [%d]", lab.HTTPPort), fmt.Sprintf("ports: [%d]", helloPort))
				split.start(t)
				awaitPhase(t, split.edge, "enforced", 30*time.Second)
				result := hellos(t, l, count)
				if n := result.failed(); n > 0 {
					t.Errorf("%d of %d connections failed, such as: %v", n, count, result.example())
				}
				t.Logf("edge %v\nserver %v", split.edge.verdicts(t), split.server.verdicts(t))
				table += fmt.Sprintf("| %s | %s | %d of %d | %.1f ms | %.1f ms | %.2f |\n", delay, admission.name, result.failed(), count,
					milliseconds(result.firstByte(0.5)), milliseconds(result.firstByte(0.99)), result.retransmits())
			})
		}
	}
	t.Log("\n" + table)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
