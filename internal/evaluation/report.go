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

// shownPanel is a panel as the page has it.
type shownPanel struct {
	Panel
	Wide, Narrow template.HTML
	Table        table
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
		for _, p := range o.Panels {
			panel, err := p.show()
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

func (p Panel) show() (shownPanel, error) {
	onWide, err := p.svg(wide)
	if err != nil {
		return shownPanel{}, err
	}
	onNarrow, err := p.svg(narrow)
	// The drawings are the plotter's, which escapes what it writes.
	return shownPanel{p, template.HTML(onWide), template.HTML(onNarrow), p.table()}, err
}
