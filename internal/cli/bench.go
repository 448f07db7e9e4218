package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"smartcookie/internal/bench"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
	"smartcookie/internal/traffic"
)

const benchText = `Makes the papers' experiments on this machine, with the peers of today in the same
run, and writes a report that needs no other file, tables and raw data.

Nothing leaves the machine: networks are namespaces, and are removed. A run that is
interrupted goes on where it was when it is started again with the same directory.
A run that is complete there is not made again; choose another directory for that.

Of --only, testrun and server are no experiments of the papers: they measure
the hot path alone, for those who change it, and print a table. BENCH_JSON=FILE also
writes its rows as JSON.`

// Where results go if nobody says: beside each other, as a quick run's are no part
// of a full one.
const (
	fullDir  = "smartcookie-bench"
	quickDir = "smartcookie-bench-quick"
)

// benchOptions are the flags of the bench command.
type benchOptions struct {
	quick bool
	only  []string
	out   string
	trace string
}

func newBenchCommand(env *environment) *cobra.Command {
	var options benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Reproduce the papers' experiments on this machine",
		Long:  benchText,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot(); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends it at once
			if options.ofHotPath() {
				return options.hotPath(ctx, env)
			}
			benign, err := options.benign()
			if err != nil {
				return err
			}
			if err := lab.Sweep(); err != nil {
				return err
			}
			return options.evaluate(ctx, env, bench.Experiments(benign), traffic.Describe(benign))
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&options.quick, "quick", false, "three minutes: that everything runs, and the shape; not to be quoted")
	flags.StringSliceVar(&options.only, "only", nil, "run these `experiments`: "+strings.Join(experimentIDs(bench.Experiments(traffic.Default())), ",")+"; or testrun, server")
	flags.StringVar(&options.out, "out", "", "`directory` of the results, "+fullDir+" or "+quickDir+" here if not given")
	flags.StringVar(&options.trace, "trace", "", "`file` of the benign traffic: a capture (pcap, pcapng), or a description as docs/evaluation.md has it")
	return cmd
}

// benign is where the experiments' benign traffic comes from.
func (o benchOptions) benign() (traffic.Source, error) {
	if o.trace == "" {
		return traffic.Default(), nil
	}
	source, err := traffic.Open(o.trace)
	if err != nil {
		return nil, &usageError{fmt.Errorf("--trace: %w", err)}
	}
	return source, nil
}

func experimentIDs(all []evaluation.Experiment) []string {
	var ids []string
	for _, e := range all {
		ids = append(ids, e.ID)
	}
	return ids
}

// hotPathMeasurements are what make bench runs.
var hotPathMeasurements = []string{"testrun", "server"}

func (o benchOptions) ofHotPath() bool {
	return slices.ContainsFunc(o.only, func(name string) bool { return slices.Contains(hotPathMeasurements, name) })
}

func (o benchOptions) hotPath(ctx context.Context, env *environment) error {
	if o.quick || o.out != "" || o.trace != "" {
		return usageErrorf("--only %s: prints a table, and has no --quick, --out or --trace", strings.Join(o.only, ","))
	}
	for _, name := range o.only {
		if !slices.Contains(hotPathMeasurements, name) {
			return usageErrorf("--only: %q does not run together with %s", name, strings.Join(hotPathMeasurements, ", "))
		}
	}
	progress := func(text string) { fmt.Fprintln(env.stderr, text) }
	rows, err := o.measure(ctx, progress)
	if err != nil {
		return err
	}
	if name := os.Getenv("BENCH_JSON"); name != "" {
		if err := bench.WriteJSON(name, rows); err != nil {
			return err
		}
	}
	return bench.WriteTable(env.stdout, rows)
}

func (o benchOptions) measure(ctx context.Context, progress func(string)) (rows []bench.Row, err error) {
	measurements := map[string]func() ([]bench.Row, error){
		"testrun": func() ([]bench.Row, error) { return bench.TestRun(progress) },
		"server":  func() ([]bench.Row, error) { return bench.Server(ctx, bench.FullEffort, progress) },
	}
	for _, name := range hotPathMeasurements {
		if !slices.Contains(o.only, name) {
			continue
		}
		made, err := measurements[name]()
		if err != nil {
			return nil, err
		}
		rows = append(rows, made...)
	}
	return rows, nil
}
