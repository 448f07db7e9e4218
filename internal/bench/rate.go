package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// The subjects of E1 that others are compared with, or that are special.
const (
	xdpDropFloor  = "XDP_DROP"
	macSwap       = "MAC swap"
	reflected     = "MAC and IP swap, redirected"
	noCookies     = "no cookies (tcp_syncookies=0)"
	kernelCookies = "kernel cookies (tcp_syncookies=1)"
	kernelAlways  = "kernel cookies, always (tcp_syncookies=2)"
	synproxy      = "nft SYNPROXY"
	genSyncookie  = "bpf_tcp_gen_syncookie (Netdev 2020)"
	splitRaw      = "split, the kernel's raw helper"
	splitAES      = "split, AES-128"
	splitCRC      = "split, CRC-32"
	splitSipHash  = "split, SipHash"
	splitHalf     = "split, HalfSipHash"
	splitOnNIC    = "split, SipHash, XDP_TX as on a NIC"
)

// contenders are E1's, floors first.
func contenders() []*contender {
	return []*contender{
		{name: xdpDropFloor, kind: floor, defend: defendDrop},
		{name: macSwap, kind: floor, defend: defendSwap},
		{name: reflected, kind: floor, defend: defendFloor("reflect")},
		{name: noCookies, kind: overflows, defend: defendNothing},
		{name: kernelCookies, defend: defendKernel("1")},
		{name: kernelAlways, defend: defendKernel("2")},
		{name: synproxy, defend: defendSynproxy},
		{name: genSyncookie, defend: defendNetdev},
		{name: splitRaw, kind: handshakes, defend: defendVariant(rawHelper)},
		{name: splitAES, kind: handshakes, defend: defendVariant(aesCookie)},
		{name: splitCRC, kind: handshakes, defend: defendVariant(crcCookie)},
		{name: splitSipHash, ours: true, defend: defendBy("split", cookie.SipHash)},
		{name: splitHalf, ours: true, defend: defendBy("split", cookie.HalfSipHash)},
		{name: splitOnNIC, ours: true, kind: handshakes, defend: defendVariant(asOnNIC)},
		{name: "proxy", ours: true, defend: defendBy("proxy", cookie.SipHash)},
		{name: "auth-cookie", ours: true, defend: defendBy("auth-cookie", cookie.SipHash)},
		{name: "auth-full", ours: true, defend: defendBy("auth-full", cookie.SipHash)},
		{name: "auth-rst", ours: true, defend: defendBy("auth-rst", cookie.SipHash)},
		{name: "host", ours: true, defend: defendHost()},
		{name: "host, kernel cookies", ours: true, defend: defendHost("--cookies", "kernel")},
	}
}

// rateCase is what a flood's SYNs look like.
type rateCase struct {
	name  string
	flood lab.FloodOptions
	has   func(*contender) bool
}

func rateCases() []rateCase {
	return []rateCase{
		{plainSYNs, lab.FloodOptions{Profile: lab.Plain}, func(*contender) bool { return true }},
		{optionSYNs, lab.FloodOptions{Profile: lab.Linux}, func(c *contender) bool { return c.kind != overflows }},
		{ip6SYNs, lab.FloodOptions{Profile: lab.Plain, IPv6: true}, func(c *contender) bool {
			return c.name == kernelCookies || c.ours && c.kind == serves
		}},
	}
}

const (
	plainSYNs  = "IPv4, 54 bytes"
	optionSYNs = "IPv4, options, 74 bytes"
	ip6SYNs    = "IPv6, 74 bytes"
	testRuns   = "test run"
)

// ratePlan is how long E1 measures.
type ratePlan struct {
	rounds  map[string]int // by case
	span    span
	replace int // rounds after which daemons are started again
}

