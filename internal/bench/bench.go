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

// Row is one figure. A row of the loop also has its ratio to kernel cookies in
// the same rounds: how many times as many SYNs.
type Row struct {
	Experiment string  `json:"experiment"` // testrun, loop
	Name       string  `json:"name"`
	Hash       string  `json:"hash"`
	Family     int     `json:"family"`
	Min        float64 `json:"ns_min"`
	Median     float64 `json:"ns_median"`
	Max        float64 `json:"ns_max"`
	RatioKC    float64 `json:"ratio_to_kernel_cookies,omitempty"`
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
	fmt.Fprintln(table, "experiment\tname\thash\tIPv\tmin ns\tmedian ns\tmax ns\tx kernel cookies\t")
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%.1f\t%.1f\t%.1f\t%s\t\n",
			r.Experiment, r.Name, cmp.Or(r.Hash, "-"), r.Family, r.Min, r.Median, r.Max, r.ratio())
	}
	return table.Flush()
}

func (r Row) ratio() string {
	if r.RatioKC == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f (%.1f-%.1f)", r.RatioKC, r.RatioMin, r.RatioMax)
}
