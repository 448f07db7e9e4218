package evaluation

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// A summary fits on a terminal.
const (
	summaryColumns = 80
	subjectColumns = 42 // at most
	figureColumns  = 9
)

// WriteSummary writes a short table for each of these experiments, of all if none
// is named, for somebody who reads it in a terminal.
func (r Results) WriteSummary(w io.Writer, only []string) error {
	var text strings.Builder
	for _, o := range r.Experiments {
		if len(only) > 0 && !slices.Contains(only, o.ID) {
			continue
		}
		fmt.Fprintf(&text, "\n%s\n", Fit(o.ID+": "+o.Title, summaryColumns))
		for _, p := range o.Panels {
			p.summary(&text)
		}
		for _, a := range o.Absent {
			fmt.Fprintln(&text, Fit("  missing: "+a.Subject+" ("+a.Why+")", summaryColumns))
		}
	}
	text.WriteString("\n* ours\n")
	_, err := io.WriteString(w, text.String())
	return err
}

func (p Panel) summary(text *strings.Builder) {
	title := p.Title + ": " + p.Y.Label
	if p.Better != "" {
		title += " (" + string(p.Better) + " is better)"
	}
	fmt.Fprintf(text, "\n  %s\n", Fit(title, summaryColumns-2))
	width := utf8.RuneCountInString(p.X.Label)
	for _, one := range p.Series {
		width = max(width, utf8.RuneCountInString(one.Subject))
	}
	width = min(width, subjectColumns)
	line := func(ours bool, subject string, cells []string) {
		mark := "  "
		if ours {
			mark = "* "
		}
		subject = Fit(subject, width)
		fmt.Fprintf(text, "%s%s%s", mark, subject, strings.Repeat(" ", width-utf8.RuneCountInString(subject)))
		for _, c := range cells {
			fmt.Fprintf(text, "%*s", figureColumns, c)
		}
		fmt.Fprintln(text)
	}
	if p.Kind == Bars {
		line(false, p.X.Label, []string{"median", "least", "most"})
		for _, s := range p.Series {
			point := s.Points[0]
			line(s.Ours, s.Subject, []string{Short(point.Median), Short(point.Min), Short(point.Max)})
		}
		return
	}
	xs := some(p.xs(), (summaryColumns-2-width)/figureColumns)
	var head []string
	for _, x := range xs {
		head = append(head, scale{Axis: p.X}.name(x))
	}
	line(false, p.X.Label, head)
	for _, s := range p.Series {
		var cells []string
		for _, x := range xs {
			cells = append(cells, s.median(x))
		}
		line(s.Ours, s.Subject, cells)
	}
}

// median is the figure at X, a dash if there is none.
func (s Series) median(x float64) string {
	for _, point := range s.Points {
		if point.X == x {
			return Short(point.Median)
		}
	}
	return "-"
}

// some are so many of a list, the first and the last among them.
func some(all []float64, n int) []float64 {
	if len(all) <= n {
		return all
	}
	chosen := make([]float64, n)
	for i := range chosen {
		chosen[i] = all[i*(len(all)-1)/(n-1)]
	}
	return chosen
}

// Fit shortens a text to so many columns.
func Fit(text string, columns int) string {
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	return string([]rune(text)[:max(0, columns-1)]) + "…"
}
