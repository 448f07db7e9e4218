package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"smartcookie/internal/policy"
)

// Interface is a network device of the current network namespace.
type Interface struct {
	Name  string
	Index int
	MTU   int
	NoMAC bool // a device without Ethernet headers: a tunnel
	Veth  bool // a virtual Ethernet pair, which transmits in its own way
	VRF   *VRF // that it is a port of, nil if of none
}

// VRF is the device of a virtual routing table.
type VRF struct {
	Name  string
	Index int
}

// EdgeConfig is what an edge's programs are built for.
type EdgeConfig struct {
	Services []policy.Service
	Table    *policy.Table
	Domains  []string // names by index
	Epochs   uint64   // epochs ahead for which there shall be room

	Outside, Inside []Interface
	Forward         Forwarding
	Generic         bool // XDP in the kernel's stack instead of the driver

	Flows      int           // that the filter is made for
	Learn      time.Duration // how long unknown packets pass to a service that is new to a filter
	Proxied    int           // connections that the edge itself can stand between
	Generation time.Duration // of the filter
	Whitelist  int           // addresses that strategies may have listed
	Floods     policy.Floods
}

// Edge is a loaded edge agent.
type Edge struct {
	tables
	objects edgeObjects
	config  EdgeConfig
	links   map[string]link.Link
	adopted bool

	announced []byte // the announcement at hand
	lists     *Lists
}

// filterGroup is the state of the filter, of use only together.
var filterGroup = []string{"filter_lines", "filter", "ticker"}

// agentGroup is what is known of agents; what each covers is written anew.
var agentGroup = []string{"agents", "listeners"}

// hostGroup is the state of the host shape's keys.
var hostGroup = []string{"keys", "master"}

// flowsPerLine keeps false positives below one in 10,000: 32 bits for each flow
// and generation.
const flowsPerLine = 8

// FilterLines returns how many lines of 64 bytes hold so many flows.
func FilterLines(flows int) uint32 {
	return uint32(max((flows+flowsPerLine-1)/flowsPerLine, 1))
}

// FilterBytes is the memory of a filter for so many flows.
func FilterBytes(flows int) uint64 { return uint64(FilterLines(flows)) * lineBytes }

