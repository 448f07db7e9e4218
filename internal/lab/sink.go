package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SinkCounts is what came back to the flood's source addresses, in packets.
type SinkCounts struct {
	SYNACKs uint64 `json:"syn_acks"`
	Resets  uint64 `json:"resets"`
	TCP     uint64 `json:"tcp"`   // other segments
	Other   uint64 `json:"other"` // not TCP
}

func (s SinkCounts) minus(before SinkCounts) SinkCounts {
	return SinkCounts{
		SYNACKs: s.SYNACKs - before.SYNACKs,
		Resets:  s.Resets - before.Resets,
		TCP:     s.TCP - before.TCP,
		Other:   s.Other - before.Other,
	}
}

// Sink counts and drops what comes back to the flood's source addresses; all
// other packets pass.
type Sink struct {
	objects sinkObjects
}

// NewSink puts a sink on the attacker's port.
func (l *Lab) NewSink() (*Sink, error) {
	spec, err := loadSink()
	if err != nil {
		return nil, fmt.Errorf("read the sink program: %w", err)
	}
	var specs sinkVariableSpecs
	if err := spec.Assign(&specs); err != nil {
		return nil, fmt.Errorf("find the sink's configuration: %w", err)
	}
	config := sinkConfig{
		Source4Be: words(FloodSources4.Addr())[3],
		Mask4Be:   words(mask(FloodSources4))[3],
		Source6Be: words(FloodSources6.Addr()),
		Mask6Be:   words(mask(FloodSources6)),
	}
	if err := specs.Sink.Set(config); err != nil {
		return nil, fmt.Errorf("configure the sink: %w", err)
	}
	sink := &Sink{}
	if err := spec.LoadAndAssign(&sink.objects, nil); err != nil {
		return nil, fmt.Errorf("load the sink program: %w", err)
	}
	if err := l.Attach(sink); err != nil {
		sink.Close()
		return nil, err
	}
	return sink, nil
}

// Attach puts a sink back on the attacker's port, if Bare has taken it off.
func (l *Lab) Attach(s *Sink) error {
	return l.Attacker.attach(l.Attacker.Port, s.objects.LabSink)
}

// Counts returns what the sink has counted so far.
func (s *Sink) Counts() (SinkCounts, error) {
	var counts [sinkCountSINK_COUNT]uint64
	for kind := range counts {
		var perCPU []uint64
		if err := s.objects.SinkCounts.Lookup(sinkCount(kind), &perCPU); err != nil {
			return SinkCounts{}, fmt.Errorf("read the sink's counters: %w", err)
		}
		for _, n := range perCPU {
			counts[kind] += n
		}
	}
	return SinkCounts{
		SYNACKs: counts[sinkCountSINK_SYNACK],
		Resets:  counts[sinkCountSINK_RST],
		TCP:     counts[sinkCountSINK_TCP],
		Other:   counts[sinkCountSINK_OTHER],
	}, nil
}

// Close lets go of the counters; the program stays until its port goes.
func (s *Sink) Close() error { return s.objects.Close() }

// Pass attaches an XDP program that passes everything: a veth delivers what
// its peer sends by XDP_TX only if it has a program itself.
func (n *Namespace) Pass(port string) error { return n.attachOwn(port, sinkProgLabPass) }

// Drop attaches an XDP program that drops everything.
func (n *Namespace) Drop(port string) error { return n.attachOwn(port, sinkProgLabDrop) }

// Bare takes away what Pass, Drop or NewSink has attached.
func (n *Namespace) Bare(port string) error { return n.setXDP(port, -1) }

func (n *Namespace) attachOwn(port, name string) error {
	spec, err := loadSink()
	if err != nil {
		return fmt.Errorf("read the sink program: %w", err)
	}
	program, err := ebpf.NewProgram(spec.Programs[name])
	if err != nil {
		return fmt.Errorf("load %s: %w", name, err)
	}
	defer program.Close() // the port holds it from now on
	return n.attach(port, program)
}

func (n *Namespace) attach(port string, program *ebpf.Program) error {
	return n.setXDP(port, program.FD())
}

func (n *Namespace) setXDP(port string, fd int) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(port)
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", port, n.Name, err)
		}
		if err := netlink.LinkSetXdpFdWithFlags(link, fd, unix.XDP_FLAGS_DRV_MODE); err != nil {
			return fmt.Errorf("set the XDP program of %s in %s: %w", port, n.Name, err)
		}
		return nil
	})
}

// words returns an address as the packet holds it, IPv4 in the last word.
func words(address netip.Addr) (out [4]uint32) {
	bytes := address.AsSlice()
	for first := 4 - len(bytes)/4; len(bytes) > 0; bytes = bytes[4:] {
		out[first] = binary.NativeEndian.Uint32(bytes)
		first++
	}
	return out
}

// mask returns the bits that a prefix fixes.
func mask(prefix netip.Prefix) netip.Addr {
	ones := make([]byte, prefix.Addr().BitLen()/8)
	for i := range ones {
		ones[i] = 0xff
	}
	all, _ := netip.AddrFromSlice(ones)
	fixed, _ := all.Prefix(prefix.Bits())
	return fixed.Addr()
}
