package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"smartcookie/internal/evaluation"
	"smartcookie/internal/filter"
	"smartcookie/internal/lab"
	"smartcookie/internal/traffic"
)

// panels shows the server's CPU by rate, what reaches it, and what a packet that
// does costs.
func (x *cpuSweep) panels(t evaluation.Taken) []evaluation.Panel {
	return inhabited([]evaluation.Panel{
		x.byRate(t, lab.SYN, "e3-syn", "SYN flood: CPU of the server"),
		x.byRate(t, lab.ACK, "e3-ack", "ACK flood: CPU of the server"),
		x.reached(t),
		x.perPacket(t),
	})
}

func (x *cpuSweep) byRate(t evaluation.Taken, kind lab.Kind, id, title string) evaluation.Panel {
	p := evaluation.Panel{
		ID: id, Title: title, Kind: evaluation.Lines, Better: evaluation.Lower,
		X: evaluation.Axis{Label: fmt.Sprintf("%s/s offered", map[lab.Kind]string{lab.SYN: "SYN", lab.ACK: "ACK"}[kind])},
		Y: evaluation.Axis{Label: "% of one CPU"},
		Note: fmt.Sprintf("At 0 there are the %d benign requests per second alone, which are there all the time. Their clients share this CPU: a server that takes more than about %.0f%% is near its limit, and drops what it cannot take. Points at odd rates are of a generator that could not make more, as others had its CPU.",
			benignRate, atItsLimit),
	}
	for _, s := range cpuSubjects() {
		if s.flood != kind {
			continue
		}
		series := evaluation.Series{Subject: s.name, Ours: s.ours}
		if point, ok := evaluation.PointOf(0, t.Rounds(s.calm, calmCase, "cpu_percent")); ok {
			series.Points = append(series.Points, point)
		}
		for _, rate := range x.rates {
			in := floodCaseOf(kind, rate)
			at := offeredAt(rate, t.Rounds(s.name, in, "offered_per_s"))
			if point, ok := evaluation.PointOf(at, t.Rounds(s.name, in, "cpu_percent")); ok {
				series.Points = append(series.Points, point)
			}
		}
		slices.SortFunc(series.Points, func(a, b evaluation.Point) int { return cmp.Compare(a.X, b.X) })
		if len(series.Points) > 0 {
			p.Series = append(p.Series, series)
		}
	}
	return p
}

// offeredAt is the rate that was wanted, or what was offered instead, with two
// digits.
func offeredAt(rate int, offered []float64) float64 {
	point, ok := evaluation.PointOf(0, offered)
	if !ok || point.Median >= enoughOffered*float64(rate) {
		return float64(rate)
	}
	digit := math.Pow(10, math.Floor(math.Log10(max(point.Median, 1)))-1)
	return math.Round(point.Median/digit) * digit
}

// reached is the share of the flood that comes to the server, at the highest rate.
func (x *cpuSweep) reached(t evaluation.Taken) evaluation.Panel {
	p := evaluation.Panel{
		ID: "e3-reached", Title: "Attack packets that reach the server", Kind: evaluation.Bars, Better: evaluation.Lower,
		X: evaluation.Axis{Label: "flood, defence"}, Y: evaluation.Axis{Label: "% of those offered"},
		Note: fmt.Sprintf("Counted between edge and server, at the highest rate, with %d flows in the filters. Of SYNs a split defence lets none through, whatever its filter.",
			filter.PaperFlows),
	}
	for _, s := range cpuSubjects() {
		in := floodCaseOf(s.flood, x.rates[len(x.rates)-1])
		shares := evaluation.Ratios(t.Rounds(s.name, in, "reached_per_s"), t.Rounds(s.name, in, "offered_per_s"))
		for i := range shares {
			shares[i] *= 100
		}
		p.Series = append(p.Series, evaluation.Bar(s.title(), s.ours, shares, s.papersShare())...)
	}
	return p
}

func (s cpuSubject) title() string {
	return fmt.Sprintf("%s, %s", map[lab.Kind]string{lab.SYN: "SYN", lab.ACK: "ACK"}[s.flood], s.name)
}

