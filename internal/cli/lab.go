package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
)

const labText = `Build a small network out of namespaces on this machine (client, attacker, edge
and server), flood it and show what a defence saves.

Alone it tells a story of half a minute. With a flag it runs one case. Nothing
leaves the machine, and nothing is left behind.`

// labOptions are the flags of the lab command.
type labOptions struct {
	defence  defenceName
	flood    lab.Rate
	kind     floodKind
	duration time.Duration
	ipv6     bool
	json     bool
	linux    bool
	shape    shape
	steps    stepFlags
}

func newLabCommand(env *environment) *cobra.Command {
	options := labOptions{defence: "split", flood: lab.MaxRate, duration: 8 * time.Second}
	command := &cobra.Command{
		Use:   "lab",
		Short: "Show a SYN flood and its defence on this machine",
		Long:  labText,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runLab(cmd, env, options)
		},
	}
	flags := command.Flags()
	flags.Var(&options.defence, "defence", defenceHelp())
	flags.Var(&options.flood, "flood", "packets per second, 0 or max")
	flags.Var(&options.kind, "flood-kind", lab.KindNames())
	flags.DurationVar(&options.duration, "duration", options.duration, "how long the benign load runs")
	flags.BoolVar(&options.ipv6, "ipv6", false, "use IPv6")
	flags.BoolVar(&options.json, "json", false, "end with one JSON object on standard output")
	options.shape.add(command)
	options.steps.add(flags)
	flags.BoolVar(&options.linux, "options", false, "give the flood's SYNs the options of a Linux client")
	command.AddCommand(newLabUpCommand(env), newLabExecCommand(), newLabFloodCommand(env), newLabDownCommand(), newLabChildCommand(env))
	return command
}

// defenceName is a flag value: the name of a defence.
type defenceName string

func (d *defenceName) String() string { return string(*d) }
func (d *defenceName) Type() string   { return "NAME" }

func (d *defenceName) Set(name string) error {
	if err := lab.KnowsDefence(name); err != nil {
		return err
	}
	*d = defenceName(name)
	return nil
}

// floodKind is a flag value: what a flood consists of.
type floodKind lab.Kind

func (k *floodKind) String() string { return lab.Kind(*k).String() }
func (k *floodKind) Type() string   { return "KIND" }

func (k *floodKind) Set(name string) error {
	kind, err := lab.ParseKind(name)
	*k = floodKind(kind)
	return err
}

// untilSignal ends with the command's context or a request to end.
func untilSignal(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
}

func runLab(cmd *cobra.Command, env *environment, options labOptions) (err error) {
	if options.duration <= 0 {
		return usageErrorf("--duration: want a time above 0, such as 8s")
	}
	build, err := options.shape.options()
	if err != nil {
		return err
	}
	steps, err := options.steps.steps(build.Edges)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(cmd)
	defer stop()
	if err := lab.Sweep(); err != nil {
		return err
	}
	made, err := lab.New(build)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, made.Close()) }()
	if !options.oneCase(cmd) {
		return made.Tell(ctx, env.stdout, isTerminal(env.stdout), options.ipv6)
	}
	return options.runCase(ctx, made, env, steps)
}

// oneCase tells whether any flag asks for a case rather than the story.
func (o labOptions) oneCase(cmd *cobra.Command) bool {
	flags := cmd.Flags()
	return o.json || flags.Changed("defence") || flags.Changed("flood") || flags.Changed("flood-kind") || flags.Changed("duration") ||
		flags.Changed("move-after") || flags.Changed("kill-after") || flags.Changed("mode")
}

func (o labOptions) runCase(ctx context.Context, made *lab.Lab, env *environment, steps []lab.Step) error {
	live := env.stdout
	if o.json {
		live = env.stderr
	}
	screen := lab.NewScreen(live, isTerminal(live))
	run := lab.Case{
		Defence:  string(o.defence),
		Flood:    o.flood,
		Kind:     lab.Kind(o.kind),
		Duration: o.duration,
		IPv6:     o.ipv6,
		Steps:    steps,
		Progress: screen.Show,
	}
	if o.linux {
		run.Profile = lab.Linux
	}
	report, err := made.Run(ctx, run)
	if err := errors.Join(screen.Finish(), err); err != nil {
		return err
	}
	if o.json {
		return json.NewEncoder(env.stdout).Encode(report)
	}
	return lab.WriteTable(env.stdout, []lab.Report{report})
}