func planOf(effort evaluation.Effort) ratePlan {
	if effort == evaluation.Quick {
		return ratePlan{
			rounds:  map[string]int{plainSYNs: 3, optionSYNs: 1, ip6SYNs: 1, testRuns: 3},
			span:    span{20 * time.Millisecond, 60 * time.Millisecond},
			replace: 100,
		}
	}
	return ratePlan{
		rounds:  map[string]int{plainSYNs: 25, optionSYNs: 7, ip6SYNs: 7, testRuns: 9},
		span:    span{50 * time.Millisecond, 250 * time.Millisecond},
		replace: 5,
	}
}

// Rate is E1.
func Rate() evaluation.Experiment {
	return evaluation.Experiment{
		ID:         "E1",
		Title:      "SYN rate on one core",
		Reproduces: "SmartCookie figure 5 (artifact E1) and EuroP4 '20 figure 3",
		Question:   "How many SYNs per second does one core answer without losing any, and what does each take?",
		Prepare:    func(effort evaluation.Effort) *evaluation.Trial { return prepareRate(planOf(effort)) },
	}
}

func prepareRate(plan ratePlan) *evaluation.Trial {
	all, runs := contenders(), &rateRuns{}
	beside := all[slices.IndexFunc(all, func(c *contender) bool { return c.name == kernelCookies })]
	// All are there before the first is measured, so that rounds are alike. Who could
	// not be made says so in cells of its own.
	ready := func(ctx context.Context) {
		for _, c := range all {
			_ = c.start(ctx)
		}
	}
	trial := &evaluation.Trial{
		Panels: ratePanels,
		Notes:  rateNotes(plan),
		Close: func() error {
			errs := []error{runs.close()}
			for _, c := range all {
				errs = append(errs, c.stop())
			}
			return errors.Join(errs...)
		},
	}
	for round := range plan.rounds[plainSYNs] {
		for i := range all { // nobody always comes first
			trial.Cells = append(trial.Cells, plan.cells(all[(i+round)%len(all)], beside, ready, round)...)
		}
		if round < plan.rounds[testRuns] {
			trial.Cells = append(trial.Cells, runs.cells(round)...)
		}
	}
	return trial
}

func (p ratePlan) cells(c, beside *contender, ready func(context.Context), round int) (cells []evaluation.Cell) {
	for i, in := range rateCases() {
		if round >= p.rounds[in.name] || !in.has(c) {
			continue
		}
		takes := 2*(p.span.warm+p.span.measure) + 70*time.Millisecond
		if round == 0 && i == 0 {
			takes += 600 * time.Millisecond
		}
		cells = append(cells, evaluation.Cell{
			CellID: evaluation.CellID{Subject: c.name, Case: in.name, Round: round}, Takes: takes,
			Measure: func(ctx context.Context) (evaluation.Figures, error) {
				ready(ctx)
				if i == 0 && round > 0 && round%p.replace == 0 {
					if err := c.startAgain(ctx); err != nil {
						return nil, err
					}
				}
				return c.measure(ctx, beside, in.flood, p.span)
			},
		})
	}
	return cells
}

// startAgain has new daemons take the place of the contender's.
func (c *contender) startAgain(ctx context.Context) error {
	if c.lab == nil || c.replace == nil {
		return nil
	}
	return c.replace(ctx)
}

// measure floods the defence, and the kernel's cookies right after it: what else the
// machine does changes from second to second, and both are to see the same of it.
func (c *contender) measure(ctx context.Context, beside *contender, o lab.FloodOptions, s span) (evaluation.Figures, error) {
	if err := errors.Join(c.start(ctx), beside.start(ctx)); err != nil {
		return nil, err
	}
	if c.kind == overflows {
		return c.overflow(ctx, o)
	}
	var own taken
	if err := c.placed(func() (err error) {
		own, err = c.most(ctx, o, s)
		return err
	}); err != nil {
		return nil, err
	}
	reference := own
	if beside != c {
		var err error
		if reference, err = beside.most(ctx, o, s); err != nil {
			return nil, fmt.Errorf("%s beside it: %w", beside.name, err)
		}
	}
	return evaluation.Figures{
		"syn_per_s": own.perSecond(), "answered_share": own.share(), "cpu_share": own.cpu.Seconds() / own.clock.Seconds(),
		"kernel_syn_per_s": reference.perSecond(),
	}, nil
}

