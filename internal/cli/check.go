package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"smartcookie/internal/check"
	"smartcookie/internal/config"
)

const checkText = `Reads a configuration and looks whether this machine is fit for it: its kernel,
devices, settings, listeners, firewall, keys and clock, and the agent and its
peers if one is attached. It changes nothing, and runs without root as far as
it can. Each finding says why it matters and what mends it.

Exit codes: 0 all is well or worth a notice at most, 3 something could not be
looked at, 4 there are warnings, 5 there are errors; 1 and 2 as everywhere.`

func newCheckCommand(env *environment) *cobra.Command {
	group := newGroupCommand("check", "Look whether this machine is fit for a configuration",
		newCheckFileCommand(env, "edge", func(file, pins string) (*check.Facts, error) {
			c, err := config.ReadEdge(file)
			if err != nil {
				return nil, err
			}
			return check.OfEdge(c, pins), nil
		}),
		newCheckFileCommand(env, "server", func(file, pins string) (*check.Facts, error) {
			c, err := config.ReadServer(file)
			if err != nil {
				return nil, err
			}
			return check.OfServer(c, pins), nil
		}),
		newCheckHostCommand(env),
	)
	group.Long = checkText
	return group
}

// checkFlags are those of every shape.
type checkFlags struct {
	pins, output string
	all          bool
}

func (f *checkFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "`format`: text or json")
	cmd.Flags().BoolVar(&f.all, "all", false, "show what is in order too")
	pinsFlag(cmd, &f.pins)
}

// report looks, and shows what was found. Its error has the exit code.
func (f *checkFlags) report(env *environment, probe func() (*check.Facts, error)) error {
	if f.output != "text" && f.output != "json" {
		return usageErrorf("unknown output %q: text or json", f.output)
	}
	facts, err := probe()
	if err != nil {
		return err
	}
	report := check.Judge(facts)
	if f.output == "json" {
		err = writeJSON(env.stdout, report)
	} else {
		err = report.Write(env.stdout, f.all)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if report.Worst.ExitCode() != exitOK {
		return &checkError{report}
	}
	if f.output == "text" {
		fmt.Fprintln(env.stdout, report.Summary())
	}
	return nil
}

// checkError is a machine that is not quite fit.
type checkError struct {
	report check.Report
}

func (e *checkError) Error() string { return "check: " + e.report.Summary() }
func (e *checkError) ExitCode() int { return e.report.Worst.ExitCode() }

func newCheckFileCommand(env *environment, shape string, read func(file, pins string) (*check.Facts, error)) *cobra.Command {
	var file string
	var flags checkFlags
	cmd := &cobra.Command{
		Use:   shape + " -c FILE",
		Short: "The machine of smartcookie " + shape + " -c FILE",
		Long:  checkText,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageErrorf("%s: give -c FILE", cmd.CommandPath())
			}
			return flags.report(env, func() (*check.Facts, error) { return read(file, flags.pins) })
		},
	}
	configFlag(cmd, &file)
	flags.add(cmd)
	return cmd
}

func newCheckHostCommand(env *environment) *cobra.Command {
	var flags checkFlags
	var host hostFlags
	cmd := &cobra.Command{
		Use:     "host IFACE --ports 22,443",
		Short:   "The machine of smartcookie host IFACE, with the same flags",
		Long:    checkText,
		Example: "  smartcookie check host eth0 --ports 22,443",
		Args:    exactArgs("IFACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := host.config(cmd, args[0])
			if err != nil {
				return err
			}
			return flags.report(env, func() (*check.Facts, error) { return check.OfHost(c, flags.pins) })
		},
	}
	host.add(cmd)
	flags.add(cmd)
	return cmd
}
