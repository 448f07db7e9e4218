package evaluation

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"smartcookie/test/browser"
)

// spreadOf are rounds around a figure.
func spreadOf(median float64) []float64 {
	return []float64{median * 0.97, median, median * 1.04, median * 0.99, median * 1.02}
}

func lineOf(subject string, ours bool, at map[float64]float64, paper *Paper) Series {
	s := Series{Subject: subject, Ours: ours, Paper: paper}
	for _, x := range slices.Sorted(maps.Keys(at)) {
		point, _ := PointOf(x, spreadOf(at[x]))
		s.Points = append(s.Points, point)
	}
	return s
}

// everyKind has all that a report may have, more of it and longer than any real one.
func everyKind() Results {
	return Results{
		Schema: SchemaVersion, Effort: "quick", Traffic: "mean of CAIDA 2018: 38500 flows/s, 14.5 kB each in the mean",
		Machine: Machine{Kernel: "6.18.44-1-generic", CPU: "A Processor With a Long Name v7 @ 2.70GHz", Cores: 2, Virtual: true, Architecture: "amd64", Build: "0123456789ab+c0ffee"},
		Started: time.Unix(1_700_000_000, 0), Ended: time.Unix(1_700_003_600, 0),
		Experiments: []Outcome{ratesOutcome(), floodsOutcome(), filtersOutcome()},
	}
}

func ratesOutcome() Outcome {
	names := []string{
		"XDP_DROP", "MAC swap", "no cookies", "kernel cookies", "kernel cookies, tcp_syncookies=2", "nft SYNPROXY",
		"bpf_tcp_gen_syncookie (Netdev 2020)", "raw cookie helpers of the kernel, in XDP", "CRC cookie, as in the papers' comparison",
		"AES cookie, as in the papers' comparison",
	}
	ours := []string{"split, SipHash", "split, HalfSipHash", "proxy", "auth-cookie", "auth-full", "auth-rst", "host, which answers for its own kernel"}
	rate := Panel{ID: "e1-rate", Title: "SYNs answered on one core", Kind: Bars, Better: Higher, X: Axis{Label: "defence"}, Y: Axis{Label: "SYN/s"}, Note: "One core does everything: it makes the SYNs, answers them, and counts the answers."}
	cost := Panel{ID: "e1-cost", Title: "What one SYN costs", Kind: Bars, Better: Lower, X: Axis{Label: "defence"}, Y: Axis{Label: "ns", Log: true}}
	for i, name := range slices.Concat(names, ours) {
		var paper *Paper
		if i%4 == 2 {
			paper = &Paper{"136 M/s", "SmartCookie 8.2, figure 5", "a switch of another kind, at the rate of its line"}
		}
		rate.Series = append(rate.Series, Bar(name, i >= len(names), spreadOf(19e6/float64(i+1)), paper)...)
		cost.Series = append(cost.Series, Bar(name, i >= len(names), spreadOf(53*math.Pow(1.6, float64(i))), paper)...)
	}
	again := Panel{ID: "e1-few", Title: "Nothing, and one round", Kind: Bars, X: Axis{Label: "what"}, Y: Axis{Label: "%"}}
	again.Series = slices.Concat(Bar("nothing", false, []float64{0}, nil), Bar("less than nothing", true, []float64{-3, -2, -2.5}, nil), Bar("something", false, []float64{12}, nil))
	far := Panel{ID: "e1-far", Title: "Far from each other", Kind: Bars, X: Axis{Label: "what"}, Y: Axis{Label: "years", Log: true}}
	for _, years := range []float64{5e-7, 0.02, 3e20} {
		far.Series = append(far.Series, Bar("so many", true, []float64{years}, nil)...)
	}
	return Outcome{
		ID: "E1", Title: "How many SYNs a second", Reproduces: "SmartCookie figure 5 and artifact E1, EuroP4 figure 3", Question: "How many SYNs does a defence answer on one core without losing any, and what does one cost?",
		Planned: 120, Measured: 112, Notes: []string{"All ran in network namespaces on one core of this machine.", "A name_that_has_no_place_to_break_" + strings.Repeat("at_all_", 12)},
		Panels: []Panel{rate, cost, again, far}, Absent: []Absence{{"nft SYNPROXY", "nft is not installed: scripts/deps installs it"}},
		Failures: []Failure{{"AES cookie, SYN of 54 bytes, round 2", "4711 of 10000 SYNs were answered: the round says nothing"}},
	}
}

