package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// body is the answer's length in SmartCookie's evaluation, that of an average flow.
const body = 14_500

// Distances of clients. The nearest is what a plain link makes it, the others a
// wire's delay.
const (
	near    = 0 * time.Millisecond
	far     = 20 * time.Millisecond
	farther = 100 * time.Millisecond
)

// distance is a client's round trip as people read it.
func distance(away time.Duration) string {
	if away == near {
		return "RTT below 0.1 ms"
	}
	return fmt.Sprintf("RTT %d ms", away.Milliseconds())
}

// protection is a defence, or the want of one, as the experiment has it.
type protection struct {
	name  string
	ours  bool
	guard guarded
	// resets says that a client's first connection is reset, and that it has to
	// connect again.
	resets bool
	paper  *evaluation.Paper // of SmartCookie's figure 6
}

func protections() []*protection {
	const hardware = "a Tofino switch, machines of their own; average of 30 requests"
	return []*protection{
		{name: "no defence", guard: guarded{defence: "none"}},
		{name: kernelCookies, guard: guarded{defence: "kernel"}},
		{name: "nft SYNPROXY", guard: guarded{defence: "none", besides: besideSynproxy}},
		{name: "split", ours: true, guard: guarded{defence: "split"}, paper: &evaluation.Paper{
			Value: "1.71 ms", Where: "SmartCookie 8.3, figure 6: SmartCookie", Differs: hardware,
		}},
		{name: "proxy", ours: true, guard: guarded{defence: "proxy"}},
		{name: "auth-rst", ours: true, guard: guarded{defence: "auth-rst"}, paper: &evaluation.Paper{
			Value: "at least 11.12 ms", Where: "SmartCookie 8.3, figure 6: Jaqen mode 1", Differs: hardware + "; Jaqen's filter has false positives",
		}},
		{name: "auth-cookie", ours: true, resets: true, guard: guarded{defence: "auth-cookie"}, paper: &evaluation.Paper{
			Value: "at least 3.31 ms; over 1 s if the program waits", Where: "SmartCookie 8.3, figure 6: Jaqen mode 2",
			Differs: hardware + "; its client waits 1 ms before it connects again, ours not at all",
		}},
		{name: "auth-full", ours: true, resets: true, guard: guarded{defence: "auth-full"}, paper: &evaluation.Paper{
			Value: "about 1 to 1.4 ms", Where: "EuroP4 4.5, figure 5: Auth full, median", Differs: "1 kB pages, connections from wrk2, DPDK and SmartNIC; 100 requests/s",
		}},
	}
}

// leg is a distance and the attacks that are measured there.
type leg struct {
	away    time.Duration
	attacks []lab.Rate
}

// latencyPlan is how much is measured.
type latencyPlan struct {
	rounds int
	legs   []leg
	siege  siege
	quoted lab.Rate // whose figures stand beside the papers', and have a tail
	tail   siege    // of a longer measurement, for the tail; no duration: none
}

func planLatency(effort evaluation.Effort) latencyPlan {
	if effort == evaluation.Quick {
		return latencyPlan{
			rounds: 1,
			legs:   []leg{{near, []lab.Rate{0, 100_000, lab.MaxRate}}, {far, []lab.Rate{0, 100_000}}},
			siege:  siege{rate: 700, duration: 300 * time.Millisecond, apart: 150 * time.Millisecond, timeout: 1200 * time.Millisecond, body: body},
			quoted: 100_000,
		}
	}
	return latencyPlan{
		rounds: 2,
		legs: []leg{
			{near, []lab.Rate{0, 100_000, 200_000, 400_000, 800_000, 1_600_000, lab.MaxRate}},
			{far, []lab.Rate{0, 100_000, 400_000, 1_600_000}},
			{farther, []lab.Rate{0, 100_000, 400_000, 1_600_000}},
		},
		siege:  siege{rate: 500, duration: time.Second, apart: 500 * time.Millisecond, timeout: 2 * time.Second, body: body},
		quoted: 100_000,
		tail:   siege{rate: 1000, duration: 20500 * time.Millisecond, apart: 500 * time.Millisecond, timeout: 2 * time.Second, body: body},
	}
}

