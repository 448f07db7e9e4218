package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// Linux is E6: what a kernel alone does about a flood.
func Linux() evaluation.Experiment {
	return evaluation.Experiment{
		ID:         "E6",
		Title:      "Linux alone, with and without SYN cookies",
		Reproduces: "EuroP4 2020, appendix B, figures 7 and 8",
		Question:   "How many requests does Linux serve on one CPU while it is flooded, how many SYNs does it answer, and where does the time go?",
		Prepare: func(e evaluation.Effort) *evaluation.Trial {
			x := newLinuxAlone(e)
			return &evaluation.Trial{Cells: x.cells(), Panels: x.panels, Notes: linuxNotes, Close: x.stations.close}
		},
	}
}

// cookieSetting is a value of net.ipv4.tcp_syncookies.
type cookieSetting string

const (
	cookiesOff    cookieSetting = "0"
	cookiesNeeded cookieSetting = "1"
	cookiesAlways cookieSetting = "2"
)

func (c cookieSetting) String() string {
	return map[cookieSetting]string{
		cookiesOff:    "no cookies (tcp_syncookies=0)",
		cookiesNeeded: "cookies when the queue is full (1)",
		cookiesAlways: "cookies always (2)",
	}[c]
}

var cookieSettings = []cookieSetting{cookiesOff, cookiesNeeded, cookiesAlways}

// whereTimeGoes is the subject of profiles: a kernel may have requests and no
// profile.
const whereTimeGoes = "profile"

// profiled is a flood during which somebody looks where the time goes.
type profiled struct {
	setting cookieSetting
	at      pressure
}

func (p profiled) String() string { return p.setting.String() + ", " + p.at.String() }

// spare is a flood that leaves the CPU idle most of the time.
const spare pressure = 10_000

var profiles = []profiled{{cookiesOff, spare}, {cookiesOff, fullFlood}, {cookiesNeeded, fullFlood}}

// linuxAlone is what E6 measures.
type linuxAlone struct {
	rounds    int
	pressures []pressure
	window    time.Duration
	timeout   time.Duration // of a request
	stations  stations
	symbols   symbols // read once
}

func newLinuxAlone(e evaluation.Effort) *linuxAlone {
	if e == evaluation.Quick {
		return &linuxAlone{
			rounds: 1, window: 500 * time.Millisecond, timeout: 400 * time.Millisecond, stations: stations{},
			pressures: []pressure{1_000, 200_000, fullFlood},
		}
	}
	return &linuxAlone{
		rounds: 3, window: 2 * time.Second, timeout: 1500 * time.Millisecond, stations: stations{},
		pressures: []pressure{100, 1_000, 10_000, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 800_000, 1_000_000},
	}
}

// What a cell takes besides, and how long a flood works before it is measured.
const (
	linuxOverhead = 300 * time.Millisecond
	linuxSettle   = 100 * time.Millisecond
)

func (x *linuxAlone) cells() (all []evaluation.Cell) {
	turns(cookieSettings, x.rounds, func(c cookieSetting, round int) {
		for _, p := range x.pressures {
			all = append(all, evaluation.Cell{
				CellID: evaluation.CellID{Subject: c.String(), Case: p.String(), Round: round},
				Takes:  x.window + x.timeout/2 + linuxSettle + linuxOverhead,
				Measure: func(ctx context.Context) (evaluation.Figures, error) {
					return even(func() (evaluation.Figures, error) { return x.serve(ctx, c, p) })
				},
			})
		}
	})
	turns(profiles, x.rounds, func(p profiled, round int) {
		all = append(all, evaluation.Cell{
			CellID:  evaluation.CellID{Subject: whereTimeGoes, Case: p.String(), Round: round},
			Takes:   x.window + linuxSettle + linuxOverhead,
			Measure: func(ctx context.Context) (evaluation.Figures, error) { return x.profile(ctx, p) },
		})
	})
	return all
}

// during is what is done while a server is flooded.
type during func(s *station, server *lab.Process, flood *lab.Flood) error

// flooded floods the host and calls do meanwhile.
func (x *linuxAlone) flooded(ctx context.Context, c cookieSetting, p pressure, do during) (err error) {
	s, err := x.stations.get(ctx, "linux", byKernel)
	if err != nil {
		return err
	}
	if err := s.lab.Edge.Sysctl("net.ipv4.tcp_syncookies", string(c)); err != nil {
		return err
	}
	if err := s.lab.ModerateFlood(); err != nil {
		return err
	}
	server, err := s.lab.StartServerAt(ctx, s.at) // anew: its queue is empty
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if c == cookiesOff {
		if err := s.fillQueue(ctx); err != nil {
			return err
		}
	}
	flood, err := s.flood(p, time.Minute)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flood.Stop()) }()
	if err := wait(ctx, linuxSettle); err != nil {
		return err
	}
	return do(s, server, flood)
}

