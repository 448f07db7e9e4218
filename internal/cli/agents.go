package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"smartcookie/internal/config"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/edge"
	"smartcookie/internal/host"
	"smartcookie/internal/policy"
	"smartcookie/internal/server"
	"smartcookie/internal/upkeep"
)

func (env *environment) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(env.stderr, nil))
}

func pinsFlag(cmd *cobra.Command, pins *string) {
	cmd.Flags().StringVar(pins, "pin", dataplane.DefaultPins, "`directory` in the BPF file system that keeps the agent's state")
}

// needRoot says in one line what would otherwise fail in many ways.
func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root: it loads programs into the kernel")
	}
	return nil
}

func newEdgeCommand(env *environment) *cobra.Command {
	var file, pins string
	cmd := &cobra.Command{
		Use:   "edge -c FILE",
		Short: "Answer SYNs for the services behind this box",
		Long: "Runs the edge agent: it answers every SYN to a protected service with a cookie, keeps no state per flow\n" +
			"and lets only proven flows through. The protection outlives the daemon; `smartcookie detach` ends it.\n" +
			"SIGHUP has it read FILE again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needCapabilities(); err != nil {
				return err
			}
			if file == "" {
				return usageErrorf("%s: give -c FILE", cmd.CommandPath())
			}
			asked := askedToReload()
			defer signal.Stop(asked)
			c, err := config.ReadEdge(file)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
			defer stop()
			return edge.Run(ctx, c, edge.Options{
				Pins: pins, Log: env.logger(), Clocks: upkeep.SystemClocks,
				Asked: asked, Read: func() (*config.Edge, error) { return config.ReadEdge(file) },
			})
		},
	}
	configFlag(cmd, &file)
	pinsFlag(cmd, &pins)
	return cmd
}

// askedToReload takes SIGHUP, from the start on: it must not end a daemon that
// cannot heed it yet. However many come, what is asked for waits once.
func askedToReload() chan os.Signal {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGHUP)
	return asked
}

func configFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "configuration `file`")
}

func newServerCommand(env *environment) *cobra.Command {
	var file, pins string
	cmd := &cobra.Command{
		Use:   "server -c FILE",
		Short: "Make the connections of proven clients on this host",
		Long: "Runs the server agent: a proven client's first packet becomes a connection in this host's kernel.\n" +
			"The agent outlives the daemon; `smartcookie detach` ends it. SIGHUP has it read FILE again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needCapabilities(); err != nil {
				return err
			}
			if file == "" {
				return usageErrorf("%s: give -c FILE", cmd.CommandPath())
			}
			asked := askedToReload()
			defer signal.Stop(asked)
			c, err := config.ReadServer(file)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM)
			defer stop()
			return server.Run(ctx, c, server.Options{
				Pins: pins, Log: env.logger(), Clocks: upkeep.SystemClocks,
				Asked: asked, Read: func() (*config.Server, error) { return config.ReadServer(file) },
			})
		},
	}
	configFlag(cmd, &file)
	pinsFlag(cmd, &pins)
	return cmd
}

func newHostCommand(env *environment) *cobra.Command {
	var pins string
	var flags hostFlags
	var confirm time.Duration
	cmd := &cobra.Command{
		Use:   "host IFACE --ports 22,443",
		Short: "Protect this one server: both halves on one interface",
		Long: "Protects TCP ports of this host against SYN floods on one interface. Its key is random and known to this\n" +
			"kernel alone. Live connections go on. The protection outlives the daemon; `smartcookie detach` ends it.\n" +
			"With --cookies kernel, a port in flood mode answers with the kernel's own cookies, and nothing else is needed.",
		Example: "  smartcookie host eth0 --ports 22,443 --confirm 60s\n  smartcookie host eth0 --ports 443 --cookies kernel",
		Args:    exactArgs("IFACE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := flags.config(cmd, args[0])
			if err != nil {
				return err
			}
			if err := needCapabilities(); err != nil {
				return err
			}
			c.Confirm = confirm
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			return host.Run(ctx, c, host.Options{Pins: pins, Log: env.logger(), Input: env.stdin})
		},
	}
	flags.add(cmd)
	cmd.Flags().DurationVar(&confirm, "confirm", 0, "take everything off again unless Enter is pressed within this `time`")
	pinsFlag(cmd, &pins)
	return cmd
}

