package lab

import (
	"fmt"
	"io"
	"time"
)

// Screen shows live figures.
type Screen struct {
	out      io.Writer
	terminal bool
	every    time.Duration // between lines that no terminal overwrites
	shown    time.Duration
	open     bool
	err      error
}

// NewScreen makes a screen of an output.
func NewScreen(out io.Writer, terminal bool) *Screen {
	return &Screen{out: out, terminal: terminal, every: time.Second}
}

// clearLine returns to the first column and erases to the end (ECMA-48).
const clearLine = "\r\x1b[K"

// Show shows a sample: over the last one in a terminal, else now and then on a
// line of its own.
func (s *Screen) Show(sample Sample) {
	s.show(sample, fmt.Sprintf("%s  requests %5d  served %6s", sample.flood(), sample.Benign.Requests, served(sample.Benign)))
}

// ShowFlood shows a sample that has no benign load.
func (s *Screen) ShowFlood(sample Sample) { s.show(sample, sample.flood()) }

func (s *Screen) show(sample Sample, line string) {
	switch {
	case s.err != nil:
	case s.terminal:
		s.open = true
		_, s.err = fmt.Fprint(s.out, clearLine+line)
	case sample.Elapsed >= s.shown+s.every:
		s.shown = sample.Elapsed
		_, s.err = fmt.Fprintln(s.out, line)
	}
}

// Finish ends the line and returns what writing failed with.
func (s *Screen) Finish() error {
	if s.open && s.err == nil {
		s.open = false
		_, s.err = fmt.Fprintln(s.out)
	}
	return s.err
}

func (s Sample) flood() string {
	return fmt.Sprintf("  %4.1f s  flood %8s/s  answered %8s/s", s.Elapsed.Seconds(), perSecond(s.Offered), perSecond(s.Answered))
}
