package host

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/policy"
	"smartcookie/internal/server"
)

// termsOf are those of a host with these sysctls, on which somebody listens on
// port 80.
func termsOf(sysctls map[string]string, always bool, log *bytes.Buffer) *terms {
	host := &server.Host{
		Sysctl: func(name string) (string, bool) {
			v, ok := sysctls[strings.TrimPrefix(name, "net/ipv4/")]
			return v, ok
		},
		Listeners: func() ([]server.Listener, error) {
			return []server.Listener{{Address: netip.MustParseAddrPort("[::]:80")}}, nil
		},
	}
	ports := []policy.PortRange{{Low: 80, High: 80}, {Low: 8000, High: 8099}}
	return newTerms(host, ports, always, slog.New(slog.NewTextHandler(log, nil)))
}

func TestTermsAreNamedWithWhatMendsThem(t *testing.T) {
	for _, test := range []struct {
		name, syncookies, timestamps string
		always                       bool
		want, mend                   string // none: nothing is said
	}{
		{"all is well", "1", "2", false, "", ""},
		{"always, and all is well", "2", "2", true, "", ""},
		{"cookies only in need", "1", "2", true, "tcp_syncookies is 1", "sysctl -w net.ipv4.tcp_syncookies=2"},
		{"hidden timestamps", "2", "1", false, "tcp_timestamps is 1: connections made from cookies lose window scale, SACK and timestamps", "sysctl -w net.ipv4.tcp_timestamps=2"},
		{"no timestamps", "2", "0", false, "tcp_timestamps is 0", "sysctl -w net.ipv4.tcp_timestamps=2"},
	} {
		var log bytes.Buffer
		if err := termsOf(map[string]string{"tcp_syncookies": test.syncookies, "tcp_timestamps": test.timestamps}, test.always, &log).start(); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if said := log.String(); (test.want == "") != (said == "") || !strings.Contains(said, test.want) || !strings.Contains(said, test.mend) {
			t.Errorf("%s: %q", test.name, said)
		}
	}
}

func TestWithoutSyncookiesTheHostIsRefused(t *testing.T) {
	var log bytes.Buffer
	err := termsOf(map[string]string{"tcp_syncookies": "0", "tcp_timestamps": "2"}, false, &log).start()
	var obstacle *server.ObstacleError
	if !errors.As(err, &obstacle) || obstacle.ExitCode() != 2 || !strings.Contains(err.Error(), "sysctl -w net.ipv4.tcp_syncookies=1") {
		t.Errorf("%v", err)
	}
}

func TestTermsThatChangeAreTold(t *testing.T) {
	sysctls := map[string]string{"tcp_syncookies": "1", "tcp_timestamps": "2"}
	var log bytes.Buffer
	terms := termsOf(sysctls, false, &log)
	if err := terms.start(); err != nil {
		t.Fatal(err)
	}
	tell := func(want string) {
		t.Helper()
		log.Reset()
		for range termsTicks {
			terms.tick()
		}
		if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, want) {
			t.Errorf("%q is said, want %q", said, want)
		}
	}
	sysctls["tcp_timestamps"] = "1"
	tell(`level=WARN msg="tcp_timestamps is 1`)
	sysctls["tcp_timestamps"] = "2"
	tell(`level=INFO msg="mended: tcp_timestamps is 1`)
	sysctls["tcp_syncookies"] = "0" // it has started: the kernel takes what comes
	tell(`level=WARN msg="tcp_syncookies is 0`)
}

func TestLimitIsThatOfTheWindow(t *testing.T) {
	for _, test := range []struct {
		syns   int
		window time.Duration
		want   int
	}{
		{1000, 250 * time.Millisecond, 250}, {1000, time.Second, 1000}, {1, 10 * time.Millisecond, 1}, {100_000_000, time.Minute, math.MaxInt32},
	} {
		l := Flood{SYNs: test.syns, Window: test.window, Calm: time.Second}.limits()
		if l.SYNs != test.want || l.CalmMost != 16*time.Second {
			t.Errorf("%d a second in %s: %+v", test.syns, test.window, l)
		}
	}
}