// hostFlags say what a host protects, and how.
type hostFlags struct {
	ports, setup, mode, detect, metrics string
	generic                             bool
	kernel                              kernelFlags
}

func (f *hostFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.ports, "ports", "", "`ports` and ranges to protect, such as 22,443,8000-8099")
	cmd.Flags().StringVar(&f.setup, "setup", "auto", "`how` connections are made: auto, native, translate")
	cmd.Flags().StringVar(&f.mode, "mode", "always", "`when` the ports are defended: off, monitor, auto, always; auto with --cookies kernel if not given")
	cmd.Flags().StringVar(&f.detect, "detect", "", "`limits` of --mode auto, such as syns=10000,unfinished=50,half_open=2048,calm=30s")
	f.kernel.add(cmd)
	cmd.Flags().StringVar(&f.metrics, "metrics", "", "answer Prometheus at this `address`, such as 127.0.0.1:9465")
	cmd.Flags().BoolVar(&f.generic, "generic", false, "use XDP in the kernel's stack, where the driver has none (much slower)")
}

// config is what the flags say of an interface.
func (f *hostFlags) config(cmd *cobra.Command, name string) (host.Config, error) {
	if f.ports == "" {
		return host.Config{}, usageErrorf("%s: give --ports, such as --ports 22,443", cmd.CommandPath())
	}
	c, err := hostConfig(name, f.ports)
	if err != nil {
		return c, err
	}
	var ok bool
	if c.Setup, ok = policy.ParseSetup(f.setup); !ok {
		return c, usageErrorf("--setup: %q is none of auto, native, translate", f.setup)
	}
	if c.Mode, ok = policy.ParseMode(f.mode); !ok {
		return c, usageErrorf("--mode: %q is none of off, monitor, auto, always", f.mode)
	}
	if c.Detect, err = config.ParseDetect(f.detect); err != nil {
		return c, usageErrorf("--detect: %w", err)
	}
	if f.metrics != "" {
		if c.Metrics, err = config.ParseMetrics(f.metrics); err != nil {
			return c, usageErrorf("--metrics: %w", err)
		}
	}
	c.Generic = f.generic
	err = f.kernel.apply(cmd, &c)
	return c, err
}

func hostConfig(name, ports string) (host.Config, error) {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return host.Config{}, usageErrorf("no interface %q on this host", name)
	}
	c := host.Config{Interface: *device, Detect: policy.DefaultDetect}
	for _, value := range strings.Split(ports, ",") {
		r, err := config.ParsePorts(value)
		if err != nil {
			return host.Config{}, usageErrorf("--ports: %w", err)
		}
		c.Ports = append(c.Ports, r)
	}
	everywhere := []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
	if _, err := policy.Compile([]policy.Service{{Prefixes: everywhere, Ports: c.Ports}}); err != nil {
		return host.Config{}, usageErrorf("--ports: a port is listed twice")
	}
	return c, nil
}

func newDetachCommand(env *environment) *cobra.Command {
	var pins string
	cmd := &cobra.Command{
		Use:   "detach",
		Short: "Take every agent off its interfaces and forget its state",
		Long:  "Ends the protection, whether a daemon runs or not. A running daemon notices and ends.",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := needRoot(); err != nil {
				return err
			}
			detached, err := dataplane.Detach(pins)
			for _, name := range detached {
				fmt.Fprintln(env.stdout, "detached", name)
			}
			if err == nil && len(detached) == 0 {
				fmt.Fprintf(env.stdout, "nothing is attached (looked at %s)\n", pins)
			}
			return err
		},
	}
	pinsFlag(cmd, &pins)
	return cmd
}
