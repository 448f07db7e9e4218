package bench

import (
	"fmt"
	"strings"

	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// graph is a figure over attack rates.
type graph struct {
	id, title string
	y         evaluation.Axis
	figure    string
	note      string
}

const ofTheServed = "Of requests that were served; where fewer than %d were, there is no figure."

func latencyGraphs(timeout string) []graph {
	milliseconds := evaluation.Axis{Label: "ms", Log: true}
	return []graph{
		{"served", "Requests served", evaluation.Axis{Label: "% of requests"}, servedPercent,
			"Served is what was answered whole within " + timeout + "."},
		{"first", "Median of first contacts", milliseconds, firstContacts + "p50_ms",
			fmt.Sprintf(ofTheServed, 20) + " A first contact is the first request of an address."},
		{"first-p99", "99th percentile of first contacts", milliseconds, firstContacts + "p99_ms",
			fmt.Sprintf(ofTheServed, 100)},
		{"later", "Median of later contacts", milliseconds, laterContacts + "p50_ms",
			fmt.Sprintf(ofTheServed, 20) + " A later contact is a new connection of an address that has come before."},
	}
}

var answeredGraph = graph{
	"answered", "SYNs answered", evaluation.Axis{Label: "% of those offered"}, answeredPercent,
	"Answers that came back to the attack's addresses: SYN-ACKs, of auth-rst its challenges. " +
		"What is not answered was lost before the defence saw it, or by it.",
}

func (l *latency) panels(t evaluation.Taken) (all []evaluation.Panel) {
	all = append(all, l.quoted(t))
	for _, g := range latencyGraphs(l.plan.siege.timeout.String()) {
		for _, leg := range l.plan.legs {
			all = append(all, l.graph(t, g, leg))
		}
	}
	nearest := l.plan.legs[0]
	all = append(all,
		l.tail(t, firstContacts, "first contacts"), l.tail(t, laterContacts, "later contacts"),
		l.graph(t, answeredGraph, nearest),
		l.extreme(t, "offered", "SYNs offered, as many as there can be", "SYN/s", offeredRate),
		l.extreme(t, "extreme", "Requests served beside as many SYNs as there can be", "% of requests", servedPercent),
	)
	return nonEmpty(all)
}

// nonEmpty leaves out panels of which nothing has been measured.
func nonEmpty(all []evaluation.Panel) (some []evaluation.Panel) {
	for _, p := range all {
		if len(p.Series) > 0 {
			some = append(some, p)
		}
	}
	return some
}

// quoted is the papers' own comparison: what a first contact takes.
func (l *latency) quoted(t evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e2-quoted", Title: "Median of first contacts at " + attackName(l.plan.quoted), Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "defence"}, Y: evaluation.Axis{Label: "ms"}, Better: evaluation.Lower,
		Note: distance(near) + ". auth-rst is what SmartCookie calls Jaqen's mode 1, auth-cookie its mode 2; auth-full is mode 2 without a cookie, " +
			"EuroP4's Auth full. The papers measured other machines: compare the order, and what one defence costs beside another.",
	}
	figure := firstContacts + "p50_ms"
	panel.Series = evaluation.Bar(kernelCookies+", no attack", false, t.Rounds(kernelCookies, caseName(near, 0), figure), &evaluation.Paper{
		Value: "1.08 ms", Where: "SmartCookie 8.3, figure 6: vanilla kernel without an attack", Differs: "machines of their own; average of 30 requests",
	})
	for _, p := range l.all {
		panel.Series = append(panel.Series, evaluation.Bar(p.name, p.ours, at(t, p.name, l.plan.quoted, caseName(near, l.plan.quoted), figure), p.paper)...)
	}
	return panel
}

// graph has no point where the generator, which shares a core with the defence,
// did not reach the rate.
func (l *latency) graph(t evaluation.Taken, g graph, leg leg) evaluation.Panel {
	panel := evaluation.Panel{
		ID: fmt.Sprintf("e2-%s-%d", g.id, leg.away.Milliseconds()), Title: g.title + ", " + distance(leg.away), Kind: evaluation.Lines,
		X: evaluation.Axis{Label: "attack, SYN/s", Log: true}, Y: g.y, Better: evaluation.Higher, Note: g.note,
	}
	if g.y.Log { // times
		panel.Better = evaluation.Lower
	}
	for _, p := range l.all {
		s := evaluation.Series{Subject: p.name, Ours: p.ours}
		for _, attack := range leg.attacks {
			if attack == lab.MaxRate {
				continue
			}
			if point, ok := evaluation.PointOf(float64(attack), at(t, p.name, attack, caseName(leg.away, attack), g.figure)); ok {
				s.Points = append(s.Points, point)
			}
		}
		if len(s.Points) > 0 {
			panel.Series = append(panel.Series, s)
		}
	}
	return panel
}

