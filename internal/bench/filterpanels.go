package bench

import (
	"fmt"
	"slices"

	"smartcookie/internal/evaluation"
	"smartcookie/internal/filter"
)

// panels shows measured beside formula, and ours beside the paper's.
func (x *filterSweep) panels(t evaluation.Taken) []evaluation.Panel {
	share := evaluation.Axis{Label: "false positives, %", Log: true}
	flows := evaluation.Axis{Label: "flows", Log: true}
	byFlows := func(l load) float64 { return float64(l.flows) }
	panels := []evaluation.Panel{
		x.atThePapersLoad(t),
		{ID: "e4-flows", Title: "By flows, in the paper's memory", X: flows, Y: share, Series: x.lines(t, x.byFlows(), byFlows),
			Note: fmt.Sprintf("All have %d bytes. The paper's one window has them alone; of ours, and with two windows, each gets half.", filter.PaperBytes)},
		{ID: "e4-sized", Title: "By flows, in our memory", X: flows, Y: share, Series: x.lines(t, x.byFlowsSized(), byFlows),
			Note: fmt.Sprintf("All have %d bytes a flow, as ours is configured.", bytesPerFlow)},
		{ID: "e4-memory", Title: "By memory, with the paper's flows", X: evaluation.Axis{Label: "bytes", Log: true}, Y: share,
			Series: x.lines(t, x.byMemory(), func(l load) float64 { return float64(l.bytes) }),
			Note:   fmt.Sprintf("%d flows in a window, or in each of two.", filter.PaperFlows)},
	}
	for i := range panels[1:] {
		p := &panels[i+1]
		p.Kind, p.Better = evaluation.Lines, evaluation.Lower
		p.Note += " Where none of the strangers was let in, what is drawn is an upper bound (95% sure: three in all that were asked), in a series of its own: it is not 0."
	}
	return inhabited(panels)
}

// inhabited are the panels that have something to show.
func inhabited(panels []evaluation.Panel) []evaluation.Panel {
	return slices.DeleteFunc(panels, func(p evaluation.Panel) bool { return len(p.Series) == 0 })
}

// counted are a subject's positives and probes of each round.
func counted(t evaluation.Taken, subject string, l load) (positives, probes []float64) {
	return t.Rounds(subject, l.String(), "positives"), t.Rounds(subject, l.String(), "probes")
}

// boundOf is the upper bound of a share of which nothing was seen: 95% sure, it is
// no more than three in all probes.
const boundOf = 3

// measured is a point in percent; nothing was let in: an upper bound.
func measuredShare(t evaluation.Taken, subject string, l load, at float64) (p evaluation.Point, bound, ok bool) {
	positives, probes := counted(t, subject, l)
	if len(probes) == 0 {
		return p, false, false
	}
	found, asked := 0.0, 0.0
	for i := range probes {
		found, asked = found+positives[i], asked+probes[i]
	}
	if found == 0 {
		p, ok = evaluation.PointOf(at, []float64{100 * boundOf / asked})
		return p, true, ok
	}
	shares := evaluation.Ratios(positives, probes)
	for i := range shares {
		shares[i] *= 100
	}
	p, ok = evaluation.PointOf(at, shares)
	return p, false, ok
}

// lines are for each subject what was measured and, once for each formula, what was
// expected.
func (x *filterSweep) lines(t evaluation.Taken, loads []load, at func(load) float64) (all []evaluation.Series) {
	for _, s := range x.subjects {
		expected := evaluation.Series{Subject: s.name + ", formula", Ours: s.ours}
		measured := evaluation.Series{Subject: s.name, Ours: s.ours}
		bounds := evaluation.Series{Subject: s.name + ", at most", Ours: s.ours}
		for _, l := range loads {
			if point, ok := evaluation.PointOf(at(l), []float64{100 * s.formula(l)}); ok {
				expected.Points = append(expected.Points, point)
			}
			point, bound, ok := measuredShare(t, s.name, l, at(l))
			switch {
			case ok && bound:
				bounds.Points = append(bounds.Points, point)
			case ok:
				measured.Points = append(measured.Points, point)
			}
		}
		candidates := []evaluation.Series{measured, bounds}
		if s.name == papersFilter || s.name == oursFilter {
			candidates = []evaluation.Series{expected, measured, bounds}
		}
		for _, series := range candidates {
			if len(series.Points) > 0 {
				all = append(all, series)
			}
		}
	}
	return all
}

// atThePapersLoad has its one figure, and ours.
func (x *filterSweep) atThePapersLoad(t evaluation.Taken) evaluation.Panel {
	p := evaluation.Panel{
		ID: "e4-load", Title: fmt.Sprintf("With the paper's %d flows", filter.PaperFlows), Kind: evaluation.Bars, Better: evaluation.Lower,
		X: evaluation.Axis{Label: "filter"}, Y: evaluation.Axis{Label: "false positives, %"},
		Note: "Ours, in its own memory, is made for less than 0.01%. It is as much at its worst, with two generations full of different flows.",
	}
	papers, own := load{filter.PaperFlows, filter.PaperBytes}, sizedFor(filter.PaperFlows)
	theirs := func(differs string) *evaluation.Paper {
		return &evaluation.Paper{Value: "7.66 %", Where: "8.1, equation 1", Differs: differs}
	}
	for _, s := range x.subjects {
		for _, l := range []load{papers, own} {
			var paper *evaluation.Paper
			switch {
			case l == papers && s.name == papersFilter:
				paper = theirs("measured; keyed hash in the place of CRC")
				p.Series = append(p.Series, evaluation.Bar("the paper's, formula", false, []float64{100 * s.formula(l)}, theirs("nothing"))...)
			case l == papers && s.name == papersBPF:
				paper = theirs("measured in BPF; keyed hash in the place of CRC")
			}
			point, bound, ok := measuredShare(t, s.name, l, 0)
			if !ok {
				continue
			}
			name := fmt.Sprintf("%s, %s", s.name, size(l.bytes))
			if bound {
				name += ", at most"
			}
			p.Series = append(p.Series, evaluation.Series{Subject: name, Ours: s.ours, Points: []evaluation.Point{point}, Paper: paper})
		}
	}
	return p
}

func size(bytes int) string { return evaluation.Short(float64(bytes)) + "B" }
