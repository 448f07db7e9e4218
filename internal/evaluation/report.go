package evaluation

import (
	"bytes"
	_ "embed" // the report's page
	"fmt"
	"html/template"
)

//go:embed report.html.tmpl
var reportPage string

var reportTemplate = template.Must(template.New("report").Parse(reportPage))

// shownPanel is a panel as the page has it: bars, or lines in two sizes.
type shownPanel struct {
	Panel
	Bars         []shownBar
	Ticks        []shownTick
	Wide, Narrow template.HTML
	Legend       []legendEntry
	Table        table
}

// legendEntry says which line is whose.
type legendEntry struct {
	Series
	Swatch template.HTML
}

type shownOutcome struct {
	Outcome
	Shown []shownPanel
}

// html is the report: one file that needs nothing else.
func (r Results) html() ([]byte, error) {
	page := struct {
		Results
		Shown []shownOutcome
	}{Results: r}
	for _, o := range r.Experiments {
		shown := shownOutcome{Outcome: o}
		as := looks(o.Panels)
		for _, p := range o.Panels {
			panel, err := p.show(as)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", o.ID, err)
			}
			shown.Shown = append(shown.Shown, panel)
		}
		page.Shown = append(page.Shown, shown)
	}
	var text bytes.Buffer
	if err := reportTemplate.Execute(&text, page); err != nil {
		return nil, fmt.Errorf("write the report: %w", err)
	}
	return text.Bytes(), nil
}

func (p Panel) show(as map[string]look) (shownPanel, error) {
	shown := shownPanel{Panel: p, Table: p.table()}
	if p.Kind == Bars {
		shown.Bars, shown.Ticks = p.bars()
		return shown, nil
	}
	onWide, err := p.svg(wide, as)
	if err != nil {
		return shownPanel{}, err
	}
	onNarrow, err := p.svg(narrow, as)
	if err != nil {
		return shownPanel{}, err
	}
	// The drawings are the plotter's, which escapes what it writes.
	shown.Wide, shown.Narrow = template.HTML(onWide), template.HTML(onNarrow)
	for _, s := range p.Series {
		swatch, err := as[s.Subject].swatch()
		if err != nil {
			return shownPanel{}, fmt.Errorf("draw %s: %w", p.ID, err)
		}
		shown.Legend = append(shown.Legend, legendEntry{s, template.HTML(swatch)})
	}
	return shown, nil
}
