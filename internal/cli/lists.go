package cli

import (
	"fmt"
	"net/netip"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"smartcookie/internal/config"
	"smartcookie/internal/dataplane"
)

func newDenyCommand(env *environment) *cobra.Command {
	return newListCommand(env, dataplane.Deny, "Drop everything that some sources send",
		"the edge drops every IP packet of these sources, those of proven flows too")
}

func newAllowCommand(env *environment) *cobra.Command {
	return newListCommand(env, dataplane.Allow, "Exempt some sources from the deny list and from limits",
		"neither the deny list nor a limit of the edge holds for these sources; they are proven like any other")
}

func newListCommand(env *environment, list dataplane.List, short, meaning string) *cobra.Command {
	return newGroupCommand(string(list), short,
		newListAddCommand(list, meaning), newListDelCommand(list), newListListCommand(env, list))
}

// prefixArgs are the prefixes or addresses of a command line.
func prefixArgs(c *cobra.Command, args []string) ([]netip.Prefix, error) {
	if len(args) == 0 {
		return nil, usageErrorf("%s: give PREFIX", c.CommandPath())
	}
	var all []netip.Prefix
	for _, text := range args {
		p, err := config.ParsePrefix(text)
		if err != nil {
			return nil, &usageError{err}
		}
		all = append(all, p)
	}
	return all, nil
}

// onLists does something to the lists of the agent that is pinned there.
func onLists(pins string, do func(*dataplane.Lists) error) error {
	if err := needRoot(); err != nil {
		return err
	}
	lists, err := dataplane.OpenLists(pins)
	if err != nil {
		return err
	}
	defer lists.Close()
	return do(lists)
}

func newListAddCommand(list dataplane.List, meaning string) *cobra.Command {
	var pins string
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "add PREFIX…",
		Short: "Put sources on the list",
		Long: fmt.Sprintf("From now on %s.\nIt needs no daemon. Without --for it holds until `smartcookie %s del`; what is there already gets the new time.",
			meaning, list),
		Example: fmt.Sprintf("  smartcookie %s add 198.51.100.7 2001:db8::/48 --for 10m", list),
		RunE: func(c *cobra.Command, args []string) error {
			prefixes, err := prefixArgs(c, args)
			if err != nil {
				return err
			}
			if lasts < 0 || c.Flags().Changed("for") && lasts == 0 {
				return usageErrorf("--for: %s is no time to come", lasts)
			}
			return onLists(pins, func(l *dataplane.Lists) error { return l.Add(list, prefixes, lasts) })
		},
	}
	cmd.Flags().DurationVar(&lasts, "for", 0, "take it off again after this `time`")
	pinsFlag(cmd, &pins)
	return cmd
}

func newListDelCommand(list dataplane.List) *cobra.Command {
	var pins string
	cmd := &cobra.Command{
		Use:   "del PREFIX…",
		Short: "Take sources off the list",
		Long:  "Takes prefixes off, as they were put there. What the configuration says is there again when the daemon starts anew.",
		RunE: func(c *cobra.Command, args []string) error {
			prefixes, err := prefixArgs(c, args)
			if err != nil {
				return err
			}
			return onLists(pins, func(l *dataplane.Lists) error {
				for _, p := range prefixes {
					was, err := l.Remove(list, p)
					if err != nil {
						return err
					}
					if !was {
						return fmt.Errorf("%s is not on the list %s", p, list)
					}
				}
				return nil
			})
		},
	}
	pinsFlag(cmd, &pins)
	return cmd
}

// listedJSON is a prefix as scripts read it.
type listedJSON struct {
	Prefix  netip.Prefix `json:"prefix"`
	Seconds int64        `json:"seconds_left,omitempty"` // none: for good
	From    string       `json:"from"`
}

func fromOf(e dataplane.Listed) string {
	if e.Configured {
		return "configuration"
	}
	return "command"
}

func newListListCommand(env *environment, list dataplane.List) *cobra.Command {
	var pins, output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show what is on the list",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if output != "text" && output != "json" {
				return usageErrorf("unknown output %q: text or json", output)
			}
			var all []dataplane.Listed // who reads it may be slow, and others wait for the lists
			if err := onLists(pins, func(l *dataplane.Lists) error {
				return l.All(list, func(e dataplane.Listed) { all = append(all, e) })
			}); err != nil {
				return err
			}
			return writeList(env, all, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`format`: text or json")
	pinsFlag(cmd, &pins)
	return cmd
}

func writeList(env *environment, listed []dataplane.Listed, output string) error {
	if output == "json" {
		all := make([]listedJSON, len(listed))
		for i, e := range listed {
			all[i] = listedJSON{e.Prefix, int64(e.Left.Round(time.Second).Seconds()), fromOf(e)}
		}
		return writeJSON(env.stdout, all)
	}
	table := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "prefix\texpires in\tfrom")
	for _, e := range listed {
		left := "never"
		if e.Left > 0 {
			left = e.Left.Round(time.Second).String()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", e.Prefix, left, fromOf(e))
	}
	return table.Flush()
}
