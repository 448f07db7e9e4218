package config

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"smartcookie/internal/policy"
)

// Bounds of what an edge may be told about floods, and the networks that
// answers are counted for.
const (
	maxAnswers        = 100_000_000
	maxPacketsPerFlow = 1_000_000
	maxMinTTL         = 64
	maxBypassSYNs     = 100_000
	defaultNetwork4   = 24
	defaultNetwork6   = 64
)

// floodsFile is the part of an edge's file about floods of anything but SYNs.
type floodsFile struct {
	OtherTCP   string       `yaml:"other_tcp"`
	Answers    *int         `yaml:"answers_per_network"`
	Network4   *int         `yaml:"network4"`
	Network6   *int         `yaml:"network6"`
	Deny       []string     `yaml:"deny"`
	DenyFile   string       `yaml:"deny_file"`
	Allow      []string     `yaml:"allow"`
	AllowFile  string       `yaml:"allow_file"`
	InsideOnly []string     `yaml:"inside_only"`
	Bypass     []bypassFile `yaml:"bypass_without_protection"`
}

type bypassFile struct {
	Sources   []string `yaml:"sources"`
	Interface string   `yaml:"interface"`
	SYNs      *int     `yaml:"syns"`
}

func (c *Edge) readFloods(src *source, f *floodsFile) (err error) {
	switch f.OtherTCP {
	case "", "forward":
	case "drop":
		c.Floods.DropOther = true
	default:
		return src.fail("$.other_tcp", "unknown choice %q: forward or drop", f.OtherTCP)
	}
	if c.Floods.Answers, err = src.bounded("$.answers_per_network", f.Answers, 0, 0, maxAnswers); err != nil {
		return err
	}
	if c.Floods.Network4, err = src.bounded("$.network4", f.Network4, defaultNetwork4, 8, 32); err != nil {
		return err
	}
	if c.Floods.Network6, err = src.bounded("$.network6", f.Network6, defaultNetwork6, 16, 64); err != nil {
		return err
	}
	if c.Floods.Answers == 0 && f.Network4 != nil {
		return src.fail("$.network4", "network4 is of a limit: give answers_per_network")
	}
	if c.Floods.Answers == 0 && f.Network6 != nil {
		return src.fail("$.network6", "network6 is of a limit: give answers_per_network")
	}
	if c.Floods.Deny, err = src.list("deny", f.Deny, f.DenyFile); err != nil {
		return err
	}
	if c.Floods.Allow, err = src.list("allow", f.Allow, f.AllowFile); err != nil {
		return err
	}
	return c.readPlaces(src, f)
}

// list reads a list of prefixes, and those of the file beside it.
func (s *source) list(name string, values []string, file string) ([]netip.Prefix, error) {
	all, err := s.prefixes("$."+name, values)
	if err != nil {
		return nil, err
	}
	path := "$." + name
	if file != "" {
		path += "_file"
		more, err := readList(file)
		var own *Error
		if errors.As(err, &own) {
			return nil, err
		}
		if err != nil {
			return nil, s.fail(path, "%s", err)
		}
		all = append(all, more...)
	}
	var four int
	for _, p := range all {
		if p.Addr().Is4() {
			four++
		}
	}
	if n := max(four, len(all)-four); n > policy.MaxListed {
		return nil, s.fail(path, "%d prefixes of one family: at most %d", n, policy.MaxListed)
	}
	return all, nil
}

// readList reads a file with a prefix or an address on each line. What is
// behind a # does not count, and neither do empty lines.
func readList(name string) ([]netip.Prefix, error) {
	file, err := os.Open(name)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer file.Close()
	var all []netip.Prefix
	lines := bufio.NewScanner(file)
	for line := 1; lines.Scan(); line++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := ParsePrefix(text)
		if err != nil {
			return nil, &Error{File: name, Line: line, Message: err.Error()}
		}
		all = append(all, p)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return all, nil
}

// readPlaces reads by which ports sources come in. A prefix has one place.
func (c *Edge) readPlaces(src *source, f *floodsFile) (err error) {
	seen := make(map[netip.Prefix]bool)
	place := func(path string, values []string) ([]netip.Prefix, error) {
		all, err := src.prefixes(path, values)
		for i, p := range all {
			if seen[p] {
				return nil, src.fail(fmt.Sprintf("%s[%d]", path, i), "%s has a place already", p)
			}
			seen[p] = true
		}
		return all, err
	}
	if c.Floods.InsideOnly, err = place("$.inside_only", f.InsideOnly); err != nil {
		return err
	}
	if len(f.Bypass) > policy.MaxBypasses {
		return src.fail("$.bypass_without_protection", "%d entries: at most %d", len(f.Bypass), policy.MaxBypasses)
	}
	for i := range f.Bypass {
		path := fmt.Sprintf("$.bypass_without_protection[%d]", i)
		b, err := c.readBypass(src, path, &f.Bypass[i])
		if err != nil {
			return err
		}
		if b.Sources, err = place(path+".sources", f.Bypass[i].Sources); err != nil {
			return err
		}
		c.Floods.Bypass = append(c.Floods.Bypass, b)
	}
	if n := len(seen); n > policy.MaxPlaces {
		return src.fail("$", "%d prefixes in inside_only and bypass_without_protection: at most %d", n, policy.MaxPlaces)
	}
	return nil
}

func (c *Edge) readBypass(src *source, path string, f *bypassFile) (b policy.Bypass, err error) {
	if len(f.Sources) == 0 {
		return b, src.fail(path, "a bypass without sources")
	}
	if f.SYNs == nil {
		return b, src.fail(path, "a bypass without syns: how many a second may pass")
	}
	if b.SYNs, err = src.bounded(path+".syns", f.SYNs, 0, 1, maxBypassSYNs); err != nil {
		return b, err
	}
	at := slices.IndexFunc(c.Outside, func(i net.Interface) bool { return i.Name == f.Interface })
	if at < 0 {
		return b, src.fail(path+".interface", "interface %q is none of outside", f.Interface)
	}
	b.Interface, b.Port = f.Interface, c.Outside[at].Index
	return b, nil
}

// serviceFloods reads what a service asks of packets that are no SYN.
func (s *source) serviceFloods(path string, f *serviceFile, out *policy.Service) error {
	ttl, err := s.bounded(path+".min_ttl", f.MinTTL, 0, 0, maxMinTTL)
	if err != nil {
		return err
	}
	out.MinTTL = uint8(ttl)
	out.PacketsPerFlow, err = s.bounded(path+".packets_per_flow", f.PacketsPerFlow, 0, 0, maxPacketsPerFlow)
	return err
}