// LoadEdge loads the programs. With pins, state that an earlier daemon left is
// taken over where it fits; without, everything ends with this process.
func LoadEdge(pins *Pins, c EdgeConfig) (*Edge, error) {
	spec, err := loadEdge()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	e := &Edge{config: c, links: make(map[string]link.Link)}
	e.slots, e.identities = slotsFor(c.Epochs), identify(c.Services, idsOf(formerModes(pins, spec)))
	if err := e.shape(spec); err != nil {
		return nil, err
	}
	groups := [][]string{filterGroup, {"counters"}, {"clock"}, {"transmit_failures"}, {"whitelist"}, agentGroup, listGroup}
	if c.Forward == Local {
		groups = append(groups, hostGroup)
	}
	if e.proxies() {
		groups = append(groups, []string{"flows"})
		if err := keepSizes(pins, spec, "flows"); err != nil {
			return nil, err
		}
	}
	into := struct {
		*edgeObjects
		Checks *ebpf.Map `ebpf:".data.sources"`
	}{edgeObjects: &e.objects}
	adopted, err := load(pins, spec, &into, groups)
	if err != nil {
		return nil, err
	}
	e.lists = listsOf(&e.objects, into.Checks)
	if pins != nil { // commands know the maps if they are adopted
		e.lists.lock = pins.mapPath("")
	}
	e.adopted = adopted["filter"]
	m := &e.objects.edgeMaps
	e.tables = tables{m.Keys, m.Clock, m.Services, m.Prefixes4, m.Prefixes6, m.PortRanges, m.Counters, m.Labels, e.slots, e.identities}
	if err := errors.Join(e.forget(adopted), e.prepare(), e.writeModes(pins, formerModes(pins, spec))); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// shape sets sizes and constants in the specification.
func (e *Edge) shape(spec *ebpf.CollectionSpec) error {
	spec.Maps["filter_lines"].MaxEntries = FilterLines(e.config.Flows)
	spec.Maps["keys"].MaxEntries = uint32(max(len(e.config.Domains), 1)) * e.slots
	spec.Maps["flows"].MaxEntries = 1
	if e.proxies() {
		spec.Maps["flows"].MaxEntries = uint32(max(e.config.Proxied, 1))
	}
	e.shapeBudgets(spec)
	if slices.ContainsFunc(e.config.Services, func(s policy.Service) bool { return s.Strategy.Whitelists() }) {
		spec.Maps["whitelist"].MaxEntries = uint32(max(e.config.Whitelist, 1))
	}
	if e.multiBuffer() {
		for _, name := range []string{"edge_outside", "edge_inside"} {
			spec.Programs[name].Flags |= unix.BPF_F_XDP_HAS_FRAGS
		}
	}
	return setConstants(spec, e.constants())
}

// SingleBufferMTU is what every driver that we know of takes in one buffer.
const SingleBufferMTU = 3400

// multiBuffer says whether frames may be longer than one buffer.
func (e *Edge) multiBuffer() bool {
	return slices.ContainsFunc(slices.Concat(e.config.Outside, e.config.Inside), func(i Interface) bool {
		return i.MTU > SingleBufferMTU
	})
}

// proxies says whether the edge itself stands between some clients and servers.
func (e *Edge) proxies() bool {
	return e.config.Forward != Local && slices.ContainsFunc(e.config.Services, policy.Service.Proxied)
}

func (e *Edge) constants() map[string]any {
	c := &e.config
	lines := FilterLines(c.Flows)
	all := map[string]any{
		"key_slot_mask": e.slots - 1,
		"filter_size":   lines,
		"sweep_line_ns": max(uint64(c.Generation.Nanoseconds())/uint64(lines), 1),
		"forward_mode":  uint32(c.Forward),
		"own_tags":      c.Forward == Local,
		"service_count": e.highest(),
		"cpu_count":     uint32(ebpf.MustPossibleCPU()),
		"proxies":       e.proxies(),

		"multi_buffer":       e.multiBuffer(),
		"answer_by_redirect": slices.ContainsFunc(c.Outside, func(i Interface) bool { return i.Veth }),
		"strategies":         slices.ContainsFunc(c.Services, func(s policy.Service) bool { return s.Strategy.Whitelists() }),
		"link_length":        linkLength(append(c.Outside[:len(c.Outside):len(c.Outside)], c.Inside...)),
	}
	maps.Copy(all, c.floodConstants())
	all["verified_is_judged"] = e.proxies() || all["ttl_matters"].(bool) || all["packets_limited"].(bool)
	return all
}

func setConstants(spec *ebpf.CollectionSpec, constants map[string]any) error {
	for name, value := range constants {
		v, ok := spec.Variables[name]
		if !ok {
			return fmt.Errorf("embedded object has no constant %s", name)
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

func linkLength(interfaces []Interface) uint32 {
	const ethernet = 14
	for _, i := range interfaces {
		if i.NoMAC {
			return 0
		}
	}
	return ethernet
}

// load loads the collection into the programs' and maps' fields, replacing
// maps by pinned ones where a group of them fits, and pins the rest. It says
// which maps it took over.
func load(pins *Pins, spec *ebpf.CollectionSpec, into any, groups [][]string) (map[string]bool, error) {
	return loadShared(pins, spec, into, groups, nil)
}

// loadShared does the same and uses maps of another agent besides.
func loadShared(pins *Pins, spec *ebpf.CollectionSpec, into any, groups [][]string, shared map[string]*ebpf.Map) (map[string]bool, error) {
	adopted := make(map[string]bool)
	replacements := make(map[string]*ebpf.Map)
	if pins != nil {
		for _, group := range groups {
			found, ok := pins.reusable(spec, group)
			if !ok {
				continue
			}
			for name, m := range found {
				replacements[name], adopted[name] = m, true
			}
		}
	}
	all := maps.Clone(replacements)
	maps.Copy(all, shared)
	options := ebpf.CollectionOptions{MapReplacements: all}
	if err := spec.LoadAndAssign(into, &options); err != nil {
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) {
			return nil, fmt.Errorf("load programs: %w\n%+v", err, verifier)
		}
		return nil, fmt.Errorf("load programs: %w", err)
	}
	for _, m := range replacements {
		m.Close()
	}
	return adopted, nil
}

// forget begins anew what is taken over, but was of services that have gone.
func (e *Edge) forget(adopted map[string]bool) error {
	if len(e.fresh) == 0 {
		return nil
	}
	if adopted["counters"] {
		if err := clearCounters(e.objects.Counters, e.fresh); err != nil {
			return err
		}
	}
	if adopted["whitelist"] {
		return delistServices(e.objects.Whitelist, e.fresh)
	}
	return nil
}

// prepare fills what must be there before the first packet.
func (e *Edge) prepare() error {
	if !e.adopted {
		var state edgeFilterState
		if err := binary.Read(rand.Reader, binary.LittleEndian, &state.Key); err != nil {
			return fmt.Errorf("make filter key: %w", err)
		}
		if err := e.objects.Filter.Put(uint32(0), state); err != nil {
			return fmt.Errorf("write filter key: %w", err)
		}
	}
	if err := e.writeServices(e.config.Services, e.config.Table, e.config.Domains); err != nil {
		return err
	}
	if err := e.writePorts(); err != nil {
		return err
	}
	return e.prepareFloods()
}

func (e *Edge) writePorts() error {
	c := &e.config
	if c.Forward == Bridge && len(c.Inside) > 0 && len(c.Outside) > 0 {
		for key, port := range []Interface{c.Inside[0], c.Outside[0]} {
			if err := e.objects.BridgePorts.Put(uint32(key), uint32(port.Index)); err != nil {
				return fmt.Errorf("write port %s: %w", port.Name, err)
			}
		}
	}
	if c.Forward == Route {
		for _, port := range append(c.Outside[:len(c.Outside):len(c.Outside)], c.Inside...) {
			if err := e.objects.RoutePorts.Put(uint32(port.Index), uint32(port.Index)); err != nil {
				return fmt.Errorf("write port %s: %w", port.Name, err)
			}
		}
	}
	return nil
}

// HostKey gives the kernel a random master key from which it makes its own
// epoch keys, and forgets it. A key that is there already goes on.
func (e *Edge) HostKey(windowScale uint8) error {
	var m edgeMasterKey
	if err := e.objects.Master.Lookup(uint32(0), &m); err != nil {
		return fmt.Errorf("read master key: %w", err)
	}
	defer clear(m.Key[:])
	if m.Armed != 0 {
		return nil
	}
	var key [16]byte
	defer clear(key[:])
	if _, err := rand.Read(key[:]); err != nil {
		return fmt.Errorf("make master key: %w", err)
	}
	m = edgeMasterKey{Armed: 1, WindowScale: windowScale}
	m.Key[0], m.Key[1] = binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])
	if err := e.objects.Master.Put(uint32(0), m); err != nil {
		return fmt.Errorf("write master key: %w", err)
	}
	return nil
}

// Start makes the kernel sweep the filter, and make keys in the host shape,
// for as long as the maps live.
func (e *Edge) Start() error {
	code, err := e.objects.TickStart.Run(&ebpf.RunOptions{})
	if err != nil {
		return fmt.Errorf("start timer: %w", err)
	}
	if code != 0 {
		return fmt.Errorf("start timer: code %d", int32(code))
	}
	return nil
}

// Attach pins the maps and puts the programs on the interfaces.
func (e *Edge) Attach(pins *Pins) error {
	// Before the contract: no command shall take the lists of another version for ours.
	if err := e.lists.pin(pins); err != nil {
		return err
	}
	if err := pinMaps(pins, map[string]*ebpf.Map{
		"filter_lines": e.objects.FilterLines, "filter": e.objects.Filter, "ticker": e.objects.Ticker,
		"counters": e.objects.Counters, "keys": e.objects.Keys, "clock": e.objects.Clock,
		"master": e.objects.Master, "transmit_failures": e.objects.TransmitFailures, "services": e.objects.Services,
		"prefixes4": e.objects.Prefixes4, "prefixes6": e.objects.Prefixes6, "port_ranges": e.objects.PortRanges,
		"agents": e.objects.Agents, "listeners": e.objects.Listeners, "flows": e.objects.Flows, "whitelist": e.objects.Whitelist,
		"labels": e.objects.Labels, "detectors": e.objects.Detectors, "tallies": e.objects.Tallies,
	}); err != nil {
		return err
	}
	if err := errors.Join(e.pinProtected(pins), e.watchTransmit(pins)); err != nil {
		return err
	}
	for _, i := range e.config.Inside {
		if err := e.attachXDP(pins, i, e.objects.EdgeInside); err != nil {
			return err
		}
	}
	for _, i := range e.config.Outside {
		if e.config.Forward == Local {
			if err := attachTC(pins, e.links, i, e.objects.EdgeEgress, ebpf.AttachTCXEgress); err != nil {
				return err
			}
		}
		if err := e.attachXDP(pins, i, e.objects.EdgeOutside); err != nil {
			return err
		}
	}
	return pins.keepLinks(e.links)
}

// Restore puts the agent back in the place that another was about to take.
func (e *Edge) Restore(pins *Pins) error {
	if err := errors.Join(e.configureLists(), e.Start()); err != nil {
		return err
	}
	return e.Attach(pins)
}

func pinMaps(pins *Pins, all map[string]*ebpf.Map) error {
	if err := pins.pinContract(); err != nil {
		return err
	}
	for name, m := range all {
		if err := pins.pinMap(name, m); err != nil {
			return err
		}
	}
	return nil
}

func (e *Edge) attachXDP(pins *Pins, i Interface, prog *ebpf.Program) error {
	return attachXDP(pins, e.links, i, prog, e.config.Generic)
}

func attachXDP(pins *Pins, links map[string]link.Link, i Interface, prog *ebpf.Program, generic bool) error {
	flags := link.XDPDriverMode
	if generic {
		flags = link.XDPGenericMode
	}
	name := linkName("xdp", i.Name)
	l, err := pins.attach(name, prog,
		func(info *link.Info) bool {
			return info.XDP() != nil && int(info.XDP().Ifindex) == i.Index
		},
		func() (link.Link, error) {
			return link.AttachXDP(link.XDPOptions{Program: prog, Interface: i.Index, Flags: flags})
		})
	if err != nil {
		return fmt.Errorf("attach XDP to %s: %w", i.Name, explainXDP(err, i, generic))
	}
	links[name] = l
	return nil
}

// explainXDP adds the way out where the kernel's error has a usual cause.
func explainXDP(err error, i Interface, generic bool) error {
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: another XDP program is there (see: ip link show %s)", err, i.Name)
	case errors.Is(err, unix.EOPNOTSUPP) && !generic:
		return fmt.Errorf("%w: its driver has no native XDP; `xdp: generic` works on any device, much slower", err)
	case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: its driver may not take XDP at this MTU (see: dmesg; try: ip link set %s mtu 1500)", err, i.Name)
	}
	return err
}

