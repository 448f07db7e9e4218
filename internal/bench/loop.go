package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"smartcookie/internal/cookie"
	"smartcookie/internal/keys"
	"smartcookie/internal/lab"
)

// Rounds of the loop, each with a second for every defence.
const (
	loopRounds  = 7
	loopWarm    = 300 * time.Millisecond
	loopMeasure = time.Second
	lossless    = 0.999 // of what is offered must be answered
)

// contender is a defence in a lab of its own. Generator, veth, defence and sink
// share one core, so that nothing but the work itself is measured.
type contender struct {
	name, hash string
	defend     func(context.Context, *contender) error
	answers    bool // the floors send no SYN-ACK

	lab    *lab.Lab
	target netip.Addr
	sink   *lab.Sink
	undo   []func() error
	pps    map[lab.Profile][]float64
}

const kernelCookies = "kernel cookies"

func contenders() []*contender {
	return []*contender{
		{name: kernelCookies, answers: true, defend: defendKernel},
		{name: "split", hash: cookie.SipHash.String(), answers: true, defend: defendSplit(cookie.SipHash)},
		{name: "split", hash: cookie.HalfSipHash.String(), answers: true, defend: defendSplit(cookie.HalfSipHash)},
		{name: "MAC swap", defend: defendSwap},
		{name: "XDP_DROP", defend: defendDrop},
	}
}

// Loop measures defences on one core, taking turns.
func Loop(ctx context.Context, progress func(string)) (rows []Row, err error) {
	all := contenders()
	for _, c := range all {
		progress("loop: prepare " + c.name)
		err := c.start(ctx)
		defer func() { err = errors.Join(err, c.stop()) }()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	for round := range loopRounds {
		progress(fmt.Sprintf("loop: round %d of %d", round+1, loopRounds))
		for i := range all {
			c := all[(i+round)%len(all)]
			for _, profile := range []lab.Profile{lab.Plain, lab.Linux} {
				if err := c.measure(ctx, profile); err != nil {
					return nil, fmt.Errorf("%s: %w", c.name, err)
				}
			}
		}
	}
	return loopRows(all), nil
}

func loopRows(all []*contender) []Row {
	var rows []Row
	names := map[lab.Profile]string{lab.Plain: "", lab.Linux: ", SYN with options"}
	for _, profile := range []lab.Profile{lab.Plain, lab.Linux} {
		for _, c := range all {
			ns := make([]float64, loopRounds)
			for i, pps := range c.pps[profile] {
				ns[i] = 1e9 / pps
			}
			s, r := spreadOf(ns), ratios(c.pps[profile], all[0].pps[profile])
			rows = append(rows, Row{
				Experiment: "loop", Name: c.name + names[profile], Hash: c.hash, Family: 4,
				Min: s.Min, Median: s.Median, Max: s.Max,
				RatioTo: kernelCookies, Ratio: r.Median, RatioMin: r.Min, RatioMax: r.Max,
			})
		}
	}
	return rows
}

func (c *contender) start(ctx context.Context) (err error) {
	c.pps = make(map[lab.Profile][]float64)
	if c.lab, err = lab.New(lab.Options{}); err != nil {
		return err
	}
	c.target = c.lab.Server.IPv4
	if c.sink, err = c.lab.NewSink(); err != nil {
		return err
	}
	if err := c.defend(ctx, c); err != nil {
		return err
	}
	if c.hash == "" && c.name != kernelCookies {
		return nil // the floors serve nobody
	}
	return c.request()
}

func (c *contender) stop() error {
	var errs []error
	for i := len(c.undo) - 1; i >= 0; i-- {
		errs = append(errs, c.undo[i]())
	}
	if c.sink != nil {
		errs = append(errs, c.sink.Close())
	}
	if c.lab != nil {
		errs = append(errs, c.lab.Close())
	}
	return errors.Join(errs...)
}

// request proves that the defence serves: one HTTP request through it.
func (c *contender) request() error {
	return c.lab.Client.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(c.target, lab.HTTPPort).String(), 5*time.Second)
		if err != nil {
			return fmt.Errorf("request through the defence: %w", err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprint(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			return fmt.Errorf("request through the defence: %w", err)
		}
		status, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(status, "200") {
			return fmt.Errorf("request through the defence: %q: %w", status, err)
		}
		return nil
	})
}

