package config

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"smartcookie/internal/control"
	"smartcookie/internal/policy"
)

// Edge is the configuration of an edge agent.
type Edge struct {
	Keys          string
	Outside       []net.Interface
	Inside        []net.Interface
	Forward       string // bridge, route
	Generic       bool
	Flows         int
	Generation    time.Duration
	Learn         time.Duration
	ReturnTraffic bool
	Proxied       int // connections that the edge itself can stand between
	Whitelist     int // addresses, for strategies that list them
	Services      []policy.Service
	Table         *policy.Table
	Control       *Control // nil: no control messages
	Floods        policy.Floods
	Metrics       netip.AddrPort // where Prometheus asks; the zero address: nowhere

	source *source
}

// Server is the configuration of a server agent.
type Server struct {
	Keys       string
	Interfaces []net.Interface
	Tenants    []net.Interface // that lead to servers in other namespaces or machines
	Strict     bool
	Allowed    []netip.Prefix
	Recent     int
	Translated int
	Services   []policy.Service
	Table      *policy.Table
	Control    *Control
	Metrics    netip.AddrPort

	source *source
}

// Defaults, and the bounds of what may be asked for.
const (
	DefaultFlows      = 1_000_000
	MaxFlows          = 100_000_000
	DefaultGeneration = time.Minute
	MinGeneration     = 5 * time.Second
	MaxGeneration     = time.Hour
	DefaultRecent     = 1 << 18
	MaxRecent         = 1 << 22
	DefaultTranslated = 1_000_000
	MaxTranslated     = 1 << 24
	DefaultWindow     = 65535
	DefaultMSS        = 1460
	ip6ExtraHeader    = 20 // bytes by which IPv6's header is the longer one
	minMSS4, minMSS6  = 536, 1220
	maxMSS            = 65495
)

type edgeFile struct {
	Keys          string        `yaml:"keys"`
	Outside       []string      `yaml:"outside"`
	Inside        []string      `yaml:"inside"`
	Forward       string        `yaml:"forward"`
	XDP           string        `yaml:"xdp"`
	Flows         *int          `yaml:"flows"`
	Generation    string        `yaml:"generation"`
	Learn         string        `yaml:"learn"`
	ReturnTraffic *bool         `yaml:"return_traffic"`
	Proxied       *int          `yaml:"proxied"`
	Whitelist     *int          `yaml:"whitelist"`
	Services      []serviceFile `yaml:"services"`

	Control *edgeControlFile `yaml:"control"`
	Metrics string           `yaml:"metrics"`

	Floods floodsFile `yaml:",inline"`
}

type serverFile struct {
	Keys       string        `yaml:"keys"`
	Interfaces []string      `yaml:"interfaces"`
	Tenants    []string      `yaml:"tenants"`
	Strict     bool          `yaml:"strict"`
	Allowed    []string      `yaml:"allowed"`
	Recent     *int          `yaml:"recent"`
	Translated *int          `yaml:"translated"`
	Services   []serviceFile `yaml:"services"`

	Control *serverControlFile `yaml:"control"`
	Metrics string             `yaml:"metrics"`
}

type serviceFile struct {
	Name     string   `yaml:"name"`
	Prefixes []string `yaml:"prefixes"`
	Ports    []string `yaml:"ports"`
	Mode     string   `yaml:"mode"`
	Setup    string   `yaml:"setup"`
	KeysEnd  string   `yaml:"keys_end"`
	Domain   string   `yaml:"domain"`
	MSS      *int     `yaml:"mss"`
	Window   *int     `yaml:"window"`
	Options  []string `yaml:"options"`
	Silent   string   `yaml:"silent"`
	Strategy string   `yaml:"strategy"`

	Detect *detectFile `yaml:"detect"`

	Admission string `yaml:"admission"`
	Probes    *int   `yaml:"probes"`

	AuthKeys `yaml:",inline"`

	MinTTL         *int `yaml:"min_ttl"`
	PacketsPerFlow *int `yaml:"packets_per_flow"`
}