// isTerminal tells whether live figures can be overwritten.
func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

const labStands = `The lab stands: client, attacker, edge and server; defence: %s.

  smartcookie lab exec client -- curl %s
  smartcookie lab flood --rate 200k --duration 10s
  smartcookie lab exec server -- ss -tn
  smartcookie lab down

Configuration and logs are in %s.
`

func newLabUpCommand(env *environment) *cobra.Command {
	defence, shape := defenceName("none"), shape{}
	command := &cobra.Command{
		Use:   "up",
		Short: "Leave a lab standing to play with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := shape.options()
			if err != nil {
				return err
			}
			options.Standing = true
			return labUp(cmd, env, options, string(defence))
		},
	}
	command.Flags().Var(&defence, "defence", defenceHelp())
	shape.add(command)
	return command
}

func labUp(cmd *cobra.Command, env *environment, options lab.Options, defence string) (err error) {
	ctx, stop := untilSignal(cmd)
	defer stop()
	if err := lab.Sweep(); err != nil {
		return err
	}
	made, err := lab.New(options)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lab.Down())
		}
	}()
	if _, err := made.StartServer(ctx); err != nil {
		return err
	}
	if _, err := made.Defend(ctx, defence); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.stdout, labStands, defence, made.URL(false), made.Dir())
	return err
}

func newLabExecCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "exec client|attacker|edge|server -- COMMAND...",
		Short: "Run a command in the standing lab",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(execArgs(args)) == 0 {
				return fmt.Errorf("%s: give client, attacker, edge or server, and a command", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			made, err := lab.Open()
			if err != nil {
				return err
			}
			namespace, err := made.Namespace(args[0])
			if err != nil {
				return &usageError{err}
			}
			return namespace.Exec(execArgs(args))
		},
	}
	// What follows the role belongs to the command, its flags too.
	command.Flags().SetInterspersed(false)
	return command
}

// execArgs returns the command that follows the role, and perhaps "--".
func execArgs(args []string) []string {
	if len(args) > 1 && args[1] == "--" {
		return args[2:]
	}
	return args[min(1, len(args)):]
}

func newLabFloodCommand(env *environment) *cobra.Command {
	rate, duration, ipv6, kind := lab.Rate(200_000), 10*time.Second, false, floodKind(lab.SYN)
	command := &cobra.Command{
		Use:   "flood",
		Short: "Flood the server of the standing lab",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return labFlood(cmd, env, lab.FloodOptions{Kind: lab.Kind(kind), Rate: rate, Limit: duration, IPv6: ipv6})
		},
	}
	command.Flags().Var(&kind, "kind", lab.KindNames())
	command.Flags().Var(&rate, "rate", "packets per second, or max")
	command.Flags().DurationVar(&duration, "duration", duration, "how long")
	command.Flags().BoolVar(&ipv6, "ipv6", false, "use IPv6")
	return command
}

func labFlood(cmd *cobra.Command, env *environment, options lab.FloodOptions) (err error) {
	ctx, stop := untilSignal(cmd)
	defer stop()
	made, err := lab.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, made.Close()) }()
	screen := lab.NewScreen(env.stdout, isTerminal(env.stdout))
	return errors.Join(made.FloodUntilDone(ctx, options, screen.ShowFlood), screen.Finish())
}

func newLabDownCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the standing lab",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return lab.Down() },
	}
}

// newLabChildCommand is how the lab starts its HTTP server and its load.
func newLabChildCommand(env *environment) *cobra.Command {
	return &cobra.Command{
		Use:    "child KIND",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			return lab.RunChild(ctx, args, env.stdout, env.stderr)
		},
	}
}

// defenceHelp names what there is to choose from.
func defenceHelp() string { return "one of " + strings.Join(lab.Defences(), ", ") }
