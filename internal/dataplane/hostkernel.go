package dataplane

import (
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"smartcookie/internal/policy"
)

// FloodLimits say when a port is in flood mode.
type FloodLimits struct {
	SYNs     int           // within Window that are pressure
	Window   time.Duration // T1
	Calm     time.Duration // T2: so long without pressure ends it
	CalmMost time.Duration // to which T2 doubles
}

// HostKernelConfig is what the programs of a host with the kernel's own cookies
// are built for.
type HostKernelConfig struct {
	Services   []policy.Service // one for each port
	Table      *policy.Table
	Interface  Interface
	Generic    bool
	MSS4, MSS6 uint16 // that the interface carries
	Limits     FloodLimits
}

// HostKernel is a loaded host agent with the kernel's own cookies.
type HostKernel struct {
	tables
	objects hostKernelObjects
	config  HostKernelConfig
	links   map[string]link.Link
}

// modeGroup is the state of the ports, of use only together and to the same
// ports.
var modeGroup = []string{"port_modes", "port_syns", "flooded", "counters"}

// hostKernelSlots is of a table of keys that nobody uses.
const hostKernelSlots = 1

// LoadHostKernel loads the programs, see LoadEdge.
func LoadHostKernel(pins *Pins, c HostKernelConfig) (*HostKernel, error) {
	spec, err := loadHostKernel()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	h := &HostKernel{config: c, links: make(map[string]link.Link)}
	h.identities = identify(c.Services, nil) // what is kept of a port is kept only with all of them
	if c.Interface.MTU > SingleBufferMTU {
		spec.Programs["host_arrive"].Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	if err := setConstants(spec, h.constants()); err != nil {
		return nil, err
	}
	groups := [][]string{{"transmit_failures"}}
	if pins != nil && slices.Equal(pinnedPorts(pins), rangesOf(c.Table)) {
		groups = append(groups, modeGroup)
	}
	left := formerModes(pins, spec)
	adopted, err := load(pins, spec, &h.objects, groups)
	if err != nil {
		return nil, err
	}
	m := &h.objects.hostKernelMaps
	h.tables = tables{m.Keys, m.Clock, m.Services, m.Prefixes4, m.Prefixes6, m.PortRanges, m.Counters, m.Labels, hostKernelSlots, h.identities}
	if err := h.prepare(adopted["port_modes"], left); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

func (h *HostKernel) constants() map[string]any {
	c := &h.config
	return map[string]any{
		"flood_limits": hostKernelBimodalLimits{
			WindowNs: uint64(c.Limits.Window), CalmNs: uint64(c.Limits.Calm),
			CalmMostNs: uint64(c.Limits.CalmMost), Syns: uint32(c.Limits.SYNs),
		},
		"flood_always":       c.Services[0].Mode == policy.Always,
		"device_mss4":        c.MSS4,
		"device_mss6":        c.MSS6,
		"multi_buffer":       c.Interface.MTU > SingleBufferMTU,
		"answer_by_redirect": c.Interface.Veth,
		"own_tags":           true,
	}
}

// prepare fills the tables. States that an earlier daemon left go on, and modes
// that an operator has chosen until another one is configured.
func (h *HostKernel) prepare(adopted bool, left map[string]former) error {
	services := h.config.Services
	if err := h.writeServices(services, h.config.Table, []string{services[0].Domain}); err != nil {
		return err
	}
	for i := range services {
		s, id, mode := &services[i], h.id(i), services[i].Mode
		if f, ok := left[s.Name]; ok && f.configured == mode {
			mode = f.mode
		}
		if err := h.writeMode(id, s, mode); err != nil {
			return fmt.Errorf("write mode of port %s: %w", s.Name, err)
		}
		if adopted {
			continue
		}
		if err := h.objects.PortModes.Put(id, hostKernelBimodal{CalmNs: uint64(h.config.Limits.Calm)}); err != nil {
			return fmt.Errorf("write modes: %w", err)
		}
	}
	return nil
}

// SetReceiveMost tells the programs net.core.rmem_max.
func (h *HostKernel) SetReceiveMost(bytes uint32) error {
	if err := h.objects.Facts.Put(uint32(0), hostKernelHostFacts{RmemMax: bytes}); err != nil {
		return fmt.Errorf("write facts: %w", err)
	}
	return nil
}

// EndFloods ends the floods of ports whose calm time is over and that get no
// packet which would.
func (h *HostKernel) EndFloods() error {
	if _, err := h.objects.ModesRest.Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("look at the modes: %w", err)
	}
	return nil
}

// Attach pins the maps and puts the program on the interface.
func (h *HostKernel) Attach(pins *Pins) error {
	o := &h.objects
	if err := pinMaps(pins, map[string]*ebpf.Map{
		"counters": o.Counters, "services": o.Services, "labels": o.Labels, "port_ranges": o.PortRanges, "clock": o.Clock,
		"prefixes4": o.Prefixes4, "prefixes6": o.Prefixes6, "transmit_failures": o.TransmitFailures,
		"port_modes": o.PortModes, "port_syns": o.PortSyns, "flooded": o.Flooded,
	}); err != nil {
		return err
	}
	if err := h.transmitter().watch(pins, h.links, []Interface{h.config.Interface}); err != nil {
		return err
	}
	if err := attachXDP(pins, h.links, h.config.Interface, o.HostArrive, h.config.Generic); err != nil {
		return err
	}
	return pins.keepLinks(h.links)
}

func (h *HostKernel) transmitter() transmitter {
	o := &h.objects
	return transmitter{o.Devices, o.TransmitFailures, o.TransmitException, o.TransmitRedirect, o.TransmitBulk, o.TransmitDevmap, o.TransmitProbe}
}

// TransmitFailures counts, by cause, the frames that were lost after their
// verdict.
func (h *HostKernel) TransmitFailures() (map[string]uint64, error) { return h.transmitter().lost() }

// TryTransmit sends one frame out of the interface, as answers go.
func (h *HostKernel) TryTransmit() error {
	return h.transmitter().try([]Interface{h.config.Interface}, h.config.Generic)
}

// Undo takes off what Attach newly put in place.
func (h *HostKernel) Undo(pins *Pins) { pins.undo() }

// Close lets go of everything; what is pinned goes on.
func (h *HostKernel) Close() error {
	closeLinks(h.links)
	return h.objects.Close()
}

// rangesOf lists the ports by service, as they are at the first prefix.
func rangesOf(table *policy.Table) []policy.OwnedRange {
	for _, set := range table.Prefixes {
		return table.Ranges[set.First:][:set.Count]
	}
	return nil
}

// pinnedPorts are those of an earlier daemon.
func pinnedPorts(pins *Pins) []policy.OwnedRange {
	m, err := ebpf.LoadPinnedMap(pins.mapPath("port_ranges"), nil)
	if err != nil {
		return nil
	}
	defer m.Close()
	ranges, err := readRanges(m)
	if err != nil {
		return nil // nothing to adopt
	}
	return ranges
}

// readRanges reads the ports that each service has, up to the first empty range.
func readRanges(m *ebpf.Map) ([]policy.OwnedRange, error) {
	var all []policy.OwnedRange
	for i := range m.MaxEntries() {
		var v hostKernelPortRange
		if err := m.Lookup(i, &v); err != nil {
			return nil, fmt.Errorf("read ports: %w", err)
		}
		if v.Service == 0 {
			break
		}
		all = append(all, policy.OwnedRange{PortRange: policy.PortRange{Low: v.Low, High: v.High}, Service: v.Service})
	}
	return all, nil
}
