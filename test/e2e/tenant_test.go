package e2e

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
)

// tenantDelay is the way to a distant tenant: a flight is all there long before
// his kernel has answered a SYN.
const tenantDelay = 20 * time.Millisecond

// What arrives while the tenant's handshake is in progress waits for its end: the
// crafted client sends nothing a second time.
func TestFirstFlightWaitsForADistantTenant(t *testing.T) {
	for _, merged := range []bool{false, true} {
		t.Run(map[bool]string{false: "as sent", true: "with offloads on the way"}[merged], func(t *testing.T) {
			w := newWire(t, wireTenant, wireSettings{inside: &badwire.Faults{Delay: tenantDelay}})
			if merged {
				runIn(t, w.Home, "ethtool", "-K", "eth0", "gro", "on")
			}
			wireFamilies(t, func(t *testing.T, v6 bool) {
				s := w.serve(t, wireEcho)
				f := w.flow(t, v6)
				f.open()
				before := w.verdicts(t)
				frames := [][]byte{f.frame(0, wireACK, nil)}
				var stream []byte
				for i := range 10 {
					frames = append(frames, f.frame(len(stream), wireData, wireSegment(i)))
					stream = append(stream, wireSegment(i)...)
				}
				f.emit(frames...)
				f.expectStream(string(stream))
				s.expectOnly(string(stream))
				f.expectCookieIsISN()
				w.expect(t, before, wireVerdicts{"setup": 1, "drop_early": 0})
				if got := w.verdicts(t).since(before); got["hold_early"] == 0 {
					t.Errorf("nothing has waited: %v", got)
				}
			})
		})
	}
}

// Whom the tenant's kernel refuses gets its RST, with the number that he waits for.
func TestTenantRefusesClosedPorts(t *testing.T) {
	w := newWire(t, wireTenant, wireSettings{})
	wireFamilies(t, func(t *testing.T, v6 bool) {
		for range 2 {
			f := w.flow(t, v6)
			f.open()
			before := w.verdicts(t)
			f.send(0, wireData, []byte(wireRequest))
			f.expectReset()
			if f.reset.tcp.Seq != f.cookie+1 {
				t.Fatalf("RST at %d, want cookie+1 = %d", f.reset.tcp.Seq, f.cookie+1)
			}
			w.expect(t, before, wireVerdicts{"setup": 1, "pass_translated": 1})
		}
	})
	s := w.serve(t, wireEcho)
	f := w.flow(t, false)
	f.connect(wireRequest)
	s.expectOnly(wireRequest)
}

// A strict agent lets nothing begin at a tenant that an edge has not seen.
func TestStrictAgentGuardsItsTenants(t *testing.T) {
	w := newWire(t, wireTenant, wireSettings{server: "strict: true\n"})
	wireFamilies(t, func(t *testing.T, v6 bool) { invalidIsSilent(t, w, v6, true) })
}

// A forged RST or FIN that a tenant ignores does not end his translation.
func TestForgedEndsLeaveTenantsAlone(t *testing.T) {
	w := newWire(t, wireTenant, wireSettings{})
	wireFamilies(t, func(t *testing.T, v6 bool) {
		s := w.serve(t, wireEcho)
		f := w.flow(t, v6)
		f.connect(wireRequest)
		for _, at := range []int{-1 << 20, 1 << 20, 1 << 30, -1 << 30} {
			f.send(at, wireRST, nil)
			f.send(at, wireFINACK, nil)
		}
		f.send(len(wireRequest), wireData, []byte("more"))
		f.expectStream(wireRequest + "more")
		s.expectOnly(wireRequest + "more")
	})
}

// A host with a service of its own beside a tenant's: each is served in its way.
func TestHostAndTenantAreServedTogether(t *testing.T) {
	need(t, "nginx", "curl")
	l := newLab(t, lab.Options{Tenant: true, Setup: "auto"})
	runIn(t, l.Home, "ip", "address", "add", "10.99.3.3/24", "dev", "br0")
	runIn(t, l.Home, "ip", "route", "add", "default", "via", "10.99.3.1")
	service := "  - name: %s\n    prefixes: [\"%s\"]\n    ports: [80]\n    setup: %s\n"
	both := "services:\n" + fmt.Sprintf(service, "tenant", l.Server.IPv4.String()+`", "`+l.Server.IPv6.String(), "tenant") +
		fmt.Sprintf(service, "own", "10.99.3.3", "auto")
	startAgent(t, l, l.Home, "server", "-c", fileOf(t, l, "server.yaml",
		fmt.Sprintf("keys: %s\ninterfaces: [br0]\ntenants: [tenant0]\n%s", keysOf(t, l), both)))
	startAgent(t, l, l.Edge.Namespace, "edge", "-c", fileOf(t, l, "edge.yaml",
		fmt.Sprintf("keys: %s\noutside: [%s]\ninside: [%s]\nforward: route\nlearn: 0s\n%s",
			keysOf(t, l), strings.Join(l.Edge.Outside, ", "), l.Edge.Inside, both)))
	startNginx(t, l)
	own := listenIn(t, l.Home, ":80")
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello\n") }),
	}
	go server.Serve(own)
	t.Cleanup(func() { server.Close() })
	for range 3 {
		mustGreet(t, l.Client.Namespace, url(l, false, "/hello"))
		mustGreet(t, l.Client.Namespace, url(l, true, "/hello"))
		mustGreet(t, l.Client.Namespace, "http://10.99.3.3/")
	}
	counted(t, l, "server", "setup_translated", "pass_translated")
	if n := verdictsOf(t, l, "server")["setup"]; n != 3 {
		t.Errorf("%d native setups, want those of the host's own service", n)
	}
}

// SACK blocks, timestamps and retransmissions over a line that loses.
func TestTransfersWithTenantsSurviveLoss(t *testing.T) {
	need(t, "nginx", "curl", "nft")
	l := deploy(t, tenantShape, lab.Options{}, protection{})
	root := startNginx(t, l)
	for _, at := range []*lab.Namespace{l.Client.Namespace, l.Server.Namespace} {
		runIn(t, at, "nft", "add table inet loss; add chain inet loss in { type filter hook input priority 0; }; "+
			"add rule inet loss in meta l4proto tcp numgen random mod 100 == 0 drop")
	}
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			sum := randomFile(t, filepath.Join(root, "file"), 5<<20)
			downloadIs(t, l, ipv6, sum)
			uploadIs(t, l, ipv6, root, sum)
		})
	}
}