// Latency measures what requests meet beside attacks.
func Latency() evaluation.Experiment {
	return evaluation.Experiment{
		ID:         "E2",
		Title:      "Success and latency of requests beside an attack",
		Reproduces: "SmartCookie figure 6, EuroP4 figures 4 and 5",
		Question:   "What does a client notice of an attack, and of the defence against it?",
		Prepare: func(effort evaluation.Effort) *evaluation.Trial {
			return (&latency{plan: planLatency(effort), all: protections()}).trial()
		},
	}
}

// latency is the experiment on its way. One site stands at a time.
type latency struct {
	plan latencyPlan
	all  []*protection
	site *site
	at   place
}

// place is whose site stands.
type place struct {
	round   int
	subject string
}

func (l *latency) trial() *evaluation.Trial {
	return &evaluation.Trial{Cells: l.cells(), Panels: l.panels, Notes: latencyNotes, Close: l.close}
}

// cells are in an order in which each site is made once in a round. Those without
// an attack come first: a flood leaves queues full of what nobody finishes.
func (l *latency) cells() (all []evaluation.Cell) {
	for round := range l.plan.rounds {
		for i := range l.all {
			p := l.all[(i+round)%len(l.all)]
			for _, attacked := range []bool{false, true} {
				all = append(all, l.sieges(p, round, attacked)...)
			}
			if l.plan.tail.duration > 0 && round == 0 && p.lasts() {
				c := l.plan.tail
				c.flood = l.plan.quoted
				all = append(all, l.cell(p, round, tailName(l.plan.quoted), c))
			}
		}
	}
	return all
}

// sieges are those of a protection with an attack, or those without one.
func (l *latency) sieges(p *protection, round int, attacked bool) (all []evaluation.Cell) {
	for _, leg := range l.plan.legs {
		for _, attack := range leg.attacks {
			if (attack > 0) != attacked {
				continue
			}
			c := l.plan.siege
			c.flood, c.away = attack, leg.away
			all = append(all, l.cell(p, round, caseName(leg.away, attack), c))
		}
	}
	return all
}

// lasts tells whether there is somebody to be served who can be late.
func (p *protection) lasts() bool { return p.guard.defence != "none" || p.guard.besides != nil }

func caseName(away time.Duration, attack lab.Rate) string {
	return distance(away) + ", " + attackName(attack)
}

func attackName(attack lab.Rate) string {
	switch attack {
	case 0:
		return "no attack"
	case lab.MaxRate:
		return "as many SYN/s as there can be"
	}
	return evaluation.Short(float64(attack)) + " SYN/s"
}

func tailName(attack lab.Rate) string { return caseName(near, attack) + ", long" }

func (l *latency) cell(p *protection, round int, name string, c siege) evaluation.Cell {
	at := place{round, p.name}
	c.again = p.resets
	return evaluation.Cell{
		CellID: evaluation.CellID{Subject: p.name, Case: name, Round: round},
		Takes:  l.takes(p, c),
		Measure: func(ctx context.Context) (evaluation.Figures, error) {
			s, err := l.siteOf(ctx, p, at)
			if err != nil {
				return nil, err
			}
			shown, err := l.endure(ctx, s, c)
			if err != nil {
				return nil, errors.Join(err, l.close()) // the next one has a site of its own
			}
			figures, err := shown.figures(c)
			if err != nil {
				return nil, errors.Join(err, l.close())
			}
			return figures, nil
		},
	}
}

// tries is how often a siege is laid whose flood something else on this machine
// leaves no time.
const tries = 3

// endure repeats a siege whose flood did not come up to a rate that each defence
// leaves it the time for.
func (l *latency) endure(ctx context.Context, s *site, c siege) (shown endured, err error) {
	for range tries {
		shown, err = s.endure(ctx, c)
		if err != nil || c.flood > l.plan.quoted || reached(c.flood, shown.offered) {
			break
		}
	}
	return shown, err
}

// reached tells whether what was offered is so nearly what was to be that it may
// stand for it.
func reached(attack lab.Rate, offered float64) bool { return offered >= 0.8*float64(attack) }