// measure floods for one round and counts what was answered meanwhile.
func (c *contender) measure(ctx context.Context, profile lab.Profile) (err error) {
	flood, err := c.lab.StartFlood(lab.FloodOptions{
		Profile: profile, Rate: lab.MaxRate, Target: c.target, Limit: loopWarm + loopMeasure + 10*time.Second,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flood.Stop()) }()
	if err := wait(ctx, loopWarm); err != nil {
		return err
	}
	before, err := c.counts(flood)
	if err != nil {
		return err
	}
	if err := wait(ctx, loopMeasure); err != nil {
		return err
	}
	after, err := c.counts(flood)
	if err != nil {
		return err
	}
	offered, answered := after.offered-before.offered, after.answered-before.answered
	if c.answers && float64(answered) < lossless*float64(offered) {
		return fmt.Errorf("%d of %d SYNs were answered: the round says nothing", answered, offered)
	}
	c.pps[profile] = append(c.pps[profile], float64(offered)/after.at.Sub(before.at).Seconds())
	return nil
}

type counts struct {
	at                time.Time
	offered, answered uint64
}

func (c *contender) counts(flood *lab.Flood) (counts, error) {
	offered, err := flood.Offered()
	if err != nil {
		return counts{}, err
	}
	back, err := c.sink.Counts()
	return counts{time.Now(), offered, back.SYNACKs}, err
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// defendKernel lets the edge's own kernel listen, directly on the flood's link.
func defendKernel(_ context.Context, c *contender) error {
	c.target = netip.MustParseAddr("10.99.2.1")
	if err := c.lab.Edge.Sysctl("net.ipv4.tcp_syncookies", "1"); err != nil {
		return err
	}
	return c.lab.Edge.Do(func() error {
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		listener, err := config.Listen(context.Background(), "tcp", fmt.Sprintf("%s:%d", c.target, lab.HTTPPort))
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "hello")
		})}
		go server.Serve(listener) // ends with Close
		c.undo = append(c.undo, server.Close)
		return nil
	})
}

// defendSplit runs both agents with keys for this hash.
func defendSplit(hash cookie.Hash) func(context.Context, *contender) error {
	return func(ctx context.Context, c *contender) error {
		path, err := c.lab.Keys()
		if err != nil {
			return err
		}
		if err := rekey(path, hash); err != nil {
			return err
		}
		server, err := c.lab.StartServer(ctx)
		if err != nil {
			return err
		}
		c.undo = append(c.undo, server.Stop)
		guard, err := c.lab.Defend(ctx, "split")
		if err != nil {
			return err
		}
		c.undo = append(c.undo, guard.Stop)
		return nil
	}
}

// rekey replaces the keys of a file by such for a hash.
func rekey(path string, hash cookie.Hash) error {
	old, err := keys.Read(path)
	if err != nil {
		return err
	}
	file, err := keys.New(old.EpochSeconds)
	if err != nil {
		return err
	}
	for domain, entries := range old.Domains {
		if err := file.AddDomain(domain, hash, entries[0].WindowScale, rand.Reader); err != nil {
			return err
		}
	}
	return file.Write(path)
}

func defendSwap(_ context.Context, c *contender) error {
	b, err := newTestBench(cookie.SipHash, nil)
	if err != nil {
		return err
	}
	c.undo = append(c.undo, func() error { b.close(); return nil })
	if err := b.load(); err != nil {
		return err
	}
	// What comes back is no answer to the sink, which would pass it on.
	if err := c.lab.Attacker.Bare(c.lab.Attacker.Port); err != nil {
		return err
	}
	if err := c.lab.Attacker.Drop(c.lab.Attacker.Port); err != nil {
		return err
	}
	return c.attach(b.ours.Programs["swap"])
}

func (c *contender) attach(prog *ebpf.Program) error {
	return c.lab.Edge.Do(func() error {
		port, err := net.InterfaceByName(c.lab.Edge.Outside[1])
		if err != nil {
			return fmt.Errorf("find the flood's port: %w", err)
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: port.Index, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("attach XDP: %w", err)
		}
		c.undo = append(c.undo, l.Close)
		return nil
	})
}

func defendDrop(_ context.Context, c *contender) error {
	return c.lab.Edge.Drop(c.lab.Edge.Outside[1])
}
