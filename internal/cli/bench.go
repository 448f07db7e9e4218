package cli

import (
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
			"a floor and the kernel's own cookie helper, and a flood on one core against the kernel's cookies.\n" +
			"BENCH_JSON=FILE also writes the rows as JSON.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
			defer stop()
			progress := func(text string) { fmt.Fprintln(env.stderr, text) }
			var rows []bench.Row
			if only != "loop" {
				made, err := bench.TestRun(progress)
				if err != nil {
					return err
				}
				rows = append(rows, made...)
			}
			if only != "testrun" {
				made, err := bench.Loop(ctx, progress)
				if err != nil {
					return err
				}
				rows = append(rows, made...)
			}
			if name := os.Getenv("BENCH_JSON"); name != "" {
				if err := bench.WriteJSON(name, rows); err != nil {
					return err
				}
			}
			return bench.WriteTable(env.stdout, rows)
		},
	}
	cmd.Flags().StringVar(&only, "only", "", "run one `experiment`: testrun or loop")
	return cmd
}
