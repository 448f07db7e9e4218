package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

// lossless is how much of what is offered must be answered.
const lossless = 0.999

// contender is a defence in a lab of its own, at the edge's port that the flood
// comes in by. Generator, veth pair, defence and sink share one core, so that
// nothing but the work itself is measured, and none waits for another.
type contender struct {
	name   string
	ours   bool
	kind   contenderKind
	defend func(context.Context, *contender) error

	lab    *lab.Lab
	local  bool // the edge's own kernel is the server
	sink   *lab.Sink
	failed error // of start, which is tried once
	// What a program takes depends by some per cent on where the kernel happens to
	// put it: place loads one program before each flood and takes it off behind it,
	// and replace starts daemons again, every few rounds. Either may be nil.
	place   func() (displace func() error, err error)
	replace func(context.Context) error
	// drops says that what comes back is no answer to the sink, which would pass it
	// on: it is dropped.
	drops bool
	undo  []func() error
}

// contenderKind is what a defence does with SYNs, and how that is proved.
type contenderKind int

const (
	serves     contenderKind = iota // a request through it is served
	handshakes                      // a client's handshake succeeds, but nobody is behind
	floor                           // sends no SYN-ACK
	overflows                       // answers until its queue is full
)

func (c *contender) start(ctx context.Context) error {
	if c.lab != nil || c.failed != nil {
		return c.failed
	}
	if c.failed = c.begin(ctx); c.failed != nil {
		c.failed = errors.Join(c.failed, c.stop())
	}
	return c.failed
}

func (c *contender) begin(ctx context.Context) (err error) {
	if c.lab, err = lab.New(lab.Options{}); err != nil {
		return err
	}
	if c.sink, err = c.lab.NewSink(); err != nil {
		return err
	}
	if err := c.defend(ctx, c); err != nil {
		return err
	}
	if err := c.placed(c.prove); err != nil {
		return err
	}
	return errors.Join(c.lab.Client.Bare(c.lab.Client.Port), c.lab.Attacker.Bare(c.lab.Attacker.Port))
}

// placed does something while the defence's program is in its place.
func (c *contender) placed(do func() error) error {
	if c.place == nil {
		return do()
	}
	displace, err := c.place()
	if err != nil {
		return err
	}
	return errors.Join(do(), displace())
}

// caught does something while what comes back is counted, or dropped. At other times
// nothing is attached there: a kernel's dispatcher has room for 48 XDP programs of
// the whole machine, and calls any others by a slower jump.
func (c *contender) caught(do func() error) error {
	attach := func() error { return c.lab.Attach(c.sink) }
	if c.drops {
		attach = func() error { return c.lab.Attacker.Drop(c.lab.Attacker.Port) }
	}
	if err := attach(); err != nil {
		return err
	}
	return errors.Join(do(), c.lab.Attacker.Bare(c.lab.Attacker.Port))
}

// prove sees that the defence does what it is measured for.
func (c *contender) prove() error {
	switch c.kind {
	case serves:
		return c.request()
	case handshakes:
		return c.handshake()
	}
	return nil
}

func (c *contender) stop() error {
	var errs []error
	for i := len(c.undo) - 1; i >= 0; i-- {
		errs = append(errs, c.undo[i]())
	}
	c.undo = nil
	if c.sink != nil {
		errs = append(errs, c.sink.Close())
	}
	if c.lab != nil {
		errs = append(errs, c.lab.Close())
	}
	c.sink, c.lab = nil, nil
	return errors.Join(errs...)
}

func (c *contender) onStop(undo func() error) { c.undo = append(c.undo, undo) }

// target is what is flooded.
func (c *contender) target(ipv6 bool) netip.Addr {
	switch {
	case !c.local:
		return c.lab.Server.Addr(ipv6)
	case ipv6:
		return netip.MustParseAddr("fd99:0:0:2::1")
	}
	return netip.MustParseAddr("10.99.2.1")
}

// connect makes a connection on the way that the flood takes.
func (c *contender) connect() (conn net.Conn, err error) {
	err = c.lab.Attacker.Do(func() error {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(c.target(false), lab.HTTPPort).String(), 5*time.Second)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect through the defence: %w", err)
	}
	return conn, nil
}

