package lab

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"smartcookie/internal/badwire"
)

func TestClientReachesServerThroughBadWires(t *testing.T) {
	faults := &badwire.Faults{Loss: 2, Duplicate: 2, Reorder: 2, Delay: 2 * time.Millisecond, Jitter: time.Millisecond}
	for name, options := range map[string]Options{
		"route":  {Wire: faults, InsideWire: faults},
		"bridge": {Topology: Bridge, Resolve: true, Wire: faults, InsideWire: faults},
	} {
		t.Run(name, func(t *testing.T) {
			lab := newLab(t, options)
			if _, err := lab.Defend(t.Context(), "kernel"); err != nil {
				t.Fatal(err)
			}
			if _, err := lab.StartServer(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, ipv6 := range []bool{false, true} {
				report := load(t, lab, LoadOptions{URL: lab.URL(ipv6), Rate: 100, Duration: time.Second, Timeout: 20 * time.Second})
				if report.Requests == 0 || report.OK != report.Requests {
					t.Errorf("IPv6 %t: %+v", ipv6, report)
				}
				if shortest := 8.0; report.P50 < shortest {
					t.Errorf("IPv6 %t: half of the requests took less than %v ms", ipv6, shortest)
				}
			}
			for _, wire := range []*badwire.Wire{lab.Wire, lab.InsideWire} {
				for direction, c := range wire.Counts() {
					if c.Passed == 0 || c.Lost == 0 || c.Duplicated == 0 || c.Reordered == 0 || c.Overload > 0 {
						t.Errorf("direction %d: %+v", direction, c)
					}
				}
			}
		})
	}
}

func TestStandingLabKeepsItsWire(t *testing.T) {
	needRoot(t)
	if err := Down(); err != nil && !errors.Is(err, ErrNotStanding) {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Down() })
	lab, err := New(Options{Standing: true, Wire: &badwire.Faults{Delay: 20 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lab.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	conn := dialServer(t, lab, "tcp", HTTPPort)
	conn.Close()
	if took := time.Since(begin); took < 40*time.Millisecond {
		t.Errorf("connected after %s, sooner than one round trip", took)
	}
}

func dialServer(t *testing.T, lab *Lab, network string, port uint16) (conn net.Conn) {
	t.Helper()
	if err := lab.Client.Do(func() (err error) {
		conn, err = net.DialTimeout(network, netip.AddrPortFrom(lab.Server.IPv4, port).String(), 5*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return conn
}

const (
	gaugePort = 9
	gaugeRate = 20_000 // packets per second
	// clockGap is how far the test's clock and the kernel's stamps may be apart.
	clockGap = 100 * time.Microsecond
)

// Accuracy is logged, not judged: on a busy machine it says more of the others.
func TestBadWireCarriesTwentyThousandPacketsPerSecond(t *testing.T) {
	faults := badwire.Faults{Loss: 1, Delay: 5 * time.Millisecond}
	lab := newLab(t, Options{Wire: &faults})
	var listener *net.UDPConn
	if err := lab.Server.Do(func() (err error) {
		listener, err = net.ListenUDP("udp", &net.UDPAddr{Port: gaugePort})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := listener.SetReadBuffer(64 << 20); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	errorsOfDelay := make(chan []time.Duration)
	go func() { errorsOfDelay <- gauge(listener, begin, faults.Delay) }()
	const packets = 2 * gaugeRate
	sent := sendPaced(t, dialServer(t, lab, "udp", gaugePort), begin, packets)
	var c badwire.Counts
	eventually(t, "the wire has dealt with every packet", func() bool {
		c = lab.Wire.Counts()[0]
		return c.Passed+c.Lost+c.Overload >= packets
	})
	if err := listener.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	off := <-errorsOfDelay
	slices.Sort(off)
	t.Logf("%d packets in %s, delay off by p50 %s, p99 %s, max %s; %+v", packets, sent.Round(time.Millisecond),
		off[len(off)/2], off[len(off)*99/100], off[len(off)-1], c)
	if c.Overload > 0 {
		t.Errorf("overload: %+v", c)
	}
	if off[0] < -clockGap {
		t.Errorf("a packet came %s before its time", -off[0])
	}
}

// sendPaced sends so many packets that carry when they were sent.
func sendPaced(t *testing.T, conn net.Conn, begin time.Time, packets int) time.Duration {
	t.Helper()
	defer conn.Close()
	tick := time.NewTicker(500 * time.Microsecond)
	defer tick.Stop()
	started := time.Now()
	payload := make([]byte, 1000)
	for sent := 0; sent < packets; <-tick.C {
		due := min(packets, int(time.Since(started).Seconds()*gaugeRate))
		for ; sent < due; sent++ {
			binary.BigEndian.PutUint64(payload, uint64(time.Since(begin)))
			if _, err := conn.Write(payload); err != nil {
				t.Fatal(err)
			}
		}
	}
	return time.Since(started)
}

// gauge returns how much longer than the delay each packet took.
func gauge(listener *net.UDPConn, begin time.Time, delay time.Duration) (off []time.Duration) {
	room := make([]byte, 2000)
	for {
		n, err := listener.Read(room)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) || n < 8 {
			return off
		}
		off = append(off, time.Since(begin)-time.Duration(binary.BigEndian.Uint64(room))-delay)
	}
}

// A wire can become a good one, and a bad one again.
func TestWireIsChanged(t *testing.T) {
	const delay = 10 * time.Millisecond
	lab := newLab(t, Options{Wire: &badwire.Faults{Delay: delay}})
	if _, err := lab.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.Defend(t.Context(), "kernel"); err != nil {
		t.Fatal(err)
	}
	for i, faults := range []badwire.Faults{{Delay: delay}, {}, {}, {Delay: 2 * delay}} {
		if i > 0 {
			if err := lab.Rewire(faults); err != nil {
				t.Fatal(err)
			}
		}
		if (lab.Wire != nil) != faults.Bad() {
			t.Errorf("%+v: the wire is %v", faults, lab.Wire)
		}
		// A handshake and an answer take two round trips.
		least := float64((4 * faults.Delay).Milliseconds())
		report := load(t, lab, LoadOptions{URL: lab.URL(false), Rate: 50, Duration: 300 * time.Millisecond, Timeout: 20 * time.Second})
		if report.OK == 0 || report.OK != report.Requests || report.P50 < least {
			t.Errorf("%+v: %+v", faults, report)
		}
	}
	if err := newLab(t, Options{}).Rewire(badwire.Faults{}); err == nil {
		t.Error("a lab without a wire has one that can be changed")
	}
}
