package lab

import (
	"context"
	"fmt"
	"io"
	"time"
)

// chapter is one case of the story.
type chapter struct {
	title    string
	defence  string
	flooded  bool
	duration time.Duration
}

var story = []chapter{
	{"Calm: no flood, no defence", "none", false, 3 * time.Second},
	{"Flood, no defence: the queue of half-open connections is full", "none", true, 6 * time.Second},
	{"Flood, the kernel's SYN cookies: each answer costs a whole stack", "kernel", true, 6 * time.Second},
	{"Flood, smartcookie: the edge answers, only the proven get through", "split", true, 8 * time.Second},
}

// Tell runs the lab's story, about half a minute long. Live figures replace
// each other on one line if the output is a terminal.
func (l *Lab) Tell(ctx context.Context, out io.Writer, terminal, ipv6 bool) error {
	for _, chapter := range story {
		if err := Supported(chapter.defence); err != nil {
			return err
		}
	}
	var reports []Report
	for i, chapter := range story {
		if _, err := fmt.Fprintf(out, "%d. %s\n", i+1, chapter.title); err != nil {
			return err
		}
		screen := NewScreen(out, terminal)
		report, err := l.Run(ctx, chapter.run(ipv6, screen))
		if err := screen.Finish(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		reports = append(reports, report)
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	return WriteTable(out, reports)
}

func (c chapter) run(ipv6 bool, screen *Screen) Case {
	run := Case{Defence: c.defence, Duration: c.duration, IPv6: ipv6, Progress: screen.Show}
	if c.flooded {
		run.Flood = MaxRate
	}
	return run
}