// Undo takes off what Attach newly put in place; what an earlier daemon left
// and this one only renewed stays.
func (e *Edge) Undo(pins *Pins) { pins.undo() }

// AdoptedOffset is the clock offset that an earlier daemon left, 0 if none.
func (e *Edge) AdoptedOffset() int64 {
	c, err := e.GetClock()
	if err != nil {
		return 0
	}
	return c.OffsetNS
}

// LearningLeft is how long an adopted filter still learns.
func (e *Edge) LearningLeft() time.Duration {
	c, err := e.GetClock()
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now) != nil {
		return 0
	}
	return max(time.Duration(int64(c.LearnUntilNS)-now.Nano()), 0)
}

// Close lets go of everything; what is pinned goes on.
func (e *Edge) Close() error {
	closeLinks(e.links)
	if e.lists != nil {
		e.lists.state.Close()
	}
	return e.objects.Close()
}

// LoadBeside loads other programs over this edge's maps and constants: the
// benchmarks' variants of it.
func (e *Edge) LoadBeside(spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	constants := e.constants()
	maps.DeleteFunc(constants, func(name string, _ any) bool { return spec.Variables[name] == nil })
	if err := setConstants(spec, constants); err != nil {
		return nil, err
	}
	m := &e.objects.edgeMaps
	shared := map[string]*ebpf.Map{
		"keys": m.Keys, "clock": m.Clock, "services": m.Services, "prefixes4": m.Prefixes4,
		"prefixes6": m.Prefixes6, "port_ranges": m.PortRanges, "counters": m.Counters,
		"filter": m.Filter, "filter_lines": m.FilterLines,
		"bridge_ports": m.BridgePorts, "route_ports": m.RoutePorts,
		"deny4": m.Deny4, "deny6": m.Deny6, "allow4": m.Allow4, "allow6": m.Allow6, "deny_marks": m.DenyMarks,
		"places4": m.Places4, "places6": m.Places6, ".data.sources": e.lists.state, "detectors": m.Detectors,
		"flow_budgets": m.FlowBudgets, "answer_budgets": m.AnswerBudgets, "budget_key": m.BudgetKey,
	}
	maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil })
	for _, name := range []string{"filter_lines", "keys", "flow_budgets", "answer_budgets"} {
		if m, ok := shared[name]; ok {
			spec.Maps[name].MaxEntries = m.MaxEntries()
		}
	}
	options := ebpf.CollectionOptions{MapReplacements: shared}
	collection, err := ebpf.NewCollectionWithOptions(spec, options)
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	return collection, nil
}
