package bench

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

func siteFor(t *testing.T, p *protection) *site {
	t.Helper()
	s, err := openSite(t.Context(), p.guard)
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	})
	return s
}

// Two sieges of each site: the second one's clients are new, too, or there would be
// no figures of those that challenge addresses.
func TestEachProtectionServesBesideAFlood(t *testing.T) {
	needRoot(t)
	c := siege{flood: 20_000, rate: 100, duration: 400 * time.Millisecond, apart: 200 * time.Millisecond, timeout: 10 * time.Second, body: body}
	for _, p := range protections() {
		t.Run(p.name, func(t *testing.T) {
			s := siteFor(t, p)
			c := c
			if c.again = p.resets; !p.lasts() {
				c.timeout = 500 * time.Millisecond
			}
			for range 2 {
				shown, err := s.endure(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				f, err := shown.figures(c)
				if err != nil {
					t.Fatal(err)
				}
				if served := f[servedPercent]; p.lasts() && served < 100 || !p.lasts() && served > 20 {
					t.Errorf("%.1f%% served: %v", served, shown.benign.Errors)
				}
				if f[offeredRate] == 0 || p.lasts() && f[answeredPercent] == 0 {
					t.Errorf("a flood: %v", f)
				}
			}
		})
	}
}

// The clients are as far away as asked for, and come back; the flood is not, and is
// no load for their wire.
func TestClientsAreFarAwayAndTheFloodIsNot(t *testing.T) {
	needRoot(t)
	s := siteFor(t, &protection{name: "split", guard: guarded{defence: "split"}})
	c := siege{flood: 20_000, rate: 100, duration: 400 * time.Millisecond, apart: 200 * time.Millisecond, timeout: 10 * time.Second, body: body}
	for _, away := range []time.Duration{far, near, farther} {
		c.away = away
		shown, err := s.endure(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		b, twice := shown.benign, float64(2*away.Milliseconds())
		if b.OK != b.Requests || b.First.P50 < twice || b.Later.P50 < twice {
			t.Errorf("RTT %s: %d of %d served; a handshake and an answer took %.1f ms, later %.1f ms", away, b.OK, b.Requests, b.First.P50, b.Later.P50)
		}
		if passed := shown.wire.Passed; (passed > 0) != (away > 0) || passed > 100*b.Requests {
			t.Errorf("RTT %s: the clients' wire has passed %d frames for %d requests", away, passed, b.Requests)
		}
	}
}

// sendScale is the window scale that the server's SYN-ACK offers.
func sendScale(t *testing.T, s *site) (scale int) {
	t.Helper()
	err := s.lab.Client.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(s.lab.Server.IPv4, lab.HTTPPort).String(), 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		return control(raw, func(fd uintptr) error {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			if err == nil {
				scale = int((*[8]byte)(unsafe.Pointer(info))[6] & 15) // a bit field of struct tcp_info, which Go leaves out
			}
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return scale
}

func TestSynproxyOffersTheServersWindowScale(t *testing.T) {
	needRoot(t)
	s := siteFor(t, &protection{name: "no defence", guard: guarded{defence: "none"}})
	server := sendScale(t, s)
	if err := besideSynproxy(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if proxied := sendScale(t, s); proxied != server {
		t.Errorf("SYNPROXY offers scale %d, the server %d", proxied, server)
	}
}

// What cannot be opened is closed, and says why.
func TestSiteThatCannotBeOpenedIsClosed(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s, err := openSite(ctx, guarded{defence: "split"})
	if s != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", s, err)
	}
	if _, err := newStation(ctx, bySplit); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
