package evaluation

import (
	"slices"
	"strings"
	"testing"
)

func seriesAt(xs ...float64) []Series {
	s := Series{Subject: "one"}
	for _, x := range xs {
		s.Points = append(s.Points, Point{X: x, Median: 1})
	}
	return []Series{s}
}

func labels(s scale, low, high float64) (all []string) {
	for _, tick := range s.Ticks(low, high) {
		if tick.Label != "" {
			all = append(all, tick.Label)
		}
	}
	return all
}

func TestNothingStandsBeforeTheSmallestFigure(t *testing.T) {
	for _, test := range []struct {
		xs, at []float64
		labels string
	}{
		{[]float64{0, 1e5, 1e6}, []float64{4, 5, 6}, "0 100 k 1 M"},
		{[]float64{0, 5e4, 1e5}, []float64{4, 4.69897, 5}, "0 100 k"},
		{[]float64{1e5, 1e6}, []float64{5, 6}, "100 k 1 M"},
		{[]float64{0}, []float64{0}, "1"},
	} {
		p := Panel{X: Axis{Log: true}, Series: seriesAt(test.xs...)}
		x, _ := p.scales()
		for i, value := range test.xs {
			if got := x.at(value); got < test.at[i]-1e-5 || got > test.at[i]+1e-5 {
				t.Errorf("of %v, %v stands at %v, want %v", test.xs, value, got, test.at[i])
			}
		}
		if got := strings.Join(labels(x, test.at[0], test.at[len(test.at)-1]), " "); got != test.labels {
			t.Errorf("ticks of %v: %q, want %q", test.xs, got, test.labels)
		}
	}
}

func TestEachNineIsAsWide(t *testing.T) {
	p := Panel{ID: "tail", Kind: Lines, X: Axis{Label: "%", Tail: true}, Series: seriesAt(50, 90, 99, 99.9, 99.99)}
	x, _ := p.scales()
	for i, value := range []float64{90, 99, 99.9, 99.99} {
		if got := x.at(value); got < float64(i)+0.9999 || got > float64(i)+1.0001 {
			t.Errorf("%v stands at %v, want %d", value, got, i+1)
		}
	}
	want := []string{"50", "90", "99", "99.9", "99.99"}
	if got := labels(x, x.at(50), 4); !slices.Equal(got, want) {
		t.Errorf("ticks %q, want %q", got, want)
	}
	if got := p.table().Head[1:]; !slices.Equal(got, want) {
		t.Errorf("columns %q, want %q", got, want)
	}
	drawing, err := p.svg(wide, looks([]Panel{p}))
	if err != nil {
		t.Fatal(err)
	}
	for _, label := range want {
		if !strings.Contains(drawing, ">"+label+"<") {
			t.Errorf("the drawing has no %q", label)
		}
	}
}
