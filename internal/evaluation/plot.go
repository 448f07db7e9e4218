package evaluation

import (
	"bytes"
	"fmt"
	"html"
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

func seriesColour(i int) color.RGBA { return color.RGBA{0x01, 0x02, uint8(i), 0xff} }

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

// look is how a series' line is told from the others: in all panels of an
// experiment alike. Ours are greenish and whole, others dashed.
type look struct {
	colour int
	glyph  draw.GlyphDrawer
	ours   bool
}

var (
	ourColours   = []int{0, 6, 8, 9, 4}
	otherColours = []int{2, 3, 5, 7, 1}
	glyphs       = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, diamond{}, nabla{}, draw.RingGlyph{}}
)

// Two glyphs that the library has not: squares on a corner, pyramids upside down.
type (
	diamond struct{}
	nabla   struct{}
)

func (diamond) DrawGlyph(c *draw.Canvas, style draw.GlyphStyle, at vg.Point) {
	r := 1.3 * style.Radius
	fill(c, style, at, vg.Point{X: r}, vg.Point{Y: r}, vg.Point{X: -r}, vg.Point{Y: -r})
}

func (nabla) DrawGlyph(c *draw.Canvas, style draw.GlyphStyle, at vg.Point) {
	r := style.Radius
	fill(c, style, at, vg.Point{X: 1.1 * r, Y: 0.8 * r}, vg.Point{X: -1.1 * r, Y: 0.8 * r}, vg.Point{Y: -1.2 * r})
}

func fill(c *draw.Canvas, style draw.GlyphStyle, at vg.Point, corners ...vg.Point) {
	var path vg.Path
	path.Move(at.Add(corners[0]))
	for _, corner := range corners[1:] {
		path.Line(at.Add(corner))
	}
	path.Close()
	c.SetColor(style.Color)
	c.Fill(path)
}

// looks gives each subject of the panels of lines its own.
func looks(panels []Panel) map[string]look {
	all := make(map[string]look)
	ours, others := 0, 0
	for _, p := range panels {
		for _, s := range p.Series {
			if _, ok := all[s.Subject]; ok || p.Kind != Lines {
				continue
			}
			if s.Ours {
				all[s.Subject] = look{ourColours[ours%len(ourColours)], glyphs[ours%len(glyphs)], true}
				ours++
			} else {
				all[s.Subject] = look{otherColours[others%len(otherColours)], glyphs[others%len(glyphs)], false}
				others++
			}
		}
	}
	return all
}

func (l look) line() draw.LineStyle {
	style := draw.LineStyle{Color: seriesColour(l.colour), Width: vg.Points(2)}
	if !l.ours {
		style.Width, style.Dashes = vg.Points(1.5), []vg.Length{vg.Points(5), vg.Points(3)}
	}
	return style
}

func (l look) dot() draw.GlyphStyle {
	return draw.GlyphStyle{Color: seriesColour(l.colour), Radius: vg.Points(3.2), Shape: l.glyph}
}

// swatch is a piece of the line, for the legend.
func (l look) swatch() (string, error) {
	const width, height = 30, 12
	canvas := vgsvg.New(width, height)
	c := draw.New(canvas)
	c.StrokeLine2(l.line(), 0, height/2, width, height/2)
	c.DrawGlyph(l.dot(), vg.Point{X: width / 2, Y: height / 2})
	return inline(canvas, "")
}

// size of a drawing, in the points that CSS pixels become.
type size struct{ width, height, text font.Length }

var (
	wide   = size{width: 760, height: 380, text: 12}
	narrow = size{width: 350, height: 290, text: 11}
)

// svg draws a panel of lines.
func (p Panel) svg(s size, as map[string]look) (string, error) {
	drawing := plot.New()
	if err := p.drawLines(drawing, as); err != nil {
		return "", fmt.Errorf("draw %s: %w", p.ID, err)
	}
	dress(drawing, s)
	canvas := vgsvg.New(s.width, s.height)
	// Names of ticks are centred: the last one reaches beyond its axis.
	drawing.Draw(draw.Crop(draw.New(canvas), 0, -1.5*s.text, 0, -0.5*s.text))
	text, err := inline(canvas, p.Title)
	if err != nil {
		return "", fmt.Errorf("draw %s: %w", p.ID, err)
	}
	return text, nil
}

// inline is a drawing as a part of the page.
func inline(canvas *vgsvg.Canvas, title string) (string, error) {
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return "", err
	}
	_, body, ok := strings.Cut(text.String(), "<svg")
	if !ok {
		return "", fmt.Errorf("no SVG: %q", text.String())
	}
	role := ` aria-hidden="true"`
	if title != "" {
		role = fmt.Sprintf(` role="img" aria-label="%s"`, html.EscapeString(title))
	}
	return styled("<svg" + role + body), nil
}

// dress gives everything that is not a series its colour and size.
func dress(p *plot.Plot, s size) {
	p.BackgroundColor = nil
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Color, a.Tick.Color, a.Padding = ink, ink, 0
		for _, text := range []*draw.TextStyle{&a.Label.TextStyle, &a.Tick.Label} {
			text.Color, text.Font.Size, text.Font.Variant = ink, s.text, "Sans"
		}
		a.Label.Padding = 0.4 * s.text
	}
}

func (p Panel) drawLines(drawing *plot.Plot, as map[string]look) error {
	drawing.X.Label.Text, drawing.Y.Label.Text = p.X.Label, p.Y.Label
	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = grid, grid
	drawing.Add(lines)
	x, y := p.scales()
	for _, s := range p.Series {
		if err := s.draw(drawing, x, y, as[s.Subject]); err != nil {
			return err
		}
	}
	drawing.X.Tick.Marker, drawing.Y.Tick.Marker = x, y
	if !p.Y.Log {
		drawing.Y.Min = min(0, drawing.Y.Min)
		drawing.Y.Max += 0.04 * (drawing.Y.Max - drawing.Y.Min) // room for the dots
	}
	return nil
}

func (s Series) draw(drawing *plot.Plot, x, y scale, as look) error {
	points := drawn{}
	for _, point := range s.Points {
		points.XYs = append(points.XYs, plotter.XY{X: x.at(point.X), Y: y.at(point.Median)})
		points.YErrors = append(points.YErrors, struct{ Low, High float64 }{
			y.at(point.Median) - y.at(point.Min), y.at(point.Max) - y.at(point.Median),
		})
	}
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.LineStyle, dots.GlyphStyle = as.line(), as.dot()
	spread, err := plotter.NewYErrorBars(points)
	if err != nil {
		return err
	}
	spread.Color, spread.Width, spread.CapWidth = seriesColour(as.colour), vg.Points(0.8), vg.Points(4)
	drawing.Add(spread, line, dots)
	return nil
}

// drawn are points with their spread.
type drawn struct {
	plotter.XYs
	plotter.YErrors
}
