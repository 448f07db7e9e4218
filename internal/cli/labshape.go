package cli

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
	"smartcookie/internal/policy"
)

// wireFlags are the faults of the lab's two wires, as flags.
type wireFlags struct {
	outside, inside badwire.Faults
}

const insidePrefix = "inside-"

// add declares --loss and so on for the client's link, --inside-loss and so on
// for the server's.
func (w *wireFlags) add(flags *pflag.FlagSet) {
	for _, end := range []struct {
		prefix, link string
		faults       *badwire.Faults
	}{{"", "the client's link", &w.outside}, {insidePrefix, "the link between edge and server", &w.inside}} {
		flags.Var((*percent)(&end.faults.Loss), end.prefix+"loss", "lose so much on "+end.link)
		flags.Var((*percent)(&end.faults.Duplicate), end.prefix+"duplicate", "deliver so much twice")
		flags.Var((*percent)(&end.faults.Reorder), end.prefix+"reorder", "hold so much back by 1 to 5 ms")
		flags.Var((*pause)(&end.faults.Delay), end.prefix+"delay", "delay in each direction")
		flags.Var((*pause)(&end.faults.Jitter), end.prefix+"jitter", "lengthen or shorten each delay by up to so much")
	}
	flags.Uint64Var(&w.outside.Seed, "seed", 1, "decides which frames the bad wires lose, double and hold back")
}

// put gives a lab the wires that the flags ask for.
func (w *wireFlags) put(options *lab.Options) error {
	w.inside.Seed = w.outside.Seed + 1
	for _, end := range []struct {
		prefix string
		faults *badwire.Faults
		at     **badwire.Faults
	}{{"--", &w.outside, &options.Wire}, {"--" + insidePrefix, &w.inside, &options.InsideWire}} {
		if err := end.faults.Check(); err != nil {
			return usageErrorf("%s%v", end.prefix, err)
		}
		if end.faults.Bad() {
			*end.at = end.faults
		}
	}
	return nil
}

// percent is a share, as "5", "0.1" or "5%".
type percent float64

func (p *percent) String() string { return strconv.FormatFloat(float64(*p), 'g', -1, 64) }
func (p *percent) Type() string   { return "PERCENT" }

func (p *percent) Set(text string) error {
	value, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil {
		return usageErrorf("want a share such as 5 or 0.1%%")
	}
	*p = percent(value)
	return nil
}

// pause is a time in milliseconds, or with a unit behind it.
type pause time.Duration

func (p *pause) String() string { return time.Duration(*p).String() }
func (p *pause) Type() string   { return "MS" }

func (p *pause) Set(text string) error {
	if value, err := strconv.ParseFloat(text, 64); err == nil {
		*p = pause(value * float64(time.Millisecond))
		return nil
	}
	value, err := time.ParseDuration(text)
	if err != nil {
		return usageErrorf("want milliseconds such as 20, or a time such as 1.5ms")
	}
	*p = pause(value)
	return nil
}

// shape are the flags that say what lab is built, the same for lab and lab up.
type shape struct {
	bridge     bool
	edges      int
	asymmetric bool
	server     string
	mode       string
	wires      wireFlags
}

func (s *shape) add(command *cobra.Command) {
	command.Flags().BoolVar(&s.bridge, "bridge", false, "let the edge be a bridge instead of a router")
	command.Flags().IntVar(&s.edges, "edges", 1, "1, or 2 that share the flows by a hash")
	command.Flags().BoolVar(&s.asymmetric, "asymmetric", false, "let what the server says pass the edges by")
	command.Flags().StringVar(&s.server, "server", "auto", "how the server makes connections: auto, native or translate")
	command.Flags().StringVar(&s.mode, "mode", "", "when the service is defended: off, monitor, auto or always; if not given always, and auto for host-kernel")
	s.wires.add(command.Flags())
}

func (s *shape) options() (lab.Options, error) {
	options := lab.Options{Topology: lab.Route, Edges: s.edges, Asymmetric: s.asymmetric, Setup: s.server, Mode: s.mode}
	if _, ok := policy.ParseMode(s.mode); !ok && s.mode != "" {
		return lab.Options{}, usageErrorf("--mode: %q is none of off, monitor, auto, always", s.mode)
	}
	if _, ok := policy.ParseSetup(s.server); !ok {
		return lab.Options{}, usageErrorf("--server: %q is none of auto, native, translate", s.server)
	}
	if s.bridge {
		options.Topology = lab.Bridge
	}
	if err := options.Check(); err != nil {
		return lab.Options{}, &usageError{err}
	}
	return options, s.wires.put(&options)
}

// stepFlags are what happens to two edges while a case runs.
type stepFlags struct {
	moveAfter, killAfter time.Duration
}

func (s *stepFlags) add(flags *pflag.FlagSet) {
	flags.DurationVar(&s.moveAfter, "move-after", 0, "with --edges 2: then move all flows to the second edge")
	flags.DurationVar(&s.killAfter, "kill-after", 0, "with --edges 2: then take the first edge off the net")
}

// steps puts them in order.
func (s *stepFlags) steps(edges int) ([]lab.Step, error) {
	var steps []lab.Step
	for _, flag := range []struct {
		name  string
		after time.Duration
		do    func(*lab.Lab) error
	}{
		{"--move-after", s.moveAfter, func(l *lab.Lab) error { return l.Move(1, 1) }},
		{"--kill-after", s.killAfter, func(l *lab.Lab) error { return l.Kill(0) }},
	} {
		switch {
		case flag.after == 0:
			continue
		case flag.after < 0:
			return nil, usageErrorf("%s: want a time above 0, such as 4s", flag.name)
		case edges < 2:
			return nil, usageErrorf("%s needs --edges 2", flag.name)
		}
		steps = append(steps, lab.Step{After: flag.after, Do: flag.do})
	}
	slices.SortStableFunc(steps, func(a, b lab.Step) int { return cmp.Compare(a.After, b.After) })
	return steps, nil
}
