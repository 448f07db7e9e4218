// Package check judges whether a machine is fit for what a configuration asks of
// it. Probing only gathers facts and changes nothing; judging is pure.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity says how bad a finding is.
type Severity int

// The severities, ascending.
const (
	none    Severity = iota // nothing was asked, and nothing is said
	OK                      // as it should be
	Notice                  // it works; an operator may want to know
	Unseen                  // it could not be looked at
	Warning                 // some connections suffer, now or later
	Error                   // the agent is refused, or does harm
)

var severityNames = []string{none: "none", OK: "ok", Notice: "notice", Unseen: "unseen", Warning: "warning", Error: "error"}

func (s Severity) String() string { return severityNames[s] }

// MarshalText names the severity in JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ExitCode is what the command ends with if this is the worst that it has found.
// 1 and 2 are those of a command that could not look at all.
func (s Severity) ExitCode() int { return exitCodes[s] }

var exitCodes = map[Severity]int{OK: 0, Notice: 0, Unseen: 3, Warning: 4, Error: 5}

// Shape is what is to run on a machine.
type Shape string

// The shapes.
const (
	Edge       Shape = "edge"
	Server     Shape = "server"
	Host       Shape = "host"
	HostKernel Shape = "host --cookies kernel"
)

// Finding is one thing that was looked at.
type Finding struct {
	Name     string   `json:"name"`
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Why      string   `json:"why,omitempty"`
	Mend     string   `json:"mend,omitempty"`
}

// Report is all that was found, the worst last.
type Report struct {
	Shape    Shape     `json:"shape"`
	Worst    Severity  `json:"worst"`
	Findings []Finding `json:"findings"`
}

// Judge tells from facts what is in the way. Whatever is looked at in a shape and
// is not in the way is a finding too.
func Judge(f *Facts) Report {
	var all []Finding
	for _, judge := range []func(*Facts) []Finding{
		judgeKernel, judgeDevices, judgeForwarding, judgeAddresses, judgeMachine,
		judgeKeys, judgeClock, judgeAgents, judgePeers, judgeSizes,
	} {
		all = append(all, judge(f)...)
	}
	for _, u := range f.Unseen {
		all = append(all, Finding{u.topic.Name, Unseen, u.because, u.topic.Why, u.mend})
	}
	for _, t := range Topics {
		if slices.Contains(t.Shapes, f.Shape) && !slices.ContainsFunc(all, func(found Finding) bool { return found.Name == t.Name }) {
			all = append(all, Finding{Name: t.Name, Severity: OK, What: t.Wants})
		}
	}
	all = slices.DeleteFunc(all, func(found Finding) bool { return found.Severity == none })
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(int(a.Severity)-int(b.Severity), indexOf(a.Name)-indexOf(b.Name))
	})
	return Report{Shape: f.Shape, Worst: all[len(all)-1].Severity, Findings: all}
}

// Summary counts what was found, the worst first.
func (r *Report) Summary() string {
	count := make(map[Severity]int)
	for _, f := range r.Findings {
		count[f.Severity]++
	}
	var parts []string
	for s := Error; s > none; s-- {
		if n := count[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, plural(s, n)))
		}
	}
	return strings.Join(parts, ", ")
}

func plural(s Severity, n int) string {
	switch {
	case s == OK:
		return "in order"
	case s == Unseen:
		return "not looked at"
	case n == 1:
		return s.String()
	}
	return s.String() + "s"
}