func (s cpuSubject) papersShare() *evaluation.Paper {
	switch {
	case s.passage == filtered && s.flood == lab.SYN:
		return &evaluation.Paper{Value: "7.66 %", Where: "8.1, Jaqen", Differs: "Jaqen's own filter was smaller, with fewer flows"}
	case s.passage == filtered:
		return &evaluation.Paper{Value: "7.66 %", Where: "8.1, SmartCookie", Differs: "keyed hash in the place of CRC"}
	case s.ours && s.flood == lab.SYN:
		return &evaluation.Paper{Value: "0", Where: "8.1, SmartCookie", Differs: "an edge of XDP, not a switch"}
	}
	return nil
}

// perPacket is what a flood adds to the server's CPU time, for each packet that the
// server has handled.
func (x *cpuSweep) perPacket(t evaluation.Taken) evaluation.Panel {
	p := evaluation.Panel{
		ID: "e3-packet", Title: "CPU time of the server for a packet that reaches it", Kind: evaluation.Bars, Better: evaluation.Lower,
		X: evaluation.Axis{Label: "work"}, Y: evaluation.Axis{Label: "ns"},
		Note: "What the flood adds, at the highest rate, divided by the packets that the server has answered or its agent has dropped. Receiving from the virtual link is part of it, and so is waking up: for each packet where few come, as one in 13 is 7.66%; for many at once where all come.",
	}
	for _, s := range cpuSubjects() {
		if s.passage == ownEdge || s.name == undefended {
			continue
		}
		name := map[bool]string{true: "our agent: ACK, cookie check, drop", false: "kernel: SYN, cookie, SYN-ACK"}[s.defence == "split"]
		if s.name == kernelAlone && s.flood == lab.ACK {
			name = "kernel: ACK, cookie check, RST"
		}
		name += map[bool]string{true: ", every packet", false: ", one in 13"}[s.passage == open]
		in := floodCaseOf(s.flood, x.rates[len(x.rates)-1])
		p.Series = append(p.Series, evaluation.Bar(name, s.defence == "split", s.nanoseconds(t, in), s.papersCost())...)
	}
	return p
}

func (s cpuSubject) nanoseconds(t evaluation.Taken, in string) (all []float64) {
	busy, calm := t.Rounds(s.name, in, "cpu_percent"), t.Rounds(s.calm, calmCase, "cpu_percent")
	handled, reached := t.Rounds(s.name, in, "handled_per_s"), t.Rounds(s.name, in, "reached_per_s")
	for i := range min(len(busy), len(calm), len(handled)) {
		// What is at its limit handles less; the kernel sends some SYN-ACKs twice.
		if packets := min(handled[i], reached[i]); packets > 0 {
			all = append(all, (busy[i]-calm[i])/100*1e9/packets)
		}
	}
	return all
}

func (s cpuSubject) papersCost() *evaluation.Paper {
	if s.name != papersSplit {
		return nil
	}
	return &evaluation.Paper{
		Value: "33-36 % less overhead than Jaqen", Where: "8.4",
		Differs: "instructions of the whole server under the flood at the same rate, ACKs dropped in XDP; here CPU time, at TC ingress",
	}
}

func (x *cpuSweep) notes() []string {
	return []string{
		"The server receives in a kernel thread of its own (threaded NAPI), on another CPU than flood and edge where there are two: its CPU time, that of the HTTP server and that of the server's agent are what is shown. The paper counts instructions per second of all cores; here it is CPU time, of one.",
		fmt.Sprintf("Peers come by a gate in the place of an edge, which lets a packet through to the server if the paper's filter has its flow; the filter holds %d flows. What an edge would answer itself is dropped there: it costs the server nothing.", filter.PaperFlows),
		fmt.Sprintf("Ours is the real edge, its filter made for %d flows and full of them in both generations, which are different: its worst.", filter.PaperFlows),
		"\"No defence\" drops what finds its queue full, and serves nobody. \"Our server agent alone\" has no edge before it: it shows what it costs to check every packet.",
		"Where few packets come, the server's thread wakes up for each of them, which costs more than what it does then: as an interrupt for each packet would, and on a virtual machine several times as much. What packets cost that come many at once is the bars of those that let every packet in.",
		fmt.Sprintf("Beside all floods, benign flows are replayed (%s), made to come %d times a second; the paper replays 38,500 requests per second on a machine of eight cores.", traffic.Describe(x.benign), benignRate),
	}
}
