package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
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
	bridge bool
	wires  wireFlags
}

func (s *shape) add(command *cobra.Command) {
	command.Flags().BoolVar(&s.bridge, "bridge", false, "let the edge be a bridge instead of a router")
	s.wires.add(command.Flags())
}

func (s *shape) options() (lab.Options, error) {
	options := lab.Options{Topology: lab.Route}
	if s.bridge {
		options.Topology = lab.Bridge
	}
	return options, s.wires.put(&options)
}