// A flood of few SYNs would need a minute to fill the queue of half-open
// connections, and the flood has been there before us.
const fillingPackets = 20_000

func (s *station) fillQueue(ctx context.Context) (err error) {
	flood, err := s.flood(fullFlood, 10*time.Second)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flood.Stop()) }()
	for {
		offered, err := flood.Offered()
		if err != nil || offered >= fillingPackets {
			return err
		}
		if err := wait(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// requestsPerSecond are the paper's.
const requestsPerSecond = 100

// serve counts requests served and SYNs answered.
func (x *linuxAlone) serve(ctx context.Context, c cookieSetting, p pressure) (f evaluation.Figures, err error) {
	err = x.flooded(ctx, c, p, func(s *station, _ *lab.Process, flood *lab.Flood) error {
		before, err := s.kernelCounts(flood)
		if err != nil {
			return err
		}
		load, err := s.lab.StartLoadBesideFlood(ctx, lab.LoadOptions{
			URL:  "http://" + netip.AddrPortFrom(s.target, lab.HTTPPort).String() + "/",
			Rate: requestsPerSecond, Timeout: x.timeout, Duration: x.window,
		})
		if err != nil {
			return err
		}
		report, err := load.Wait()
		if err != nil {
			return err
		}
		after, err := s.kernelCounts(flood)
		if err != nil {
			return err
		}
		due := float64(report.Requests + report.Missed)
		if due < requestsPerSecond*x.window.Seconds()/2 {
			return fmt.Errorf("%.0f requests were made, not %d a second", due, requestsPerSecond)
		}
		seconds := after.at.Sub(before.at).Seconds()
		f = evaluation.Figures{
			requestsServed:  100 * float64(report.OK) / due,
			"offered_per_s": float64(after.offered-before.offered) / seconds,
			answeredPerS:    after.fresh(before) / seconds,
		}
		return p.sound(f["offered_per_s"])
	})
	return f, err
}

const (
	requestsServed = "served_percent"
	answeredPerS   = "answered_per_s"
)

// kernelCounts are counts, and what the host's kernel says.
type kernelCounts struct {
	counts
	repeated, cookies uint64 // SYN-ACKs
}

// fresh is how many SYNs were answered since. SYN-ACKs that the kernel sends again
// come in bursts, of which the attacker's end may lose some: cookies are never
// sent again.
func (c kernelCounts) fresh(before kernelCounts) float64 {
	back := float64(c.answered-before.answered) - float64(c.repeated-before.repeated)
	return max(back, float64(c.cookies-before.cookies))
}

func (s *station) kernelCounts(flood *lab.Flood) (now kernelCounts, err error) {
	if now.counts, err = s.counts(flood); err != nil {
		return now, err
	}
	err = s.at.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return fmt.Errorf("read the kernel's counters: %w", err)
		}
		if now.repeated, err = kernelCounter(text, "TcpExt:", "TCPSynRetrans"); err != nil {
			return err
		}
		now.cookies, err = kernelCounter(text, "TcpExt:", "SyncookiesSent")
		return err
	})
	return now, err
}

// kernelCounter finds a counter in what /proc tells: a line of names, and one of
// numbers below.
func kernelCounter(text []byte, group, name string) (uint64, error) {
	var names []string
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] != group {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		if at := slices.Index(names, name); at >= 0 && at < len(fields) {
			return strconv.ParseUint(fields[at], 10, 64)
		}
	}
	return 0, fmt.Errorf("this kernel does not count %s", name)
}

// profile looks where the time of the host's CPU goes.
func (x *linuxAlone) profile(ctx context.Context, p profiled) (f evaluation.Figures, err error) {
	if x.symbols == nil {
		if x.symbols, err = kernelSymbols(); err != nil {
			return nil, err
		}
	}
	err = x.flooded(ctx, p.setting, p.at, func(s *station, server *lab.Process, _ *lab.Flood) error {
		taken, err := startProfile(s.lab.LoadCPU())
		if err != nil {
			return err
		}
		waited := wait(ctx, x.window)
		stacks, err := taken.stop()
		if err := errors.Join(waited, err); err != nil {
			return err
		}
		if len(stacks) < enoughStacks {
			return &evaluation.Missing{Why: fmt.Sprintf("this kernel's timer took %d stacks in %v", len(stacks), x.window)}
		}
		f = shareOut(stacks, x.symbols, server.Pid())
		return nil
	})
	return f, err
}

// enoughStacks are those of a tenth of a second.
const enoughStacks = profileHertz / 10
