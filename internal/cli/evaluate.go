package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/evaluation"
)

// evaluate runs experiments and tells what became of them.
func (o benchOptions) evaluate(ctx context.Context, env *environment, all []evaluation.Experiment, benign string) error {
	only, err := o.chosen(experimentIDs(all))
	if err != nil {
		return err
	}
	run := evaluation.Options{Dir: cmp.Or(o.out, fullDir), Experiments: all, Only: only, Traffic: benign, Now: env.now}
	if o.quick {
		run.Dir, run.Effort = cmp.Or(o.out, quickDir), evaluation.Quick
	}
	shown := newProgressLine(env.stderr)
	run.Progress = shown.show
	results, err := evaluation.Run(ctx, run)
	if err := shown.finish(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: the same command goes on from here; what there is so far: %s", reportIn(run.Dir))
	}
	if errors.Is(err, evaluation.ErrOtherRun) {
		return &usageError{fmt.Errorf("--out: %w", err)}
	}
	if err != nil {
		return err
	}
	if shown.cells == 0 {
		fmt.Fprintf(env.stderr, "Everything had been measured, by %s; --out DIR measures again.\n", results.Started.Local().Format(time.DateTime))
	}
	if err := results.WriteSummary(env.stdout, only); err != nil {
		return err
	}
	fmt.Fprintf(env.stdout, "\nReport: %s\n", reportIn(run.Dir))
	return tellFailed(env, results.Failed())
}

func reportIn(dir string) string {
	name := filepath.Join(dir, evaluation.ReportFile)
	if whole, err := filepath.Abs(name); err == nil {
		return whole
	}
	return name
}

// tellFailed has a line for each cell that could not be measured.
func tellFailed(env *environment, failed []string) error {
	if len(failed) == 0 {
		return nil
	}
	for _, line := range failed {
		fmt.Fprintln(env.stderr, strings.ReplaceAll(line, "\n", "; "))
	}
	return fmt.Errorf("not everything could be measured (%d); the same command tries these again", len(failed))
}

// chosen are the experiments' names as they are spelt.
func (o benchOptions) chosen(ids []string) (only []string, err error) {
	for _, name := range o.only {
		i := slices.IndexFunc(ids, func(id string) bool { return strings.EqualFold(id, name) })
		if i < 0 {
			return nil, usageErrorf("--only: no such experiment: %q; there are %s, and %s",
				name, strings.Join(ids, ", "), strings.Join(hotPathMeasurements, ", "))
		}
		only = append(only, ids[i])
	}
	return only, nil
}

// progressLine says how a run stands: on a terminal in one line that is written
// again and again, elsewhere in a line for each cell.
type progressLine struct {
	out     io.Writer
	columns int // of the terminal; 0: it is none
	cells   int // shown so far
	err     error
}

func newProgressLine(out io.Writer) *progressLine {
	l := &progressLine{out: out}
	if !isTerminal(out) {
		return l
	}
	l.columns = 80
	if size, err := unix.IoctlGetWinsize(int(out.(*os.File).Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		l.columns = int(size.Col)
	}
	return l
}

func (l *progressLine) show(p evaluation.Progress) {
	l.cells++
	if l.err != nil {
		return
	}
	line := fmt.Sprintf("%s  %d of %d, %s left  %s", p.Experiment, p.Done+1, p.Total, roughly(p.Left), p.Cell)
	if l.columns == 0 {
		_, l.err = fmt.Fprintln(l.out, line)
		return
	}
	// One column stays free: a full line would be wrapped by some terminals.
	_, l.err = fmt.Fprint(l.out, "\r\x1b[K"+evaluation.Fit(line, l.columns-1))
}

// finish leaves the line as it is, and begins another one.
func (l *progressLine) finish() error {
	if l.columns > 0 && l.cells > 0 && l.err == nil {
		_, l.err = fmt.Fprintln(l.out)
	}
	return l.err
}

// roughly is as exact as an estimate is.
func roughly(d time.Duration) string {
	switch {
	case d < 90*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 90*time.Minute:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}
