package evaluation

import (
	"bytes"
	"fmt"
	"image/color"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Plots are drawn in colours that stand for the style sheet's: the page decides
// what they are, so that one drawing serves light and dark.
var (
	ink  = color.RGBA{0x01, 0x01, 0x01, 0xff}
	grid = color.RGBA{0x01, 0x01, 0x02, 0xff}
)

// seriesColours are as many as can be told apart.
const seriesColours = 10

func seriesColour(i int) color.RGBA { return color.RGBA{0x01, 0x02, uint8(i % seriesColours), 0xff} }

var drawnColour = regexp.MustCompile(`#01(0[12])(0[0-9A-Fa-f])`)

// styled replaces the colours of a drawing by the style sheet's.
func styled(svg string) string {
	return drawnColour.ReplaceAllStringFunc(svg, func(c string) string {
		switch strings.ToLower(c) {
		case "#010101":
			return "var(--ink)"
		case "#010102":
			return "var(--grid)"
		}
		return "var(--s" + c[len(c)-1:] + ")"
	})
}

// size of a drawing, in the points that CSS pixels become.
type size struct{ width, text font.Length }

var (
	wide   = size{width: 760, text: 12}
	narrow = size{width: 350, text: 11}
)

// svg draws a panel.
func (p Panel) svg(s size) (string, error) {
	drawing := plot.New()
	height := 0.55 * s.width
	var err error
	if p.Kind == Bars {
		height = font.Length(len(p.Series))*2.2*s.text + 6*s.text
		err = p.drawBars(drawing)
	} else {
		height += 1.5 * s.text * font.Length(len(p.Series)) // for the legend
		err = p.drawLines(drawing)
	}
	if err != nil {
		return "", fmt.Errorf("draw %s: %w", p.ID, err)
	}
	dress(drawing, s)
	canvas := vgsvg.New(s.width, height)
	drawing.Draw(draw.New(canvas))
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return "", fmt.Errorf("draw %s: %w", p.ID, err)
	}
	_, body, ok := strings.Cut(text.String(), "<svg")
	if !ok {
		return "", fmt.Errorf("draw %s: not an SVG", p.ID)
	}
	return styled("<svg" + body), nil
}

// dress gives everything that is not a series its colour and size.
func dress(p *plot.Plot, s size) {
	p.BackgroundColor = nil
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Color, a.Tick.Color = ink, ink
		for _, text := range []*draw.TextStyle{&a.Label.TextStyle, &a.Tick.Label} {
			text.Color, text.Font.Size, text.Font.Variant = ink, s.text, "Sans"
		}
	}
	p.Legend.TextStyle.Color, p.Legend.TextStyle.Font.Size, p.Legend.TextStyle.Font.Variant = ink, s.text, "Sans"
	p.Legend.Top, p.Legend.Left = true, true
}

// drawBars lays them down, so that names have room; the first one is on top.
func (p Panel) drawBars(drawing *plot.Plot) error {
	n := len(p.Series)
	names, spread := make([]string, n), spreads{}
	for i, s := range p.Series {
		at := n - 1 - i
		names[at] = s.Subject
		point := s.Points[0]
		bar, err := plotter.NewBarChart(plotter.Values{point.Median}, vg.Points(14))
		if err != nil {
			return err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width = true, float64(at), 0
		bar.Color = seriesColour(colourOf(s.Ours))
		drawing.Add(bar)
		spread = append(spread, across{float64(at), point})
	}
	errors, err := plotter.NewXErrorBars(spread)
	if err != nil {
		return err
	}
	errors.Color = ink
	drawing.Add(errors)
	drawing.NominalY(names...)
	drawing.X.Label.Text = p.Y.Label
	drawing.X.Min, drawing.X.Tick.Marker = 0, scale{}
	drawing.Y.Min, drawing.Y.Max = -0.6, float64(n)-0.4
	return nil
}

// colourOf tells ours from the rest where names tell everything else.
func colourOf(ours bool) int {
	if ours {
		return 0
	}
	return 1
}

// across is a bar's spread.
type across struct {
	at float64
	Point
}

type spreads []across

func (s spreads) Len() int                    { return len(s) }
func (s spreads) XY(i int) (float64, float64) { return s[i].Median, s[i].at }
func (s spreads) XError(i int) (float64, float64) {
	return s[i].Median - s[i].Min, s[i].Max - s[i].Median
}

func (p Panel) drawLines(drawing *plot.Plot) error {
	drawing.X.Label.Text, drawing.Y.Label.Text = p.X.Label, p.Y.Label
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = grid, grid
	drawing.Add(lines)
	x, y := p.scales()
	for i, s := range p.Series {
		var points plotter.XYs
		for _, point := range s.Points {
			points = append(points, plotter.XY{X: x.at(point.X), Y: y.at(point.Median)})
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, dots.Color = seriesColour(i), seriesColour(i)
		line.Width, dots.Shape = vg.Points(1.5), draw.CircleGlyph{}
		if !s.Ours {
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		}
		drawing.Add(line, dots)
		drawing.Legend.Add(s.Subject, line, dots)
	}
	drawing.X.Tick.Marker, drawing.Y.Tick.Marker = x, y
	if !p.Y.Log {
		drawing.Y.Min = min(0, drawing.Y.Min)
	}
	return nil
}
