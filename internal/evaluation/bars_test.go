package evaluation

import (
	"slices"
	"strings"
	"testing"
)

func TestBarsStandOnNothing(t *testing.T) {
	p := Panel{Kind: Bars, Series: slices.Concat(Bar("more", true, []float64{3, 1, 2}, nil), Bar("less", false, []float64{-1}, nil))}
	bars, ticks := p.bars()
	want := []shownBar{
		{Name: "more", Value: "2", Ours: true, Spread: true, From: 25, Width: 50, Least: 50, Most: 50, Rounds: "1 – 3"},
		{Name: "less", Value: "-1", From: 0, Width: 25, Least: 0, Most: 0, Rounds: "-1 – -1"},
	}
	if !slices.Equal(bars, want) {
		t.Errorf("%+v, want %+v", bars, want)
	}
	if len(ticks) != 5 || ticks[0] != (shownTick{0, "-1"}) || ticks[4] != (shownTick{100, "3"}) {
		t.Errorf("ticks %v", ticks)
	}
}

// Of one round there is no spread, but there may be an interval.
func TestIntervalOfOneRoundIsShown(t *testing.T) {
	p := Panel{Kind: Bars, Series: Bar("one", true, []float64{2}, nil)}
	if bars, _ := p.bars(); bars[0].Spread {
		t.Error("a single round has a spread")
	}
	p.Series[0].Points[0].Max = 7
	if bars, _ := p.bars(); !bars[0].Spread {
		t.Error("an interval is not shown")
	}
}

func TestLogarithmicBarsBeginADecadeBefore(t *testing.T) {
	p := Panel{Kind: Bars, Y: Axis{Log: true}, Series: slices.Concat(Bar("1 k", true, []float64{1000}, nil), Bar("10", false, []float64{10}, nil), Bar("none", false, []float64{0}, nil))}
	bars, ticks := p.bars()
	for i, width := range []float64{100, 33.33, 0} {
		if bars[i].From != 0 || bars[i].Width != width {
			t.Errorf("%s is %v wide, want %v", bars[i].Name, bars[i].Width, width)
		}
	}
	if len(ticks) != 4 || ticks[0].Label != "0" || ticks[3] != (shownTick{100, "1 k"}) {
		t.Errorf("ticks %v", ticks)
	}
}

func TestTicksAreRoundAndFew(t *testing.T) {
	for _, test := range []struct {
		axis      Axis
		low, high float64
		want      string
	}{
		{Axis{}, 0, 104, "0 20 40 60 80 100"},
		{Axis{}, 0, 19.8e6, "0 5 M 10 M 15 M"},
		{Axis{}, -3, 12.5, "0 5 10"},
		{Axis{}, 0, 0.7, "0 0.2 0.4 0.6"},
		{Axis{Log: true}, 2.1, 3.05, "100 200 500 1 k 2 k 5 k 10 k 20 k 50 k"},
		{Axis{Log: true}, 1.69, 1.99, "50 60 70 80 90"},
		{Axis{Log: true}, 2.1, 2.9, "200 400 600"},
		{Axis{Log: true}, -7, 1, "1e-7 1e-5 0.001 0.1 10"},
	} {
		if got := strings.Join(labels(scale{Axis: test.axis}, test.low, test.high), " "); got != test.want {
			t.Errorf("%v to %v: %q, want %q", test.low, test.high, got, test.want)
		}
	}
}

func TestSubjectsLookAlikeInAllPanels(t *testing.T) {
	panels := []Panel{
		{Kind: Lines, Series: []Series{{Subject: "peer"}, {Subject: "ours", Ours: true}}},
		{Kind: Bars, Series: []Series{{Subject: "only in bars"}}},
		{Kind: Lines, Series: []Series{{Subject: "ours, too", Ours: true}, {Subject: "peer"}}},
	}
	as := looks(panels)
	if len(as) != 3 || as["ours"].colour != 0 || as["ours, too"].colour == 0 || as["peer"].ours || len(as["peer"].line().Dashes) == 0 {
		t.Errorf("%+v", as)
	}
}
