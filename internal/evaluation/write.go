package evaluation

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ReportFile is the page for people, in a run's directory.
const ReportFile = "report.html"

// write writes everything that people and programs read: results.json, for each
// experiment its tables, and the report.
func (r Results) write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	files := map[string][]byte{"results.json": append(text, '\n')}
	for _, o := range r.Experiments {
		files[o.ID+".md"] = []byte(o.markdown())
		if files[o.ID+".csv"], err = o.csv(); err != nil {
			return err
		}
	}
	if files[ReportFile], err = r.html(); err != nil {
		return err
	}
	for name, text := range files {
		if err := replace(filepath.Join(dir, name), text); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	}
	return nil
}

// replace writes a file anew, whole or not at all.
func replace(name string, text []byte) error {
	if err := os.WriteFile(name+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// csv has a row for each figure.
func (o Outcome) csv() ([]byte, error) {
	var text bytes.Buffer
	table := csv.NewWriter(&text)
	rows := [][]string{{"panel", "subject", "ours", "x", "median", "min", "max", "rounds", "paper", "where", "differs"}}
	for _, p := range o.Panels {
		for _, s := range p.Series {
			for _, point := range s.Points {
				paper := s.paper()
				rows = append(rows, []string{
					p.ID, s.Subject, strconv.FormatBool(s.Ours), number(point.X), number(point.Median), number(point.Min), number(point.Max),
					strconv.Itoa(len(point.Rounds)), paper.Value, paper.Where, paper.Differs,
				})
			}
		}
	}
	if err := table.WriteAll(rows); err != nil {
		return nil, fmt.Errorf("write %s.csv: %w", o.ID, err)
	}
	return text.Bytes(), nil
}

func (s Series) paper() Paper {
	if s.Paper == nil {
		return Paper{}
	}
	return *s.Paper
}

// number is exact, for programs.
func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// markdown has the same tables as the report.
func (o Outcome) markdown() string {
	var text strings.Builder
	fmt.Fprintf(&text, "# %s: %s\n\n%s Reproduces %s.\n", o.ID, o.Title, o.Question, o.Reproduces)
	for _, p := range o.Panels {
		fmt.Fprintf(&text, "\n## %s\n\n%s\n\n%s", p.Title, p.Measure(), p.table().markdown())
		if p.Note != "" {
			fmt.Fprintf(&text, "\n%s\n", p.Note)
		}
	}
	for _, a := range o.Absent {
		fmt.Fprintf(&text, "\nMissing: %s (%s).\n", a.Subject, a.Why)
	}
	for _, f := range o.Failures {
		fmt.Fprintf(&text, "\nFailed: %s: %s.\n", f.Cell, f.Error)
	}
	if len(o.Notes) > 0 {
		fmt.Fprintf(&text, "\n%s\n", strings.Join(o.Notes, "\n"))
	}
	return text.String()
}

// table is a panel for people.
type table struct {
	Head []string
	Rows []row
}

type row struct {
	Ours   bool
	Cells  []string
	series Series
}

func (t table) markdown() string {
	var text strings.Builder
	line := func(cells []string) {
		for _, c := range cells {
			text.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
		}
		text.WriteString("|\n")
	}
	line(t.Head)
	text.WriteString("|" + strings.Repeat("---|", len(t.Head)) + "\n")
	for _, row := range t.Rows {
		line(row.Cells)
	}
	return text.String()
}

// Measure says what a panel's figures are, and which of them are good.
func (p Panel) Measure() string {
	text := p.Y.Label
	if p.Kind == Lines {
		text += ", by " + p.X.Label
	}
	text += "."
	switch p.Better {
	case Higher:
		text += " Higher is better."
	case Lower:
		text += " Lower is better."
	}
	return text
}

// table has a row for each series of bars, and for lines a column for each X.
// What the paper says has columns if it says anything.
func (p Panel) table() table {
	var t table
	if p.Kind == Bars {
		t = p.barTable()
	} else {
		t = p.lineTable()
	}
	if !slices.ContainsFunc(p.Series, func(s Series) bool { return s.Paper != nil }) {
		return t
	}
	t.Head = append(t.Head, "the paper's", "where", "what differed")
	for i := range t.Rows {
		paper := t.Rows[i].series.paper()
		t.Rows[i].Cells = append(t.Rows[i].Cells, paper.Value, paper.Where, paper.Differs)
	}
	return t
}

func (p Panel) lineTable() table {
	xs := p.xs()
	t := table{Head: []string{p.X.Label}}
	for _, x := range xs {
		t.Head = append(t.Head, scale{Axis: p.X}.name(x))
	}
	for _, s := range p.Series {
		cells := []string{s.Subject}
		for _, x := range xs {
			cells = append(cells, s.at(x))
		}
		t.Rows = append(t.Rows, row{s.Ours, cells, s})
	}
	return t
}

func (p Panel) barTable() table {
	t := table{Head: []string{p.X.Label, p.Y.Label, "spread", "rounds"}}
	for _, s := range p.Series {
		for _, point := range s.Points {
			t.Rows = append(t.Rows, row{s.Ours, []string{
				s.Subject, Short(point.Median), Short(point.Min) + " – " + Short(point.Max), strconv.Itoa(len(point.Rounds)),
			}, s})
		}
	}
	return t
}

// xs are all of the panel's, ascending.
func (p Panel) xs() []float64 {
	seen := make(map[float64]bool)
	for _, s := range p.Series {
		for _, point := range s.Points {
			seen[point.X] = true
		}
	}
	return sortedKeys(seen)
}

// at is the figure at X with its spread, empty if there is none.
func (s Series) at(x float64) string {
	for _, point := range s.Points {
		if point.X == x {
			if point.Min == point.Max {
				return Short(point.Median)
			}
			return fmt.Sprintf("%s (%s – %s)", Short(point.Median), Short(point.Min), Short(point.Max))
		}
	}
	return ""
}
