package bench

import (
	"slices"

	"smartcookie/internal/evaluation"
)

const (
	transactions = "transactions_per_s"
	answered     = "answered_per_s"
)

var requestNotes = []string{
	"One CPU is the host: it receives, answers, and runs the server and the 100 clients. Another one is the generator's and does nothing else.",
	"Clients and flood come by the same port and share its queue of 256 packets, as on a card with one queue. The port is looked at every 100 µs in the kernel's softirqs, as if a card moderated its interrupts.",
	"A transaction is that of netperf's TCP_CRR: connect, one byte there, one byte back, close in order, and at once again. The client closes first and keeps no TIME_WAIT (net.ipv4.tcp_max_tw_buckets=0), or its ports would be used up in seconds; the server has none to keep.",
	"A client whose SYN is lost sends it again after a second, as Linux does. That is why little is left once packets are lost.",
	"Without a flood the generator still runs, at one SYN a second: two CPUs of a virtual machine may share a core, and it looks at the clock all the time.",
	"Packets cross from one CPU to another, which costs more than what XDP programs do with them: E1 has their own costs.",
	"\"host, kernel cookies\" is the paper's way: bpf_tcp_gen_syncookie, and a passive mode. 100 flows are more SYNs a second than its limit, so beside a flood it is always awake; for its cost in passive mode the limit was raised. split has its server behind it: one hop more for the clients.",
	"The paper's host had a real card, more CPUs and an attacker elsewhere; of both axes it shows shares only.",
}

func (x *requests) panels(t evaluation.Taken) []evaluation.Panel {
	return []evaluation.Panel{x.shares(t), x.absolute(t), x.largest(t), x.largestRatio(t), passive(t)}
}

// most is the best median, by what of each defence is looked at.
func most(rounds func(subject string) []float64) (value float64) {
	for _, s := range defended() {
		if point, ok := evaluation.PointOf(0, rounds(s.name)); ok {
			value = max(value, point.Median)
		}
	}
	return value
}

// absorbed is the case of what is derived from all floods of a round.
const absorbedCase = "absorbed"

// absorbed has the most that each defence answered in each round: at some rate, not
// always at the highest one, since a full queue costs the host time, too.
func (x *requests) absorbed(t evaluation.Taken) evaluation.Taken {
	all := make(evaluation.Taken)
	for id, f := range t {
		if id.Case == withoutGenerator {
			continue
		}
		id.Case = absorbedCase
		if f[answered] > all[id][answered] {
			all[id] = evaluation.Figures{answered: f[answered]}
		}
	}
	return all
}

// lines draws transactions over the flood, both as parts of something.
func (x *requests) lines(t evaluation.Taken, floods, served float64) (all []evaluation.Series) {
	for _, s := range defended() {
		series := evaluation.Series{Subject: s.name, Ours: s.ours, Paper: papersShape(s.name)}
		for _, p := range x.pressures {
			rounds := slices.Clone(t.Rounds(s.name, p.String(), transactions))
			for i := range rounds {
				rounds[i] /= served
			}
			if point, ok := evaluation.PointOf(p.value()/floods, rounds); ok && p != fullFlood {
				series.Points = append(series.Points, point)
			}
		}
		if len(series.Points) > 0 {
			all = append(all, series)
		}
	}
	return all
}

func papersShape(subject string) *evaluation.Paper {
	if subject != hostKernelCookies {
		return nil
	}
	return &evaluation.Paper{
		Value: "less is lost at high flood rates than with the kernel alone", Where: "Netdev 2020, figure 2",
		Differs: "a real card, several CPUs; no figures but the drawing's",
	}
}

func (x *requests) shares(t evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e5-shares", Title: "Throughput beside a flood, as the paper draws it", Kind: evaluation.Lines,
		X: evaluation.Axis{Label: "SYN flood, % of the most that anybody absorbed"},
		Y: evaluation.Axis{Label: "transactions, % of the most without a flood"}, Better: evaluation.Higher,
		Note: "100 flows. 100% of a flood is the most that any defence answered.",
	}
	absorbed := x.absorbed(t)
	floods := most(func(subject string) []float64 { return absorbed.Rounds(subject, absorbedCase, answered) })
	served := most(func(subject string) []float64 { return t.Rounds(subject, noFlood.String(), transactions) })
	if floods > 0 && served > 0 {
		panel.Series = x.lines(t, floods/100, served/100)
	}
	return panel
}

func (x *requests) absolute(t evaluation.Taken) evaluation.Panel {
	return evaluation.Panel{
		ID: "e5-transactions", Title: "Throughput beside a flood", Kind: evaluation.Lines,
		X: evaluation.Axis{Label: "SYN/s offered"}, Y: evaluation.Axis{Label: "transactions per second"}, Better: evaluation.Higher,
		Series: x.lines(t, 1, 1), Note: "The same in absolute figures.",
	}
}

func (x *requests) largest(t evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e5-absorbed", Title: "The largest flood absorbed", Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "defence"}, Y: evaluation.Axis{Label: "SYN/s answered"}, Better: evaluation.Higher,
		Note: "The most SYN-ACKs that came back in a second at any of these rates, or while as many SYNs came as the generator can send; of one CPU that also has clients and server.",
	}
	absorbed := x.absorbed(t)
	for _, s := range defended() {
		panel.Series = append(panel.Series, evaluation.Bar(s.name, s.ours, absorbed.Rounds(s.name, absorbedCase, answered), nil)...)
	}
	return panel
}

func (x *requests) largestRatio(t evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e5-absorbed-ratio", Title: "The largest flood absorbed, against kernel cookies", Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "defence"}, Y: evaluation.Axis{Label: "times as many SYNs answered"}, Better: evaluation.Higher,
		Note: "Each round against kernel cookies in the same round.",
	}
	absorbed := x.absorbed(t)
	for _, s := range defended() {
		var paper *evaluation.Paper
		if s.name == hostKernelCookies {
			paper = &evaluation.Paper{Value: "about 1.4", Where: "Netdev 2020, Evaluation", Differs: "a real card, several CPUs, a kernel of 2020"}
		}
		ratios := absorbed.RatioRounds(s.name, kernelCookies, absorbedCase, answered)
		panel.Series = append(panel.Series, evaluation.Bar(s.name, s.ours, ratios, paper)...)
	}
	return panel
}

// passive is the cost of a defence that waits.
func passive(t evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e5-passive", Title: "Throughput without an attack, against no program", Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "defence"}, Y: evaluation.Axis{Label: "transactions, times those with no program"}, Better: evaluation.Higher,
		Note: "100 flows and nothing else, all on one CPU; each round against no program in the same round. A second host without a program shows what chance does.",
	}
	for _, s := range waiting()[1:] {
		var paper *evaluation.Paper
		switch s.name {
		case passiveKernel:
			paper = &evaluation.Paper{Value: "\"significantly smaller\"", Where: "Netdev 2020, Bimodal Operation", Differs: "the paper gives no figure"}
		case alwaysHost:
			paper = &evaluation.Paper{Value: "\"a small but notable regression\"", Where: "Netdev 2020, Bimodal Operation", Differs: "of its own program; the paper gives no figure"}
		}
		panel.Series = append(panel.Series, evaluation.Bar(s.name, s.ours, t.RatioRounds(s.name, noProgram, withoutGenerator, transactions), paper)...)
	}
	return panel
}
