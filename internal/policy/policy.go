// Package policy says what is protected and how: services, and the tables into
// which they are compiled for the data plane.
package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Limits of the data plane's tables (contract.h).
const (
	MaxServices   = 1024
	MaxPrefixes   = 65536
	MaxPortRanges = 65536
)

// Mode says what an agent does for a service.
type Mode uint8

// The modes, as in contract.h.
const (
	Off      Mode = 0
	Always   Mode = 1
	Monitor  Mode = 2 // decides and counts; everything passes
	Adaptive Mode = 3 // everything passes until the detector sees a flood: `auto`
	Starting Mode = 4 // always, and unknown packets still pass for some seconds
)

var modeNames = []string{Off: "off", Always: "always", Monitor: "monitor", Adaptive: "auto", Starting: "starting"}

func (m Mode) String() string {
	if int(m) >= len(modeNames) {
		return fmt.Sprintf("mode %d", uint8(m))
	}
	return modeNames[m]
}

// ModeNames lists the modes, in the order of their numbers.
func ModeNames() []string { return slices.Clone(modeNames) }

// ParseMode is the mode of a name, false if there is none to choose.
func ParseMode(name string) (Mode, bool) {
	i := slices.Index(modeNames[:Starting], name)
	return Mode(max(i, 0)), i >= 0
}

// Defends says whether packets can be lost or answered in this mode.
func (m Mode) Defends() bool { return m != Off && m != Monitor }

// KeysEnd says what becomes of new connections when the keys have run out.
type KeysEnd uint8

// The choices, as in contract.h.
const (
	Stop KeysEnd = 0
	Pass KeysEnd = 1
)

// Setup says how a server makes connections of cookies.
type Setup uint8

// The ways of setting up, as in contract.h.
const (
	Auto      Setup = 0 // native, and by translation what the kernel refuses
	Native    Setup = 1
	Translate Setup = 2
	Tenant    Setup = 3 // by translation, behind a tenant's device
)

var setupNames = []string{Auto: "auto", Native: "native", Translate: "translate", Tenant: "tenant"}

func (s Setup) String() string { return setupNames[s] }

// ParseSetup is the way of a name, false if there is none.
func ParseSetup(name string) (Setup, bool) {
	i := slices.Index(setupNames, name)
	return Setup(max(i, 0)), i >= 0
}

// OnSilence says what becomes of a service whose agent is silent.
type OnSilence uint8

// The choices, as in contract.h.
const (
	SilentKeep OnSilence = 0
	SilentPass OnSilence = 1
	SilentStop OnSilence = 2
)

// Admission says what makes an edge let a flow through.
type Admission uint8

// The choices, as in contract.h.
const (
	OnCookie  Admission = 0
	OnConfirm Admission = 1
)

// Strategy says how an edge proves strangers.
type Strategy uint8

// The strategies, as in contract.h.
const (
	Split      Strategy = 0
	Proxy      Strategy = 1
	AuthCookie Strategy = 2
	AuthFull   Strategy = 3
	AuthRST    Strategy = 4
)

var strategyNames = map[string]Strategy{
	"split": Split, "proxy": Proxy,
	"auth-cookie": AuthCookie, "auth-full": AuthFull, "auth-rst": AuthRST,
}

// Whitelists says whether the strategy challenges an address once and lets it
// through for a time.
func (s Strategy) Whitelists() bool { return AuthCookie <= s && s <= AuthRST }

// Auth is what strategies that whitelist addresses go by.
type Auth struct {
	Prefix4, Prefix6 uint8         // bits of an address that count
	Time             time.Duration // that it stays listed, whole seconds
	SYNs             int           // a second
	Unfinished       int           // SYNs in a row without an ACK that end it
}

// ParseStrategy is the strategy of a name, false if there is none.
func ParseStrategy(name string) (Strategy, bool) {
	s, ok := strategyNames[name]
	return s, ok
}

// StrategyNames lists the strategies, in the order of their numbers.
func StrategyNames() []string {
	return slices.SortedFunc(maps.Keys(strategyNames), func(a, b string) int {
		return int(strategyNames[a]) - int(strategyNames[b])
	})
}

// Options are the TCP options that a service agrees to, bits as in contract.h.
type Options uint8

// The options of a SYN that a cookie can carry.
const (
	Timestamps Options = 1 << iota
	SACK
	WindowScale
	ECN
	AllOptions = Timestamps | SACK | WindowScale | ECN
)

// PortRange is an inclusive range of ports.
type PortRange struct {
	Low, High uint16
}

// Service is a set of addresses and ports with one policy.
type Service struct {
	Name     string
	Prefixes []netip.Prefix
	Ports    []PortRange
	Mode     Mode
	KeysEnd  KeysEnd
	Options  Options
	Domain   string // key domain
	MSS4     uint16 // in the SYN-ACK
	MSS6     uint16
	Window   uint16 // in the SYN-ACK, unscaled
	Setup    Setup  // at the server
	Silent   OnSilence

	Admission Admission
	Probes    int // a second, of unknown packets; 0: none
	Strategy  Strategy
	Detect    Detect
	Auth      Auth

	MinTTL         uint8 // of packets that are no SYN
	PacketsPerFlow int   // a second, of a verified flow; 0: no budget
}

