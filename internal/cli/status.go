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
		Long: "Prints how many packets met each verdict since the agents were first attached, the modes of services\n" +
			"that are not always defended, and of ports with the kernel's own cookies. It needs no daemon.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if output != "text" && output != "json" {
				return usageErrorf("unknown output %q: text or json", output)
			}
			if err := needRoot(); err != nil {
				return err
			}
			s, err := readStatus(env, pins)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeStatusJSON(env, s)
			}
			return errors.Join(writeVerdicts(env, s.verdicts), writeModes(env, s.states), writePorts(env, s.ports), writePeers(env, s.peers))
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`format`: text or json")
	pinsFlag(cmd, &pins)
	return cmd
}

// status is all that there is to show.
type status struct {
	verdicts map[string]map[string]uint64 // by agent
	states   []dataplane.ServiceState
	ports    []dataplane.PortMode
	peers    map[string]map[uint32]control.Peer
}

func readStatus(env *environment, pins string) (s status, err error) {
	if s.verdicts, err = dataplane.AgentVerdicts(pins); err != nil {
		return s, err
	}
	s.states, err = dataplane.ReadStates(pins)
	if err = withoutModes(env, err); err != nil {
		return s, err
	}
	s.ports, err = dataplane.PortModes(pins)
	if err = withoutModes(env, err); err != nil {
		return s, err
	}
	s.peers, err = dataplane.ControlPeers(pins)
	return s, err
}

// withoutModes leaves it at the counts where an agent of another version has the
// rest in another form, or has none of it.
func withoutModes(env *environment, err error) error {
	if errors.Is(err, dataplane.ErrOtherVersion) {
		fmt.Fprintf(env.stderr, "smartcookie: only counts are shown: %s\n", err)
		return nil
	}
	if errors.Is(err, dataplane.ErrNoAgent) {
		return nil
	}
	return err
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

// writeStatusJSON adds services and ports to the agents, where there are any.
func writeStatusJSON(env *environment, s status) error {
	all := make(map[string]any, len(s.verdicts)+1)
	for agent, verdicts := range s.verdicts {
		all[agent] = verdicts
	}
	if len(s.states) > 0 {
		all["services"] = statesJSON(s.states)
	}
	if len(s.ports) > 0 {
		all["ports"] = s.ports
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
