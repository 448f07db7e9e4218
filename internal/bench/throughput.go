package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"smartcookie/internal/lab"
)

// The second path without an agent shows what equal paths differ by.
const (
	noAgent = "no agent"
	again   = "no agent, again"
)

// transferLimit is how long one may take.
const transferLimit = time.Minute

// transferWindow is fixed: where the kernel tunes it, equal transfers differ by
// half, by what they find in the cache.
const transferWindow = "256K"

// The directions of a transfer, as the client sees them.
const (
	upload   = "upload"
	download = "download"
)

// What their bytes are divided by: the clock's time, or the CPU's for both ends
// and all that the kernel does in their name. On one core that nobody else wants
// it is the same; where others want it, the second still says what the work is.
const (
	perTime    = ""
	perCPUTime = ", per CPU time"
)

// path is a client and a server with a way of making connections between them.
type path struct {
	name, defence, setup string
	expect               string // the verdict by which connections are made

	lab   *lab.Lab
	guard *lab.Guard
	speed map[string][]float64 // by direction and time
}

func paths() []*path {
	return []*path{
		{name: noAgent, defence: "none"},
		{name: again, defence: "none"},
		{name: native, defence: "split", setup: "native", expect: "setup"},
		{name: translated, defence: "split", setup: "translate", expect: "setup_translated"},
	}
}

// serverTransfers runs iperf3 between a client and a server on one core, without
// an agent and with it, taking turns. The edge answers the SYNs, no more.
func serverTransfers(ctx context.Context, effort Effort, progress func(string)) (rows []Row, err error) {
	all := paths()
	for _, p := range all {
		progress("server: prepare transfers, " + p.name)
		defer func() { err = errors.Join(err, p.stop()) }()
		if err := p.start(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	for round := range effort.Transfers {
		progress(fmt.Sprintf("server: transfers, round %d of %d", round+1, effort.Transfers))
		for i := range all {
			p := all[(i+round)%len(all)]
			for _, direction := range []string{upload, download} {
				if err := p.transfer(ctx, direction, effort.Bytes); err != nil {
					return nil, fmt.Errorf("%s, %s: %w", p.name, direction, err)
				}
			}
		}
	}
	return transferRows(all), nil
}

func transferRows(all []*path) (rows []Row) {
	for _, what := range []string{upload + perCPUTime, download + perCPUTime, upload + perTime, download + perTime} {
		for _, p := range all[1:] {
			r := ratios(p.speed[what], all[0].speed[what])
			rows = append(rows, Row{
				Experiment: "server", Name: what + ", " + p.name, Family: 4,
				Ratio: r.Median, RatioMin: r.Min, RatioMax: r.Max, RatioTo: noAgent,
			})
		}
	}
	return rows
}

func (p *path) start(ctx context.Context) (err error) {
	p.speed = make(map[string][]float64)
	if p.lab, err = lab.New(lab.Options{Direct: true, Setup: p.setup}); err != nil {
		return err
	}
	p.guard, err = p.lab.Defend(ctx, p.defence)
	return err
}

func (p *path) stop() error {
	var errs []error
	if p.guard != nil {
		errs = append(errs, p.guard.Stop())
	}
	if p.lab != nil {
		errs = append(errs, p.lab.Close())
	}
	return errors.Join(errs...)
}

// iperf prepares an iperf3 that shares its core with the other end's.
func (p *path) iperf(ctx context.Context, at lab.Host, args ...string) *lab.Command {
	c := at.Command(ctx, "iperf3", append(args, "--port", strconv.Itoa(lab.HTTPPort))...)
	c.CPUs = []int{p.lab.LoadCPU()}
	return c
}

// result is what iperf3 tells of a transfer.
type result struct {
	Error string
	End   struct {
		Received struct {
			Bytes   float64
			Seconds float64
		} `json:"sum_received"`
	}
}

// transfer proves that its connections were made as the path's name says.
func (p *path) transfer(ctx context.Context, direction string, length int64) error {
	before, err := p.guard.ServerVerdicts()
	if err != nil {
		return err
	}
	r, used, err := p.run(ctx, direction, length)
	if err != nil {
		return err
	}
	after, err := p.guard.ServerVerdicts()
	if err != nil {
		return err
	}
	for name, n := range after {
		if strings.HasPrefix(name, "setup") && n > before[name] && name != p.expect {
			return fmt.Errorf("%d connections were made by %q, not %q", n-before[name], name, p.expect)
		}
	}
	if p.expect != "" && after[p.expect] == before[p.expect] {
		return fmt.Errorf("no connection was made by %q", p.expect)
	}
	bytes := r.End.Received.Bytes
	p.speed[direction+perTime] = append(p.speed[direction+perTime], bytes/r.End.Received.Seconds)
	p.speed[direction+perCPUTime] = append(p.speed[direction+perCPUTime], bytes/used.Seconds())
	return nil
}

// run makes one transfer and tells the CPU time of both ends.
func (p *path) run(ctx context.Context, direction string, length int64) (r result, used time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	server := p.iperf(ctx, p.lab.Server, "--server", "--one-off", "--forceflush")
	started := newWatch("listening")
	server.Stdout, server.Stderr = started, started
	if err := server.Start(); err != nil {
		return r, 0, fmt.Errorf("start iperf3: %w", err)
	}
	defer func() {
		if err != nil {
			cancel() // kills it
			_ = server.Wait()
		}
	}()
	if err := started.await(ctx); err != nil {
		return r, 0, err
	}
	args := []string{
		"--client", p.lab.Server.IPv4.String(), "--json", "--bytes", strconv.FormatInt(length, 10),
		"--window", transferWindow, "--zerocopy", // less for others to do per packet
	}
	if direction == download {
		args = append(args, "--reverse")
	}
	client := p.iperf(ctx, p.lab.Client, args...)
	out, failure := client.Output()
	if err := json.Unmarshal(out, &r); err != nil || r.Error != "" || failure != nil {
		return r, 0, fmt.Errorf("iperf3: %w", errors.Join(failure, err, errors.New(r.Error)))
	}
	if err := server.Wait(); err != nil {
		return r, 0, fmt.Errorf("iperf3's server: %w: %s", err, started.text)
	}
	return r, processTime(server) + processTime(client), nil
}

func processTime(c *lab.Command) time.Duration {
	return c.ProcessState.UserTime() + c.ProcessState.SystemTime()
}
