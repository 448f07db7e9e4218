package evaluation

import "math"

// Bars are drawn by the page itself: names may be long, and break where they must.

// shownBar is one, with places in percent of its track.
type shownBar struct {
	Name, Value  string
	Ours, Spread bool // a spread is shown if there is one, or an interval
	From, Width  float64
	Least, Most  float64
	Rounds       string
	Paper        *Paper
}

type shownTick struct {
	At    float64
	Label string
}

// bars are the panel's, and the ticks of their scale.
func (p Panel) bars() (bars []shownBar, ticks []shownTick) {
	_, y := p.scales()
	low, high := y.span(p.Series)
	place := func(value float64) float64 {
		return math.Round(1e4*(y.at(value)-low)/(high-low)) / 100
	}
	ground := 0.0 // where bars begin
	if !p.Y.Log {
		ground = place(0)
	}
	for _, s := range p.Series {
		for _, point := range s.Points {
			at := place(point.Median)
			bars = append(bars, shownBar{
				Name: s.Subject, Value: Short(point.Median), Ours: s.Ours, Spread: len(point.Rounds) > 1 || point.Max > point.Min,
				From: min(ground, at), Width: math.Abs(at - ground), Least: place(point.Min), Most: place(point.Max) - place(point.Min),
				Rounds: Short(point.Min) + " – " + Short(point.Max), Paper: s.Paper,
			})
		}
	}
	for _, tick := range y.Ticks(low, high) {
		if tick.Label != "" && tick.Value >= low && tick.Value <= high {
			ticks = append(ticks, shownTick{math.Round(1e4*(tick.Value-low)/(high-low)) / 100, tick.Label})
		}
	}
	return bars, ticks
}

// span is what an axis of bars shows: nothing is on it, and all whiskers.
func (s scale) span(series []Series) (low, high float64) {
	if s.Log {
		low, high = s.at(0), s.at(0)+1
	}
	for _, one := range series {
		for _, point := range one.Points {
			low, high = min(low, s.at(point.Min)), max(high, s.at(point.Max))
		}
	}
	if low == high {
		high = low + 1
	}
	return low, high
}
