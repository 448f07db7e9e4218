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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

const (
	echoPort = 8007
	// requestLimit ends what will not succeed any more; a lost SYN or first
	// segment is repeated well within it.
	requestLimit = 10 * time.Second
)

// dial connects from a host of the lab: a socket belongs to the network
// namespace of the thread that makes it, whoever uses it later.
func dial(ctx context.Context, from *lab.Namespace, address string) (net.Conn, error) {
	return dialBy(ctx, net.Dialer{KeepAlive: -1, Timeout: requestLimit}, from, address)
}

func dialBy(ctx context.Context, dialer net.Dialer, from *lab.Namespace, address string) (conn net.Conn, err error) {
	err = from.Do(func() (err error) {
		conn, err = dialer.DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// shortRequest asks for the connection to be closed and waits until the server
// has closed it: TIME_WAIT is on the server, and the client's port is free.
func shortRequest(ctx context.Context, from *lab.Namespace, address string) error {
	conn, err := dial(ctx, from, address)
	if err != nil {
		return err
	}
	return askAndRead(conn)
}

func askAndRead(conn net.Conn) error {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(requestLimit)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(answer, []byte("HTTP/1.1 200 ")) || !bytes.HasSuffix(answer, []byte("served\n")) {
		return fmt.Errorf("answer %q", answer)
	}
	return nil
}

// hesitation is below the 200 ms after which the kernel sends an ACK anyway.
const hesitation = 180 * time.Millisecond

// hesitantRequest lets nothing follow the SYN for a pause below that: then the
// request itself answers the SYN-ACK, perhaps in another epoch.
func hesitantRequest(ctx context.Context, from *lab.Namespace, address string, pause time.Duration) error {
	dialer := net.Dialer{KeepAlive: -1, Timeout: requestLimit, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
		}), err)
	}}
	conn, err := dialBy(ctx, dialer, from, address)
	if err != nil {
		return err
	}
	<-time.After(pause)
	return askAndRead(conn)
}

// outcome is what became of requests.
type outcome struct {
	mu        sync.Mutex
	latencies []time.Duration
	failures  []error
}

func (o *outcome) add(latency time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.latencies = append(o.latencies, latency)
	if err != nil {
		o.failures = append(o.failures, err)
	}
}

// p99 is the latency that one request in a hundred exceeds.
func (o *outcome) p99() time.Duration {
	slices.Sort(o.latencies)
	return o.latencies[len(o.latencies)*99/100]
}

func (o *outcome) String() string {
	return fmt.Sprintf("%d requests, %d failed, p99 %s, max %s",
		len(o.latencies), len(o.failures), o.p99(), slices.Max(o.latencies))
}

// requests makes so many per second, whatever becomes of the earlier ones, and
// waits for the last.
func requests(rate int, duration time.Duration, request func(i int) error) *outcome {
	result := &outcome{}
	var pending sync.WaitGroup
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	begin := time.Now()
	for issued, total := 0, int(duration.Seconds()*float64(rate)); issued < total; <-tick.C {
		due := min(total, int(time.Since(begin).Seconds()*float64(rate)))
		for ; issued < due; issued++ {
			i := issued
			pending.Go(func() {
				start := time.Now()
				err := request(i)
				result.add(time.Since(start), err)
			})
		}
	}
	pending.Wait()
	return result
}

// serveEcho sends everything back that comes to the server's echo port, until
// the test ends.
func serveEcho(t *testing.T, l *lab.Lab) {
	t.Helper()
	var listener net.Listener
	if err := l.Server.Do(func() (err error) {
		config := net.ListenConfig{KeepAlive: -1}
		config.SetMultipathTCP(false)
		listener, err = config.Listen(t.Context(), "tcp", fmt.Sprintf(":%d", echoPort))
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
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // how it ends, the client finds out
			}()
		}
	}()
}

func echoAddress(l *lab.Lab, ipv6 bool) string {
	return netip.AddrPortFrom(l.Server.Addr(ipv6), echoPort).String()
}

func httpAddress(l *lab.Lab, ipv6 bool) string {
	return netip.AddrPortFrom(l.Server.Addr(ipv6), lab.HTTPPort).String()
}

// talk is a connection to the echo server.
type talk struct {
	conn   net.Conn
	random *rand.ChaCha8
	sent   []byte
}

