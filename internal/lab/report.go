package lab

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"smartcookie/internal/badwire"
)

// Report is what a case has shown. Its JSON is what scripts read.
type Report struct {
	Defence string       `json:"defence"`
	IPv6    bool         `json:"ipv6"`
	Seconds float64      `json:"seconds"`
	Benign  LoadReport   `json:"benign"`
	Flood   FloodReport  `json:"flood"`
	Edge    EdgeReport   `json:"edge"`
	Server  ServerReport `json:"server"`
	// Detector is nil where none decides.
	Detector *DetectorReport `json:"detector,omitempty"`
	// Wires is what the bad wires did since they were made, by name: "outside",
	// "inside"; of each both directions, the one from the outside first.
	Wires map[string][2]badwire.Counts `json:"wires,omitempty"`
}

// FloodReport is the flood and what came back to its source addresses.
type FloodReport struct {
	Kind        string     `json:"kind"`
	Rate        string     `json:"rate"` // as asked for
	Offered     uint64     `json:"offered"`
	OfferedPPS  float64    `json:"offered_pps"`
	Answered    uint64     `json:"answered"` // SYN-ACKs
	AnsweredPPS float64    `json:"answered_pps"`
	Back        SinkCounts `json:"back"`
}

// EdgeReport counts packets at the edge by verdict since its start; in the
// host defence both halves count together, here and in ServerReport.
type EdgeReport struct {
	Verdicts map[string]uint64 `json:"verdicts"`
}

// ServerReport counts packets at the server's agent by verdict.
type ServerReport struct {
	Setups   uint64            `json:"setups"` // connections made from cookies
	Verdicts map[string]uint64 `json:"verdicts"`
	// CPUPercent is what the server's processes take of a CPU: the HTTP server and
	// its agents. What its kernel does for packets, it does on the CPU of whoever
	// sent them, the generator's.
	CPUPercent float64 `json:"cpu_percent"`
}

const (
	tableHead = "defence        offered/s   answered   requests   served      p50       p99"
	tableRow  = "%-11s%13s %10s %10d %8s %8s %9s\n"
)

// WriteTable writes reports as a table 80 columns wide.
func WriteTable(w io.Writer, reports []Report) error {
	var table strings.Builder
	table.WriteString(tableHead + "\n")
	for _, r := range reports {
		fmt.Fprintf(&table, tableRow, r.Defence,
			perSecond(r.Flood.OfferedPPS), perSecond(r.Flood.AnsweredPPS),
			r.Benign.Requests, served(r.Benign), milliseconds(r.Benign, r.Benign.P50), milliseconds(r.Benign, r.Benign.P99))
	}
	for _, r := range reports {
		table.WriteString(r.Detector.line() + r.contacts() + r.wires())
	}
	_, err := io.WriteString(w, table.String())
	return err
}

// contacts tells a client's first connection from its later ones.
func (r Report) contacts() string {
	var lines strings.Builder
	for _, c := range []struct {
		name    string
		contact ContactReport
	}{{"first", r.Benign.First}, {"again", r.Benign.Later}} {
		if c.contact.Requests == 0 {
			continue
		}
		fmt.Fprintf(&lines, "  %s: %d of %d served, p50 %.1f ms, p99 %.1f ms", c.name, c.contact.OK, c.contact.Requests, c.contact.P50, c.contact.P99)
		if c.contact.Repeated > 0 {
			fmt.Fprintf(&lines, "; %d reset and sent again", c.contact.Repeated)
		}
		lines.WriteString("\n")
	}
	return lines.String()
}

// wires says what the bad wires did, a line for each; overload is no fault that
// anybody has asked for.
func (r Report) wires() string {
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.Wires)) {
		c := r.Wires[name][0].Plus(r.Wires[name][1])
		fmt.Fprintf(&lines, "%-8s wire: %d passed, %d lost, %d doubled, %d held back, %d late", name,
			c.Passed, c.Lost, c.Duplicated, c.Reordered, c.Late)
		if c.Overload > 0 {
			fmt.Fprintf(&lines, "; OVERLOADED: %d more lost", c.Overload)
		}
		lines.WriteString("\n")
	}
	return lines.String()
}

// perSecond writes a rate as people read it.
func perSecond(rate float64) string {
	switch {
	case rate >= 1e6:
		return fmt.Sprintf("%.2f M", rate/1e6)
	case rate >= 1e3:
		return fmt.Sprintf("%.1f k", rate/1e3)
	}
	return fmt.Sprintf("%.0f", rate)
}

// served is the share of requests that succeeded; 100% means every one.
func served(load LoadReport) string {
	if load.Requests == 0 {
		return "-"
	}
	share := 100 * float64(load.OK) / float64(load.Requests)
	if load.OK < load.Requests {
		share = min(share, 99.9)
	}
	return fmt.Sprintf("%.1f%%", share)
}

func milliseconds(load LoadReport, value float64) string {
	if load.OK == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", value)
}
