package host

import (
	"fmt"
	"log/slog"
	"slices"

	"smartcookie/internal/policy"
	"smartcookie/internal/server"
)

// terms are those on which the kernel makes connections from its own cookies.
type terms struct {
	host   *server.Host
	ports  []policy.PortRange
	always bool
	log    *slog.Logger
	known  []server.Obstacle
	ticks  int
}

// termsTicks is how many seconds pass between two looks.
const termsTicks = 10

func newTerms(host *server.Host, ports []policy.PortRange, always bool, log *slog.Logger) *terms {
	return &terms{host: host, ports: ports, always: always, log: log}
}

// Terms lists what is in the way of connections from the kernel's own cookies
// now. `always` says that ports are to be in flood mode without end.
func Terms(host *server.Host, ports []policy.PortRange, always bool) []server.Obstacle {
	found := sysctlTerms(host, always)
	all, err := host.Listeners()
	if err != nil {
		return append(found, server.Obstacle{Name: "listeners-unknown", Problem: fmt.Sprintf("listeners are unknown: %s", err), Mend: "look: ss -tlnp"})
	}
	for _, r := range ports { // of a range some may be for later
		listens := func(l server.Listener) bool { return l.Address.Port() == r.Low }
		if r.Low == r.High && !slices.ContainsFunc(all, listens) {
			found = append(found, server.Obstacle{
				Name:    "listener-missing",
				Problem: fmt.Sprintf("nobody listens on port %d in this network namespace", r.Low),
				Mend:    "start the server, or run this agent in the namespace that has it",
			})
		}
	}
	return found
}

func sysctlTerms(host *server.Host, always bool) (found []server.Obstacle) {
	switch cookies, _ := host.Sysctl("net/ipv4/tcp_syncookies"); {
	case cookies == "0":
		found = append(found, server.Obstacle{
			Name: "sysctl-syncookies", Problem: "tcp_syncookies is 0: the kernel gives no cookie and takes none", Mend: "sysctl -w net.ipv4.tcp_syncookies=1", Fatal: true,
		})
	case cookies == "1" && always:
		found = append(found, server.Obstacle{
			Name: "sysctl-syncookies", Problem: "tcp_syncookies is 1: the kernel gives a cookie only while its queue is full, and SYNs pass before", Mend: "sysctl -w net.ipv4.tcp_syncookies=2",
		})
	}
	if stamps, ok := host.Sysctl("net/ipv4/tcp_timestamps"); ok && stamps != "2" {
		found = append(found, server.Obstacle{
			Name: "sysctl-timestamps", Problem: fmt.Sprintf("tcp_timestamps is %s: connections made from cookies lose window scale, SACK and timestamps", stamps), Mend: "sysctl -w net.ipv4.tcp_timestamps=2",
		})
	}
	return found
}

// start reports, and refuses where no connection could be made.
func (t *terms) start() error {
	t.known = Terms(t.host, t.ports, t.always)
	for _, o := range t.known {
		if o.Fatal {
			return &server.ObstacleError{Obstacle: o}
		}
		t.log.Warn(o.Problem, "mend", o.Mend)
	}
	return nil
}

// tick looks again every few times and reports what is new and what is gone.
func (t *terms) tick() {
	if t.ticks++; t.ticks%termsTicks != 0 {
		return
	}
	now := Terms(t.host, t.ports, t.always)
	for _, o := range now {
		if !slices.Contains(t.known, o) {
			t.log.Warn(o.Problem, "mend", o.Mend)
		}
	}
	for _, o := range t.known {
		if !slices.Contains(now, o) {
			t.log.Info("mended: " + o.Problem)
		}
	}
	t.known = now
}