// say sends that many random bytes and wants the same ones back in time.
func (t *talk) say(bytesSent int, within time.Duration) error {
	t.sent = make([]byte, bytesSent)
	_, _ = t.random.Read(t.sent) // never fails
	if err := t.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := t.conn.Write(t.sent); err != nil {
		return err
	}
	return t.hear(within)
}

// hear wants back in time what was said last.
func (t *talk) hear(within time.Duration) error {
	if err := t.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	back := make([]byte, len(t.sent))
	if _, err := io.ReadFull(t.conn, back); err != nil {
		return err
	}
	if !bytes.Equal(t.sent, back) {
		return errors.New("the stream came back changed")
	}
	return nil
}

// newTalks opens connections, IPv4 and IPv6 in turn, and uses each once.
func newTalks(t *testing.T, l *lab.Lab, count int) []*talk {
	t.Helper()
	talks := make([]*talk, count)
	errs := forEach(talks, func(i int, _ *talk) error {
		conn, err := dial(t.Context(), l.Client.Namespace, echoAddress(l, i%2 == 1))
		if err != nil {
			return err
		}
		talks[i] = &talk{conn: conn, random: rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)})}
		return talks[i].say(100, requestLimit)
	})
	t.Cleanup(func() {
		for _, talk := range talks {
			if talk != nil {
				talk.conn.Close()
			}
		}
	})
	noErrors(t, "open connections", errs)
	return talks
}

// forEach does something with all at once, at most 100 at a time.
func forEach(talks []*talk, do func(int, *talk) error) []error {
	errs := make([]error, len(talks))
	turns := make(chan struct{}, 100)
	var all sync.WaitGroup
	for i, talk := range talks {
		turns <- struct{}{}
		all.Go(func() {
			errs[i] = do(i, talk)
			<-turns
		})
	}
	all.Wait()
	return errs
}

// noErrors fails with the number of errors and the first few of them.
func noErrors(t *testing.T, what string, errs []error) {
	t.Helper()
	bad := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(bad) > 0 {
		t.Fatalf("%s: %d of %d failed, such as %v", what, len(bad), len(errs), bad[:min(3, len(bad))])
	}
}

// allAnswer lets every connection say something.
func allAnswer(t *testing.T, what string, talks []*talk) {
	t.Helper()
	noErrors(t, what, forEach(talks, func(_ int, talk *talk) error { return talk.say(100, requestLimit) }))
}

// transfers keep every connection busy until they are stopped.
type transfers struct {
	stop   context.CancelFunc
	busy   sync.WaitGroup
	errs   []error
	rounds []int
}

const (
	transferChunk = 3000 // more than one segment
	transferPause = 400 * time.Millisecond
)

func startTransfers(ctx context.Context, talks []*talk) *transfers {
	ctx, stop := context.WithCancel(ctx)
	running := &transfers{stop: stop, errs: make([]error, len(talks)), rounds: make([]int, len(talks))}
	for i, talk := range talks {
		running.busy.Go(func() {
			tick := time.NewTicker(transferPause)
			defer tick.Stop()
			for ctx.Err() == nil && running.errs[i] == nil {
				running.errs[i] = talk.say(transferChunk, requestLimit)
				running.rounds[i]++
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		})
	}
	return running
}

// finish stops them; none may have failed or stood still.
func (r *transfers) finish(t *testing.T) {
	t.Helper()
	r.stop()
	r.busy.Wait()
	noErrors(t, "transfers", r.errs)
	if least := slices.Min(r.rounds); least < 2 {
		t.Errorf("a transfer made only %d rounds", least)
	}
}

// allServed wants every request of a load answered.
func allServed(t *testing.T, what string, report lab.LoadReport) {
	t.Helper()
	var kinds []string
	for kind, n := range report.Errors {
		kinds = append(kinds, fmt.Sprintf("%d %s", n, kind))
	}
	if report.Requests == 0 || report.OK != report.Requests {
		t.Errorf("%s: %d of %d requests served: %s", what, report.OK, report.Requests, strings.Join(kinds, ", "))
	}
	t.Logf("%s: %d requests, %d served, p50 %.1f ms, p99 %.1f ms, max %.1f ms",
		what, report.Requests, report.OK, report.P50, report.P99, report.Max)
}
