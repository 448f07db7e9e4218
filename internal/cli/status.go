package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"smartcookie/internal/control"
	"smartcookie/internal/dataplane"
)

func newStatusCommand(env *environment) *cobra.Command {
	var pins, output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the agents on this host have decided",
		Long:  "Prints how many packets met each verdict since the agents were first attached. It needs no daemon.",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if output != "text" && output != "json" {
				return usageErrorf("unknown output %q: text or json", output)
			}
			if err := needRoot(); err != nil {
				return err
			}
			agents, err := dataplane.AgentVerdicts(pins)
			if err != nil {
				return err
			}
			ports, err := dataplane.PortModes(pins)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeStatusJSON(env, agents, ports)
			}
			if err := writeVerdicts(env, agents); err != nil {
				return err
			}
			states, err := dataplane.ReadStates(pins)
			if err != nil && !errors.Is(err, dataplane.ErrNoAgent) { // of an older version
				return err
			}
			if err := errors.Join(writeModes(env, states), writePorts(env, ports)); err != nil {
				return err
			}
			peers, err := dataplane.ControlPeers(pins)
			if err != nil {
				return err
			}
			return writePeers(env, peers)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`format`: text or json")
	pinsFlag(cmd, &pins)
	return cmd
}

func writeVerdicts(env *environment, agents map[string]map[string]uint64) error {
	table := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "agent\tpackets\t  verdict")
	for _, agent := range slices.Sorted(maps.Keys(agents)) {
		for _, name := range slices.Sorted(maps.Keys(agents[agent])) {
			fmt.Fprintf(table, "%s\t%d\t  %s\n", agent, agents[agent][name], name)
		}
	}
	return table.Flush()
}

// writeStatusJSON adds the ports to the agents, where there are any.
func writeStatusJSON(env *environment, agents map[string]map[string]uint64, ports []dataplane.PortMode) error {
	all := make(map[string]any, len(agents)+1)
	for agent, verdicts := range agents {
		all[agent] = verdicts
	}
	if len(ports) > 0 {
		all["ports"] = ports
	}
	return writeJSON(env.stdout, all)
}

// writePorts shows the ports of a host with the kernel's own cookies.
func writePorts(env *environment, ports []dataplane.PortMode) error {
	if len(ports) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\nport\tmode\tSYNs\tanswered\tchanges of mode\t")
	for _, p := range ports {
		mode := p.Mode
		if p.Monitor {
			mode += " (monitor)"
		}
		fmt.Fprintf(table, "%d\t%s\t%d\t%d\t%d\t\n", p.Port, mode, p.SYNs, p.Answered, p.Changes)
	}
	return table.Flush()
}

// writePeers shows the other halves that a daemon knows.
func writePeers(env *environment, all map[string]map[uint32]control.Peer) error {
	if len(all[dataplane.EdgeAgent])+len(all[dataplane.ServerAgent]) == 0 {
		return nil
	}
	table := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	for _, agent := range slices.Sorted(maps.Keys(all)) {
		for _, id := range slices.Sorted(maps.Keys(all[agent])) {
			p := all[agent][id]
			if agent == dataplane.EdgeAgent {
				fmt.Fprintf(table, "\nagent %d\t%s\t%s", id, p.Phase, disagreement(p))
			} else {
				fmt.Fprintf(table, "\nedge %d\theard\t%s", id, disagreement(p))
			}
		}
	}
	fmt.Fprintln(table)
	return table.Flush()
}

func disagreement(p control.Peer) string {
	if p.Disagreements == 0 {
		return "agrees"
	}
	return "disagrees on " + strings.Join(p.Disagreements.Names(), ", ")
}