// handshake proves that the defence answers. Behind it is a kernel without a
// connection, which resets what the defence lets through.
func (c *contender) handshake() error {
	conn, err := c.connect()
	switch {
	case err == nil:
		conn.Close()
	case !errors.Is(err, unix.ECONNRESET):
		return err
	}
	return nil
}

// request proves that the defence serves: one HTTP request through it. A strategy
// that resets a client's first connection has another try.
func (c *contender) request() error {
	if err := c.requestOnce(); err == nil {
		return nil
	}
	return c.requestOnce()
}

func (c *contender) requestOnce() error {
	conn, err := c.connect()
	if err != nil {
		return err
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
}

// taken is what a flood has come to.
type taken struct {
	offered, answered uint64
	cpu, clock        time.Duration
}

// share is how much of the flood was answered.
func (t taken) share() float64 { return float64(t.answered) / float64(t.offered) }

// perSecond is by CPU time. A generator that waits takes it, too: at the highest rate
// at which nothing is lost it hardly does.
func (t taken) perSecond() float64 { return float64(t.offered) / t.cpu.Seconds() }

// span is how long a flood runs before it is measured, and is measured.
type span struct{ warm, measure time.Duration }

// flood measures one flood.
func (c *contender) flood(ctx context.Context, o lab.FloodOptions, s span) (t taken, err error) {
	err = c.caught(func() error {
		t, err = c.floodCaught(ctx, o, s)
		return err
	})
	return t, err
}

func (c *contender) floodCaught(ctx context.Context, o lab.FloodOptions, s span) (t taken, err error) {
	o.Alone = true
	flood, err := c.startFlood(o, s)
	if err != nil {
		return taken{}, err
	}
	defer func() { err = errors.Join(err, flood.Stop()) }()
	select {
	case <-flood.Begun():
	case <-flood.Done():
		return taken{}, errors.New("the flood has ended before it was measured")
	}
	if err := wait(ctx, s.warm); err != nil {
		return taken{}, err
	}
	before, err := c.counts(flood)
	if err != nil {
		return taken{}, err
	}
	if err := wait(ctx, s.measure); err != nil {
		return taken{}, err
	}
	after, err := c.counts(flood)
	if err != nil {
		return taken{}, err
	}
	return after.since(before), nil
}

func (c *contender) startFlood(o lab.FloodOptions, s span) (*lab.Flood, error) {
	o.Target, o.Limit = c.target(o.IPv6), s.warm+s.measure+10*time.Second
	return c.lab.StartFlood(o)
}

// counts are read one after the other, while the flood goes on.
type counts struct {
	at                time.Time
	cpu               time.Duration
	offered, answered uint64
	blur              uint64 // what was offered meanwhile
}

func (c counts) since(before counts) taken {
	return taken{c.offered - before.offered, c.answered - before.answered, c.cpu - before.cpu, c.at.Sub(before.at)}
}

// countTries is how often the counts are read: now and then this thread has to wait
// between two of them.
const countTries = 5

func (c *contender) counts(flood *lab.Flood) (best counts, err error) {
	for try := range countTries {
		one, err := c.countsOnce(flood)
		if err != nil {
			return counts{}, err
		}
		if try == 0 || one.blur < best.blur {
			best = one
		}
	}
	return best, nil
}

func (c *contender) countsOnce(flood *lab.Flood) (one counts, err error) {
	if one.offered, err = flood.Offered(); err != nil {
		return counts{}, err
	}
	one.at = time.Now()
	if one.cpu, err = flood.CPUTime(); err != nil {
		return counts{}, err
	}
	if one.answered, err = c.answered(); err != nil {
		return counts{}, err
	}
	again, err := flood.Offered()
	one.blur = again - one.offered
	return one, err
}

// answered counts what has come back. A challenge by a RST is an ACK of its own.
func (c *contender) answered() (uint64, error) {
	back, err := c.sink.Counts()
	return back.SYNACKs + back.TCP, err
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