// maxTries is how often a flood at full rate may lose something: what the machine
// does else may be why.
const maxTries = 3

// most floods as fast as the generator can, and more slowly if that is more than the
// defence answers.
func (c *contender) most(ctx context.Context, o lab.FloodOptions, s span) (t taken, err error) {
	try := func(rate lab.Rate) (taken, error) {
		o.Rate = rate
		return c.flood(ctx, o, s)
	}
	for range maxTries {
		if t, err = try(lab.MaxRate); err != nil || c.kind == floor || t.share() >= lossless {
			return t, err
		}
	}
	return lossFree(t, try)
}

// rateTries is how often a range of rates is halved.
const rateTries = 6

var errLosses = errors.New("no rate was found at which it answers every SYN: the round says nothing")

// lossFree finds the highest rate at which everything is answered: the first try has
// shown how much of more than that is.
func lossFree(first taken, try func(lab.Rate) (taken, error)) (best taken, err error) {
	low, high := 0.0, 1.1*float64(first.answered)/first.clock.Seconds()
	for range rateTries {
		rate := (low + high) / 2
		t, err := try(lab.Rate(max(rate, 1)))
		if err != nil {
			return taken{}, err
		}
		if t.offered > 0 && t.share() >= lossless {
			low, best = rate, t
		} else {
			high = rate
		}
	}
	if best.offered == 0 {
		return taken{}, fmt.Errorf("%d of %d SYNs were answered: %w", first.answered, first.offered, errLosses)
	}
	return best, nil
}

// overflowTime is less than a second, after which the first SYN-ACKs are sent again.
const overflowTime = 300 * time.Millisecond

// halfOpenSeconds is how long Linux keeps a connection that is never finished: five
// more SYN-ACKs, the first after a second and each after twice the time.
const halfOpenSeconds = 1<<6 - 1

// overflow counts the SYNs that a new listener's queue takes. After them it answers
// none until the first are given up, so that is what it can answer for long.
func (c *contender) overflow(ctx context.Context, o lab.FloodOptions) (f evaluation.Figures, err error) {
	server, err := c.listen()
	if err != nil {
		return nil, err
	}
	var offered, queued uint64
	err = c.caught(func() error {
		offered, queued, err = c.fill(ctx, o)
		return err
	})
	if err := errors.Join(err, server.Close()); err != nil {
		return nil, err
	}
	if queued == 0 {
		return nil, fmt.Errorf("none of %d SYNs was answered: the round says nothing", offered)
	}
	return evaluation.Figures{
		"syn_per_s": float64(queued) / halfOpenSeconds, "answered_share": float64(queued) / float64(offered), "queue_syn": float64(queued),
	}, nil
}

func (c *contender) fill(ctx context.Context, o lab.FloodOptions) (offered, queued uint64, err error) {
	before, err := c.answered()
	if err != nil {
		return 0, 0, err
	}
	o.Rate, o.Alone = lab.MaxRate, true
	flood, err := c.startFlood(o, span{})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, flood.Stop()) }()
	if err := wait(ctx, overflowTime); err != nil {
		return 0, 0, err
	}
	if offered, err = flood.Offered(); err != nil {
		return 0, 0, err
	}
	after, err := c.answered()
	return offered, after - before, err
}

// contenderNames are the subjects that have a case, in order.
func contenderNames(in string) (names []string, ours map[string]bool) {
	cases := rateCases()
	at := slices.IndexFunc(cases, func(c rateCase) bool { return c.name == in })
	ours = make(map[string]bool)
	for _, c := range contenders() {
		if cases[at].has(c) {
			names = append(names, c.name)
			ours[c.name] = c.ours
		}
	}
	return names, ours
}
