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
			if output == "json" {
				return writeJSON(env.stdout, agents)
			}
			if err := writeVerdicts(env, agents); err != nil {
				return err
			}
			states, err := dataplane.ReadStates(pins)
			if err != nil && !errors.Is(err, dataplane.ErrNoAgent) { // of an older version
				return err
			}
			if err := writeModes(env, states); err != nil {
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
