package cli

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

const modeText = `Alone it lists the services of the agents on this host, with what their detectors
see. With a service and a mode it changes what becomes of the service's packets,
at once and without cutting anybody off:

  off      everything passes
  monitor  decides and counts what it would do; everything passes
  auto     everything passes until there is a flood
  always   the service is defended

It needs no daemon. The mode outlives the daemon, until the configuration names
another one than it did.`

func newModeCommand(env *environment) *cobra.Command {
	var pins, output string
	cmd := &cobra.Command{
		Use:     "mode [SERVICE off|monitor|auto|always]",
		Short:   "Show or change what is done for a service",
		Long:    modeText,
		Example: "  smartcookie mode\n  smartcookie mode web monitor",
		Args:    modeArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return usageErrorf("unknown output %q: text or json", output)
			}
			if len(args) == 2 {
				return setMode(env, pins, output, args[0], args[1])
			}
			if err := needRoot(); err != nil {
				return err
			}
			states, err := dataplane.ReadStates(pins)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(env.stdout, statesJSON(states))
			}
			return writeStates(env, states)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`format`: text or json")
	pinsFlag(cmd, &pins)
	return cmd
}

func modeArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return exactArgs("SERVICE", "off, monitor, auto or always")(c, args)
}

func setMode(env *environment, pins, output, service, name string) error {
	mode, ok := policy.ParseMode(name)
	if !ok {
		return usageErrorf("unknown mode %q: off, monitor, auto or always", name)
	}
	if err := needRoot(); err != nil {
		return err
	}
	before, err := dataplane.SetMode(pins, service, mode)
	if errors.Is(err, dataplane.ErrNoService) {
		return &usageError{err}
	}
	return errors.Join(err, writeChanges(env, before, mode, output))
}

// changeJSON is what scripts read of a change.
type changeJSON struct {
	Agent   string `json:"agent"`
	Service string `json:"service"`
	Mode    string `json:"mode"`
	Was     string `json:"was"`
}

func writeChanges(env *environment, before []dataplane.ServiceState, mode policy.Mode, output string) error {
	all := make([]changeJSON, len(before))
	for i := range before {
		s := &before[i]
		all[i] = changeJSON{s.Agent, s.Name, mode.String(), s.Mode.String()}
		if output == "text" {
			fmt.Fprintf(env.stdout, "%s: %s is %s, was %s\n", s.Agent, s.Name, mode, s.Mode)
		}
	}
	if output == "text" || len(all) == 0 {
		return nil
	}
	return writeJSON(env.stdout, all)
}

func writeStates(env *environment, states []dataplane.ServiceState) error {
	table := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "agent\tservice\tmode\tstate\tSYN/s\tunfinished\thalf-open\tT2\tfloods")
	for i := range states {
		s := &states[i]
		fmt.Fprintf(table, "%s\t%s\t%s", s.Agent, s.Name, s.Mode)
		if s.Agent == dataplane.EdgeAgent && (s.Mode == policy.Adaptive || s.Mode == policy.Monitor) {
			fmt.Fprintf(table, "\t%s\t%d\t%d %%\t%d\t%s\t%d", s.State(), s.Figures.SYNs, s.Figures.Unfinished, s.Figures.HalfOpen, s.Calm, s.TimesOn)
		}
		if s.Mode != s.Configured && s.Mode != policy.Starting {
			fmt.Fprintf(table, "\t(configured: %s)", s.Configured)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// stateJSON is what scripts read of a service.
type stateJSON struct {
	Agent      string            `json:"agent"`
	Service    string            `json:"service"`
	Mode       string            `json:"mode"`
	Configured string            `json:"configured"`
	State      string            `json:"state,omitempty"`
	Figures    dataplane.Figures `json:"figures"`
	Calm       float64           `json:"calm_seconds"`
	Floods     uint32            `json:"floods"`
	Ended      uint32            `json:"floods_ended"`
	On         dataplane.Figures `json:"began_at"`
	Off        dataplane.Figures `json:"ended_at"`
}

func statesJSON(states []dataplane.ServiceState) []stateJSON {
	all := make([]stateJSON, len(states))
	for i := range states {
		s := &states[i]
		all[i] = stateJSON{
			Agent: s.Agent, Service: s.Name, Mode: s.Mode.String(), Configured: s.Configured.String(), State: s.State(),
			Figures: s.Figures, Calm: s.Calm.Seconds(), Floods: s.TimesOn, Ended: s.TimesOff, On: s.On, Off: s.Off,
		}
	}
	return all
}

// writeModes says in `status` which verdicts are foretold, and what is passive.
func writeModes(env *environment, states []dataplane.ServiceState) error {
	var lines strings.Builder
	for i := range states {
		s := &states[i]
		switch {
		case s.Agent == dataplane.HostAgent: // its ports say it
		case s.Mode == policy.Monitor:
			fmt.Fprintf(&lines, "%s %s\tmonitor: its verdicts are foretold, everything passes\n", s.Agent, s.Name)
		case s.State() != "":
			fmt.Fprintf(&lines, "%s %s\tauto, %s: %d floods, %d ended\n", s.Agent, s.Name, s.State(), s.TimesOn, s.TimesOff)
		case s.Mode != policy.Always:
			fmt.Fprintf(&lines, "%s %s\t%s\n", s.Agent, s.Name, s.Mode)
		}
	}
	if lines.Len() == 0 {
		return nil
	}
	table := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\n%s", lines.String())
	return table.Flush()
}