// takes is about how long a siege takes: where nobody is served, until the last
// one gives up.
func (l *latency) takes(p *protection, c siege) time.Duration {
	takes := settle + c.duration + 150*time.Millisecond
	if c.flood > 0 && !p.lasts() {
		takes += c.timeout
	}
	if first := l.plan.legs[0]; c.away == first.away && c.flood == first.attacks[0] {
		takes += 300 * time.Millisecond // to make the site
		if p.ours {
			takes += 1200 * time.Millisecond // to load the edge's programs
		}
	}
	return takes
}

// siteOf is the site of a place, in the place of the one before.
func (l *latency) siteOf(ctx context.Context, p *protection, at place) (*site, error) {
	if l.site != nil && l.at == at {
		return l.site, nil
	}
	if err := l.close(); err != nil {
		return nil, err
	}
	s, err := openSite(ctx, p.guard)
	if err != nil {
		return nil, err
	}
	l.site, l.at = s, at
	return s, nil
}

func (l *latency) close() error {
	if l.site == nil {
		return nil
	}
	s := l.site
	l.site = nil
	return s.close()
}

// Figures of a cell. Those of latencies begin with a contact's name.
const (
	servedPercent   = "served_percent"
	offeredRate     = "offered_syn_per_s"
	answeredPercent = "answered_percent"
	latePercent     = "wire_late_percent"
	firstContacts   = "first_"
	laterContacts   = "later_"
)

// percentiles by the figure's name, and how many served requests can tell one.
var percentiles = []struct {
	percent float64
	name    string
	needs   uint64
	of      func(lab.ContactReport) float64
}{
	{50, "p50_ms", 20, func(c lab.ContactReport) float64 { return c.P50 }},
	{90, "p90_ms", 50, func(c lab.ContactReport) float64 { return c.P90 }},
	{99, "p99_ms", 100, func(c lab.ContactReport) float64 { return c.P99 }},
	{99.9, "p99_9_ms", 1_000, func(c lab.ContactReport) float64 { return c.P999 }},
	{99.99, "p99_99_ms", 10_000, func(c lab.ContactReport) float64 { return c.P9999 }},
}

// figures are refused where they would say something else than they seem to.
func (e endured) figures(c siege) (evaluation.Figures, error) {
	b := e.benign
	asked := b.Requests + b.Missed
	switch {
	case b.First.Requests == 0 || b.Later.Requests == 0 && b.First.OK > 0: // a later one follows a success
		return nil, fmt.Errorf("%d first requests and %d later ones were made", b.First.Requests, b.Later.Requests)
	case b.Errors["refused"] > 0:
		return nil, fmt.Errorf("%d of %d requests were refused: there is no server", b.Errors["refused"], asked)
	case c.flood == 0 && float64(b.OK) < 0.9*float64(asked):
		return nil, fmt.Errorf("%d of %d requests were served where there is no attack: %v", b.OK, asked, b.Errors)
	case c.again && b.First.OK > 0 && float64(b.First.Repeated) < 0.99*float64(b.First.OK):
		return nil, fmt.Errorf("%d of %d first contacts were challenged: the others were known", b.First.Repeated, b.First.OK)
	case e.wire.Overload > 0:
		return nil, fmt.Errorf("the clients' wire has lost %d frames", e.wire.Overload)
	}
	f := evaluation.Figures{servedPercent: 100 * float64(b.OK) / float64(asked)}
	for name, contact := range map[string]lab.ContactReport{firstContacts: b.First, laterContacts: b.Later} {
		for _, p := range percentiles {
			if contact.OK >= p.needs {
				f[name+p.name] = p.of(contact)
			}
		}
	}
	if c.flood > 0 {
		f[offeredRate], f[answeredPercent] = e.offered, 0
		if e.offered > 0 {
			f[answeredPercent] = 100 * e.answered / e.offered
		}
	}
	if e.wire.Passed > 0 {
		f[latePercent] = 100 * float64(e.wire.Late) / float64(e.wire.Passed)
	}
	return f, nil
}