func floodsOutcome() Outcome {
	names := []string{"kernel cookies", "nft SYNPROXY", "no cookies", "split", "proxy", "auth-cookie, once more after a reset", "auth-full, once more after a reset", "auth-rst"}
	served := Panel{ID: "e2-served", Title: "Requests that succeed", Kind: Lines, Better: Higher, X: Axis{Label: "attack, SYN/s", Log: true}, Y: Axis{Label: "% of requests"}}
	latency := Panel{ID: "e2-latency", Title: "How long the median takes", Kind: Lines, Better: Lower, X: Axis{Label: "attack, SYN/s", Log: true}, Y: Axis{Label: "ms", Log: true}}
	tail := Panel{ID: "e2-tail", Title: "Percentiles", Kind: Lines, Better: Lower, X: Axis{Label: "percentile", Tail: true}, Y: Axis{Label: "ms", Log: true}}
	narrowRange := Panel{ID: "e2-near", Title: "Within a decade", Kind: Lines, X: Axis{Label: "attack, SYN/s"}, Y: Axis{Label: "requests/s", Log: true}}
	for i, name := range names {
		slow, ours := float64(i+1), i >= 3
		var paper *Paper
		if i == 3 {
			paper = &Paper{"1.1 ms", "SmartCookie 8.3, figure 6", "other machines"}
		}
		served.Series = append(served.Series, lineOf(name, ours, map[float64]float64{0: 100, 1e4: 100 - slow, 1e5: 99 - 9*slow, 1e6: 95 - 11*slow}, paper))
		latency.Series = append(latency.Series, lineOf(name, ours, map[float64]float64{0: 0.3 * slow, 1e4: 0.4 * slow, 1e5: 2 * slow, 1e6: 7 * slow * slow, 4.2e6: 2100}, paper))
		tail.Series = append(tail.Series, lineOf(name, ours, map[float64]float64{50: 0.2 * slow, 90: 0.5 * slow, 99: 3 * slow, 99.9: 20 * slow, 99.99: 1000}, nil))
		narrowRange.Series = append(narrowRange.Series, lineOf(name, ours, map[float64]float64{0: 1200 + 700*slow, 1e6: 1100 + 800*slow, 3.5e6: 1500}, nil))
	}
	return Outcome{
		ID: "E2", Title: "What clients see during a flood", Reproduces: "SmartCookie figure 6, EuroP4 figures 4 and 5", Question: "Are requests served while a flood is under way, and how fast?",
		Planned: 40, Measured: 40, Panels: []Panel{served, latency, tail, narrowRange},
	}
}

func filtersOutcome() Outcome {
	share := Panel{ID: "e4-flows", Title: "False positives by flows", Kind: Lines, Better: Lower, X: Axis{Label: "flows", Log: true}, Y: Axis{Label: "false positives, %", Log: true}}
	for i, name := range []string{"the paper's, formula", "the paper's", "ours, formula", "ours", "ours, at most"} {
		share.Series = append(share.Series, lineOf(name, i > 1, map[float64]float64{1e4: math.Pow(10, -float64(i)-3), 1e6: math.Pow(10, 1-float64(i))}, nil))
	}
	one := Panel{ID: "e4-one", Title: "One point", Kind: Lines, X: Axis{Label: "flows"}, Y: Axis{Label: "%"}, Series: []Series{lineOf("ours", true, map[float64]float64{5: 100}, nil)}}
	return Outcome{
		ID: "E4", Title: "How often strangers pass", Reproduces: "SmartCookie 6.3, equation 1", Question: "How often does the filter let in who has no connection?",
		Planned: 9, Measured: 9, Panels: []Panel{share, one},
	}
}

func TestReportIsReadableInABrowser(t *testing.T) {
	results := everyKind()
	report, err := results.html()
	if err != nil {
		t.Fatal(err)
	}
	var figures []string
	for _, o := range results.Experiments {
		for _, p := range o.Panels {
			figures = append(figures, p.ID)
		}
	}
	browser.CheckAll(t, "every-kind", report, figures)
}
