// Package bench measures what the data plane costs, as ratios within one run:
// single figures from this or that machine say little, and rounds that take
// turns see the same noise.
package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
)

// Row is one figure. Some also have a ratio to something else in the same
// rounds: those of the loop to kernel cookies, how many times as many SYNs.
type Row struct {
	Experiment string  `json:"experiment"` // testrun, loop, server
	Name       string  `json:"name"`
	Hash       string  `json:"hash"`
	Family     int     `json:"family"`
	Min        float64 `json:"ns_min,omitempty"`
	Median     float64 `json:"ns_median,omitempty"`
	Max        float64 `json:"ns_max,omitempty"`
	RatioTo    string  `json:"ratio_to,omitempty"`
	Ratio      float64 `json:"ratio,omitempty"` // median
	RatioMin   float64 `json:"ratio_min,omitempty"`
	RatioMax   float64 `json:"ratio_max,omitempty"`
}

// Spread is what rounds have shown.
type Spread struct {
	Min, Median, Max float64
}

func spreadOf(values []float64) Spread {
	sorted := slices.Sorted(slices.Values(values))
	return Spread{sorted[0], sorted[len(sorted)/2], sorted[len(sorted)-1]}
}

// ratios divides round by round.
func ratios(of, by []float64) Spread {
	all := make([]float64, min(len(of), len(by)))
	for i := range all {
		all[i] = of[i] / by[i]
	}
	return spreadOf(all)
}

// WriteJSON writes the rows as a list.
func WriteJSON(name string, rows []Row) error {
	text, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return fmt.Errorf("encode rows: %w", err)
	}
	if err := os.WriteFile(name, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	return nil
}

// WriteTable writes the rows of one experiment for people.
func WriteTable(w io.Writer, rows []Row) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "experiment\tname\thash\tIPv\tmin ns\tmedian ns\tmax ns\tratio\tto\t")
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t\n",
			r.Experiment, r.Name, cmp.Or(r.Hash, "-"), r.Family,
			nanoseconds(r.Min), nanoseconds(r.Median), nanoseconds(r.Max), r.ratio(), cmp.Or(r.RatioTo, "-"))
	}
	return table.Flush()
}

// nanoseconds is empty where only ratios mean something.
func nanoseconds(ns float64) string {
	if ns == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", ns)
}

func (r Row) ratio() string {
	if r.RatioTo == "" {
		return "-"
	}
	digits := 1
	if r.Median == 0 { // of throughputs: hundredths are what matters
		digits = 3
	}
	return fmt.Sprintf("%.*f (%.*f-%.*f)", digits, r.Ratio, digits, r.RatioMin, digits, r.RatioMax)
}