// at are the rounds of a figure in which the attack reached its rate.
func at(t evaluation.Taken, subject string, attack lab.Rate, in, figure string) (rounds []float64) {
	for round := 0; ; round++ {
		f, ok := t[evaluation.CellID{Subject: subject, Case: in, Round: round}]
		if !ok {
			return rounds
		}
		if value, ok := f[figure]; ok && reached(attack, f[offeredRate]) {
			rounds = append(rounds, value)
		}
	}
}

// tail is how late the last of many are.
func (l *latency) tail(t evaluation.Taken, contact, name string) evaluation.Panel {
	in := caseName(near, l.plan.quoted)
	if l.plan.tail.duration > 0 {
		in = tailName(l.plan.quoted)
	}
	panel := evaluation.Panel{
		ID: "e2-tail-" + strings.TrimSuffix(contact, "_"), Title: "Percentiles of " + name + " at " + attackName(l.plan.quoted), Kind: evaluation.Lines,
		X: evaluation.Axis{Label: "percentile", Tail: true}, Y: evaluation.Axis{Label: "ms", Log: true}, Better: evaluation.Lower,
		Note: "At 99 one request of a hundred takes longer. A percentile that too few requests can tell is left out. Server, clients and half of " +
			"all packets' work share a core: what is beyond 99 is mostly its scheduler's.",
	}
	for _, p := range l.all {
		s := evaluation.Series{Subject: p.name, Ours: p.ours}
		for _, of := range percentiles {
			if point, ok := evaluation.PointOf(of.percent, at(t, p.name, l.plan.quoted, in, contact+of.name)); ok {
				s.Points = append(s.Points, point)
			}
		}
		if len(s.Points) > 0 {
			panel.Series = append(panel.Series, s)
		}
	}
	return panel
}

// extreme is a figure at the generator's maximum, which is another one beside
// each defence.
func (l *latency) extreme(t evaluation.Taken, id, title, unit, figure string) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e2-" + id, Title: title, Kind: evaluation.Bars, X: evaluation.Axis{Label: "defence"}, Y: evaluation.Axis{Label: unit},
		Note: distance(near) + ". The generator and what the defence does with its SYNs share a core: a defence that costs less is offered more.",
	}
	if figure == servedPercent {
		panel.Better = evaluation.Higher
	}
	for _, p := range l.all {
		panel.Series = append(panel.Series, evaluation.Bar(p.name, p.ours, t.Rounds(p.name, caseName(near, lab.MaxRate), figure), nil)...)
	}
	return panel
}

var latencyNotes = []string{
	"Client, edge, server and attacker are network namespaces of this machine, joined by veth links. The attacker's SYNs, and all that is " +
		"done about them, have a core of their own; clients, server and daemons share the others. Beyond what one core can do, SYNs are lost " +
		"before any defence sees them, and the generator itself gets slower.",
	"Requests are HTTP GETs, each over a connection of its own, for 14,500 bytes. Each address comes twice: its first contact, and a later " +
		"one. Clients come at a steady rate, whether those before them were answered or not.",
	"14,500 bytes and their head are eleven segments, one more than a Linux server may send at once: without a defence a request takes three " +
		"round trips. Beside split the eleventh comes some milliseconds after the ten, as a probe for a lost tail: the server has seen no " +
		"handshake, and takes the round trip for shorter than it is. proxy and SYNPROXY take a round trip more, as the client may send only " +
		"once the server has answered.",
	"Which of ours are SmartCookie's two modes of Jaqen: mode 1 is auth-rst (a wrong acknowledgement, the client's kernel resets it and sends its SYN " +
		"again; programs notice nothing), mode 2 is auth-cookie (a handshake, then a reset, and the program has to connect again). They are " +
		"ours, not Jaqen's code. Linux waits two timer ticks before it sends that SYN again: 8 ms and more where there are 250 in a second.",
	"Where a defence resets a first contact, the client connects again at once, and the time of both attempts counts. SmartCookie's client " +
		"waits 1 ms; most programs wait a second, or give up.",
	"Farther clients are behind a wire that a program delays; the attack is not. A round trip of 20 ms is 20.3 to 20.5 ms on an idle machine, " +
		"and more where something else wants its core.",
	"No defence is tcp_syncookies=0, kernel cookies is 1, both on the server behind a router. SYNPROXY is nft's, in that router's forward hook.",
	"On Linux 6.18 about one request of a hundred by way of SYNPROXY took 1.7 s, with an attack or without: the server refuses the ACK that " +
		"SYNPROXY sends when a clock's tick falls between, and repeats its SYN-ACK after a second.",
}