// ReadEdge reads and checks an edge's file. Interfaces must exist.
func ReadEdge(name string) (*Edge, error) {
	var f edgeFile
	src, err := read(name, &f)
	if err != nil {
		return nil, err
	}
	c := &Edge{Keys: f.Keys, source: src, Flows: DefaultFlows, ReturnTraffic: f.ReturnTraffic == nil || *f.ReturnTraffic}
	checks := []func() error{
		func() error { return src.require("$.keys", f.Keys) },
		func() (err error) { c.Outside, err = src.interfaces("$.outside", f.Outside, true); return err },
		func() (err error) { c.Inside, err = src.interfaces("$.inside", f.Inside, true); return err },
		func() error { return c.readForward(src, &f) },
		func() error { return c.readFilter(src, &f) },
		func() error { return c.readWhitelist(src, &f) },
		func() (err error) { c.Services, c.Table, err = src.services(f.Services); return err },
		func() error { return c.readFloods(src, &f.Floods) },
		func() error { return c.readControl(src, f.Control) },
		func() error { return c.readProxy(src, &f) },
		func() error { return c.checkReturn(src) },
		func() error { return c.checkDetect(src, f.Services) },
		func() error { return c.checkRelays(src) },
		func() (err error) { c.Metrics, err = src.metrics(f.Metrics); return err },
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// ReadServer reads and checks a server's file. Interfaces must exist.
func ReadServer(name string) (*Server, error) {
	var f serverFile
	src, err := read(name, &f)
	if err != nil {
		return nil, err
	}
	c := &Server{Keys: f.Keys, source: src, Strict: f.Strict}
	checks := []func() error{
		func() error { return src.require("$.keys", f.Keys) },
		func() (err error) {
			c.Interfaces, err = src.interfaces("$.interfaces", f.Interfaces, len(f.Tenants) == 0)
			return err
		},
		func() (err error) { c.Tenants, err = src.interfaces("$.tenants", f.Tenants, false); return err },
		func() (err error) { c.Allowed, err = src.prefixes("$.allowed", f.Allowed); return err },
		func() (err error) {
			c.Recent, err = src.bounded("$.recent", f.Recent, DefaultRecent, 1024, MaxRecent)
			return err
		},
		func() (err error) {
			c.Translated, err = src.bounded("$.translated", f.Translated, DefaultTranslated, 1, MaxTranslated)
			return err
		},
		func() (err error) { c.Services, c.Table, err = src.services(f.Services); return err },
		func() error { return c.placeServices(src) },
		func() error { return c.readControl(src, f.Control) },
		func() (err error) { c.Metrics, err = src.metrics(f.Metrics); return err },
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// AtOutside places an error at an outside interface, by its index in the list.
func (c *Edge) AtOutside(i int, err error) error {
	return c.source.at(fmt.Sprintf("$.outside[%d]", i), err)
}

// AtInside does so for an inside interface.
func (c *Edge) AtInside(i int, err error) error {
	return c.source.at(fmt.Sprintf("$.inside[%d]", i), err)
}

// AtStrategy places an error at a service's strategy, by its index in the list.
func (c *Edge) AtStrategy(i int, err error) error {
	return c.source.at(fmt.Sprintf("$.services[%d].strategy", i), err)
}

// AtTenant places an error at a tenant's device, by its index in the list.
func (c *Server) AtTenant(i int, err error) error {
	return c.source.at(fmt.Sprintf("$.tenants[%d]", i), err)
}

// AtInterface places an error at an interface, by its index in the list.
func (c *Server) AtInterface(i int, err error) error {
	return c.source.at(fmt.Sprintf("$.interfaces[%d]", i), err)
}

// AtDomain places an error at the first service that needs a key domain.
func (c *Edge) AtDomain(domain string, err error) error {
	return c.source.atDomain(c.Services, domain, err)
}

// AtDomain places an error at the first service that needs a key domain.
func (c *Server) AtDomain(domain string, err error) error {
	return c.source.atDomain(c.Services, domain, err)
}

func (s *source) atDomain(services []policy.Service, domain string, err error) error {
	i := slices.IndexFunc(services, func(service policy.Service) bool { return service.Domain == domain })
	return s.at(fmt.Sprintf("$.services[%d].domain", i), err)
}

func (c *Edge) readForward(src *source, f *edgeFile) error {
	c.Forward = f.Forward
	switch f.Forward {
	case "bridge":
		if len(c.Outside) != 1 || len(c.Inside) != 1 {
			return src.fail("$.forward", "a bridge has one outside and one inside port")
		}
	case "route":
	case "":
		return src.fail("$", "forward is missing: bridge or route")
	default:
		return src.fail("$.forward", "unknown way of forwarding %q: bridge or route", f.Forward)
	}
	switch f.XDP {
	case "", "native":
	case "generic":
		c.Generic = true
	default:
		return src.fail("$.xdp", "unknown XDP mode %q: native or generic", f.XDP)
	}
	for i, in := range c.Inside {
		for _, out := range c.Outside {
			if in.Index == out.Index {
				return src.fail(fmt.Sprintf("$.inside[%d]", i), "interface %s is both inside and outside", in.Name)
			}
		}
	}
	return nil
}

func (c *Edge) readFilter(src *source, f *edgeFile) (err error) {
	if c.Flows, err = src.bounded("$.flows", f.Flows, DefaultFlows, 1000, MaxFlows); err != nil {
		return err
	}
	if c.Generation, err = src.duration("$.generation", f.Generation, DefaultGeneration, MinGeneration, MaxGeneration); err != nil {
		return err
	}
	c.Learn, err = src.duration("$.learn", f.Learn, 2*c.Generation, 0, 24*time.Hour)
	return err
}

// checkReturn refuses what would cut long-lived connections: without return
// traffic or announcements nothing keeps their flows in the filter.
func (c *Edge) checkReturn(src *source) error {
	if c.ReturnTraffic {
		return nil
	}
	for i, s := range c.Services {
		if s.Mode.Defends() && !c.Control.covered(&s) {
			return src.fail(fmt.Sprintf("$.services[%d].mode", i),
				"service %q: mode %s needs return traffic through this edge, or agents (control) that cover its prefixes, or connections are cut after %s", s.Name, s.Mode, 2*c.Generation)
		}
	}
	return nil
}

func (s *source) require(path, value string) error {
	if value == "" {
		return s.fail(path, "%s is missing", strings.TrimPrefix(path, "$."))
	}
	return nil
}

func (s *source) bounded(path string, value *int, otherwise, low, high int) (int, error) {
	if value == nil {
		return otherwise, nil
	}
	if *value < low || *value > high {
		return 0, s.fail(path, "%d is not between %d and %d", *value, low, high)
	}
	return *value, nil
}

func (s *source) duration(path, value string, otherwise, low, high time.Duration) (time.Duration, error) {
	if value == "" {
		return otherwise, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		return 0, s.fail(path, "%q is no duration, such as 60s", value)
	}
	if d < low || d > high {
		return 0, s.fail(path, "%s is not between %s and %s", d, low, high)
	}
	return d, nil
}

func (s *source) interfaces(path string, names []string, needed bool) ([]net.Interface, error) {
	if len(names) == 0 && needed {
		return nil, s.fail(path, "%s is missing: at least one interface", strings.TrimPrefix(path, "$."))
	}
	var all []net.Interface
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", path, i)
		found, err := net.InterfaceByName(name)
		if err != nil {
			return nil, s.fail(at, "no interface %q on this host", name)
		}
		for _, other := range all {
			if other.Index == found.Index {
				return nil, s.fail(at, "interface %s is listed twice", name)
			}
		}
		all = append(all, *found)
	}
	return all, nil
}

func (s *source) prefixes(path string, values []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for i, value := range values {
		p, err := ParsePrefix(value)
		if err != nil {
			return nil, s.fail(fmt.Sprintf("%s[%d]", path, i), "%s", err)
		}
		all = append(all, p)
	}
	return all, nil
}

// ParsePrefix reads a prefix or a single address. Bits beyond the prefix's
// length are an error: most likely the length is.
func ParsePrefix(value string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(value); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(value)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is no address or prefix, such as 203.0.113.0/24", value)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%s has bits beyond its length: did you mean %s?", p, p.Masked())
	}
	return p, nil
}

// ParsePorts reads "443" or "8000-8099".
func ParsePorts(value string) (policy.PortRange, error) {
	low, high, isRange := strings.Cut(strings.TrimSpace(value), "-")
	if !isRange {
		high = low
	}
	a, errA := strconv.ParseUint(low, 10, 16)
	b, errB := strconv.ParseUint(high, 10, 16)
	if errors.Join(errA, errB) != nil || a == 0 || a > b {
		return policy.PortRange{}, fmt.Errorf("%q is no port or range of ports, such as 443 or 8000-8099", value)
	}
	return policy.PortRange{Low: uint16(a), High: uint16(b)}, nil
}

func (s *source) services(files []serviceFile) ([]policy.Service, *policy.Table, error) {
	if len(files) == 0 {
		return nil, nil, s.fail("$.services", "services is missing: there is nothing to protect")
	}
	if len(files) > policy.MaxServices {
		return nil, nil, s.fail("$.services", "%d services: at most %d", len(files), policy.MaxServices)
	}
	services := make([]policy.Service, len(files))
	names := make(map[string]bool)
	for i := range files {
		path := fmt.Sprintf("$.services[%d]", i)
		if err := s.service(path, &files[i], &services[i]); err != nil {
			return nil, nil, err
		}
		if names[services[i].Name] {
			return nil, nil, s.fail(path+".name", "a second service %q", services[i].Name)
		}
		names[services[i].Name] = true
	}
	table, err := policy.Compile(services)
	var overlap *policy.OverlapError
	if errors.As(err, &overlap) {
		return nil, nil, s.fail(fmt.Sprintf("$.services[%d].prefixes", overlap.Second), "%s", err)
	}
	if err != nil {
		return nil, nil, s.fail("$.services", "%s", err)
	}
	return services, table, nil
}

func (s *source) service(path string, f *serviceFile, out *policy.Service) (err error) {
	if err := s.require(path+".name", f.Name); err != nil {
		return s.fail(path, "a service without a name")
	}
	if len(f.Name) > policy.MaxName {
		return s.fail(path+".name", "a name of %d bytes: at most %d", len(f.Name), policy.MaxName)
	}
	out.Name, out.Domain = f.Name, f.Domain
	if out.Domain == "" {
		out.Domain = "default"
	}
	if out.Prefixes, err = s.prefixes(path+".prefixes", f.Prefixes); err != nil {
		return err
	}
	if len(out.Prefixes) == 0 {
		return s.fail(path+".prefixes", "service %q has no prefixes", f.Name)
	}
	for i, value := range f.Ports {
		ports, err := ParsePorts(value)
		if err != nil {
			return s.fail(fmt.Sprintf("%s.ports[%d]", path, i), "%s", err)
		}
		out.Ports = append(out.Ports, ports)
	}
	if len(out.Ports) == 0 {
		return s.fail(path+".ports", "service %q has no ports", f.Name)
	}
	if err := s.servicePolicy(path, f, out); err != nil {
		return err
	}
	if err := s.serviceAuth(path, f, out); err != nil {
		return err
	}
	if err := s.serviceFloods(path, f, out); err != nil {
		return err
	}
	return s.serviceAnswer(path, f, out)
}

func (s *source) servicePolicy(path string, f *serviceFile, out *policy.Service) error {
	if err := s.serviceMode(path, f, out); err != nil {
		return err
	}
	if f.Setup != "" {
		setup, ok := policy.ParseSetup(f.Setup)
		if !ok {
			return s.fail(path+".setup", "unknown way of setting up %q: auto, native or translate", f.Setup)
		}
		out.Setup = setup
	}
	switch f.KeysEnd {
	case "", "stop":
		out.KeysEnd = policy.Stop
	case "pass":
		out.KeysEnd = policy.Pass
	default:
		return s.fail(path+".keys_end", "unknown choice %q: stop or pass", f.KeysEnd)
	}
	silent, ok := silentNames[f.Silent]
	if !ok {
		return s.fail(path+".silent", "unknown choice %q: keep, pass or stop", f.Silent)
	}
	out.Silent = silent
	if out.Strategy, ok = policy.ParseStrategy(cmp.Or(f.Strategy, "split")); !ok {
		return s.fail(path+".strategy", "unknown strategy %q: %s", f.Strategy, strings.Join(policy.StrategyNames(), ", "))
	}
	return s.serviceAdmission(path, f, out)
}

// serviceAnswer reads what stands in the SYN-ACK.
func (s *source) serviceAnswer(path string, f *serviceFile, out *policy.Service) error {
	window, err := s.bounded(path+".window", f.Window, DefaultWindow, 1, 65535)
	if err != nil {
		return err
	}
	mss, err := s.bounded(path+".mss", f.MSS, DefaultMSS, minMSS4, maxMSS)
	if err != nil {
		return err
	}
	out.Window, out.MSS4, out.MSS6 = uint16(window), uint16(mss), uint16(max(mss-ip6ExtraHeader, minMSS6))
	if out.Admission == policy.OnConfirm { // whatever a client sends first must fit a message
		out.MSS4, out.MSS6 = min(out.MSS4, control.MSS4), min(out.MSS6, control.MSS6)
	}
	out.Options = policy.AllOptions
	if f.Options == nil {
		return nil
	}
	out.Options = 0
	for i, name := range f.Options {
		bit, ok := optionNames[name]
		if !ok {
			return s.fail(fmt.Sprintf("%s.options[%d]", path, i), "unknown option %q: timestamps, sack, window-scale or ecn", name)
		}
		out.Options |= bit
	}
	if bits.OnesCount8(uint8(out.Options)) != len(f.Options) {
		return s.fail(path+".options", "an option is listed twice")
	}
	return nil
}

var optionNames = map[string]policy.Options{
	"timestamps": policy.Timestamps, "sack": policy.SACK,
	"window-scale": policy.WindowScale, "ecn": policy.ECN,
}
