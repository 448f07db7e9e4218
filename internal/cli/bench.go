package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"smartcookie/internal/bench"
)

func newBenchCommand(env *environment) *cobra.Command {
	var only string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what the data plane costs on this machine",
		Long: "Measures in turns, so that ratios mean something where single figures do not: test runs of the edge beside\n" +
			"a floor and the kernel's own cookie helper, a flood on one core against the kernel's cookies, and what established\n" +
			"traffic costs at the server agent (needs iperf3 and nft).\n" +
			"BENCH_JSON=FILE also writes the rows as JSON.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
			defer stop()
			progress := func(text string) { fmt.Fprintln(env.stderr, text) }
			rows, err := measure(ctx, only, progress)
			if err != nil {
				return err
			}
			if name := os.Getenv("BENCH_JSON"); name != "" {
				if err := bench.WriteJSON(name, rows); err != nil {
					return err
				}
			}
			return bench.WriteTable(env.stdout, rows)
		},
	}
	cmd.Flags().StringVar(&only, "only", "", "run one `experiment`: testrun, loop or server")
	return cmd
}

// measure runs one experiment, or all of them.
func measure(ctx context.Context, only string, progress func(string)) (rows []bench.Row, err error) {
	experiments := []struct {
		name string
		run  func() ([]bench.Row, error)
	}{
		{"testrun", func() ([]bench.Row, error) { return bench.TestRun(progress) }},
		{"loop", func() ([]bench.Row, error) { return bench.Loop(ctx, progress) }},
		{"server", func() ([]bench.Row, error) { return bench.Server(ctx, bench.FullEffort, progress) }},
	}
	for _, e := range experiments {
		if only != "" && only != e.name {
			continue
		}
		made, err := e.run()
		if err != nil {
			return nil, err
		}
		rows = append(rows, made...)
	}
	if len(rows) == 0 {
		return nil, &usageError{fmt.Errorf("no such experiment: %q; there are testrun, loop and server", only)}
	}
	return rows, nil
}