// Relays says whether packets of the service go to its agent in messages.
func (s *Service) Relays() bool { return s.Admission == OnConfirm || s.Probes > 0 }

// Detect has the limits at which a service whose mode is auto is defended.
type Detect struct {
	SYNs       int           // in a second
	Unfinished int           // handshakes, percent of the SYNs; 0: not looked at
	HalfOpen   int           // handshakes; 0: not looked at
	Calm       time.Duration // after which a first flood is over
}

// DefaultDetect is what a service has that says nothing.
var DefaultDetect = Detect{SYNs: 10_000, Unfinished: 50, HalfOpen: 2048, Calm: 30 * time.Second}

// MaxName is the length of a service's name, in bytes.
const MaxName = 63

// Proxied says whether the edge stands between clients and servers of a service.
func (s Service) Proxied() bool { return s.Strategy == Proxy }

// OwnedRange is a range of ports that belongs to a service, by its place in the
// list of services, counted from 1.
type OwnedRange struct {
	PortRange
	Service uint16
}

// PortSet is where the ranges of a prefix stand in Table.Ranges.
type PortSet struct {
	First, Count uint32
}

// Table is what the data plane looks services up in. The longest prefix decides,
// so each prefix has all ranges that hold at it, those of shorter prefixes
// around it included.
type Table struct {
	Prefixes map[netip.Prefix]PortSet
	Ranges   []OwnedRange
}

// OverlapError names two services that claim the same address and port.
type OverlapError struct {
	First, Second int // indices in the list of services
	Prefix        netip.Prefix
	Ports         PortRange
	Names         [2]string
}

func (e *OverlapError) Error() string {
	return fmt.Sprintf("service %q overlaps service %q at %s port %d",
		e.Names[1], e.Names[0], e.Prefix, e.Ports.Low)
}

// Compile makes the table of a list of services, or says which two overlap.
func Compile(services []Service) (*Table, error) {
	if len(services) > MaxServices {
		return nil, fmt.Errorf("%d services: at most %d", len(services), MaxServices)
	}
	t := &Table{Prefixes: make(map[netip.Prefix]PortSet)}
	for _, prefix := range prefixesOf(services) {
		ranges, err := rangesAt(services, prefix)
		if err != nil {
			return nil, err
		}
		t.Prefixes[prefix] = PortSet{uint32(len(t.Ranges)), uint32(len(ranges))}
		t.Ranges = append(t.Ranges, ranges...)
	}
	if len(t.Prefixes) > MaxPrefixes {
		return nil, fmt.Errorf("%d prefixes: at most %d", len(t.Prefixes), MaxPrefixes)
	}
	if len(t.Ranges) > MaxPortRanges {
		return nil, fmt.Errorf("%d ranges of ports at all prefixes: at most %d", len(t.Ranges), MaxPortRanges)
	}
	return t, nil
}

func prefixesOf(services []Service) []netip.Prefix {
	var all []netip.Prefix
	for i := range services {
		for _, p := range services[i].Prefixes {
			all = append(all, p.Masked())
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	return slices.Compact(all)
}

// rangesAt lists, ascending, whose every port at prefix is.
func rangesAt(services []Service, prefix netip.Prefix) ([]OwnedRange, error) {
	var ranges []OwnedRange
	for i := range services {
		if !covers(services[i].Prefixes, prefix) {
			continue
		}
		for _, ports := range services[i].Ports {
			ranges = append(ranges, OwnedRange{ports, uint16(i + 1)})
		}
	}
	slices.SortFunc(ranges, func(a, b OwnedRange) int { return int(a.Low) - int(b.Low) })
	for i := 1; i < len(ranges); i++ {
		a, b := ranges[i-1], ranges[i]
		if b.Low <= a.High {
			return nil, overlap(services, a, b, prefix)
		}
	}
	return ranges, nil
}

func overlap(services []Service, a, b OwnedRange, prefix netip.Prefix) error {
	first, second := min(a.Service, b.Service)-1, max(a.Service, b.Service)-1
	return &OverlapError{
		First: int(first), Second: int(second), Prefix: prefix,
		Ports: PortRange{b.Low, min(a.High, b.High)},
		Names: [2]string{services[first].Name, services[second].Name},
	}
}

func covers(prefixes []netip.Prefix, inner netip.Prefix) bool {
	for _, p := range prefixes {
		if p.Bits() <= inner.Bits() && p.Contains(inner.Addr()) {
			return true
		}
	}
	return false
}

// Protects says whether a service of the list holds at an address and port, and
// which one, by index.
func Protects(services []Service, address netip.Addr, port uint16) (int, bool) {
	whole := netip.PrefixFrom(address, address.BitLen())
	for i := range services {
		if !covers(services[i].Prefixes, whole) {
			continue
		}
		for _, r := range services[i].Ports {
			if r.Low <= port && port <= r.High {
				return i, true
			}
		}
	}
	return 0, false
}
