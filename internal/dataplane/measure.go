package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"smartcookie/internal/cookie"
	"smartcookie/internal/filter"
)

// Programs are those at the server's ingress and egress, for measuring them.
func (s *Server) Programs() (ingress, egress *ebpf.Program) {
	return s.objects.ServerIngress, s.objects.ServerEgress
}

// FillFilter puts flows into the filter of the edge that is pinned below a root, so
// many into each generation: fill tells which.
func FillFilter(root string, fill func(generation int, add func(cookie.Flow))) error {
	pins := Pins{path: filepath.Join(root, EdgeAgent)}
	var state edgeFilterState
	err := pins.use("filter", func(m *ebpf.Map) error { return m.Lookup(uint32(0), &state) })
	if err != nil {
		return fmt.Errorf("read the filter's state: %w", err)
	}
	err = pins.use("filter_lines", func(m *ebpf.Map) error {
		model := filter.NewBlocked(state.Key, int(m.MaxEntries()))
		for generation := range filter.Generations {
			// What the sweep has before it now was filled by then.
			model.Position = state.Position + uint64(generation)<<32
			fill(generation, model.Add)
		}
		memory, err := m.Memory()
		if err != nil {
			return err
		}
		_, err = memory.WriteAt(model.Bytes(), 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("fill the filter: %w", err)
	}
	return nil
}

func (p *Pins) use(name string, use func(*ebpf.Map) error) error {
	m, err := ebpf.LoadPinnedMap(p.mapPath(name), nil)
	if err != nil {
		return err
	}
	defer m.Close()
	return use(m)
}

// Replace puts another program in the place of an edge's at one of its ports, and
// returns what puts the edge's there again.
func Replace(root, port string, program *ebpf.Program) (restore func() error, err error) {
	pins := Pins{path: filepath.Join(root, EdgeAgent)}
	l, err := link.LoadPinnedLink(pins.linkPath(linkName("xdp", port)), nil)
	if err != nil {
		return nil, fmt.Errorf("open the link of %s: %w", port, err)
	}
	info, err := l.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask the link of %s: %w", port, err), l.Close())
	}
	own, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find the program of %s: %w", port, err), l.Close())
	}
	if err := l.Update(program); err != nil {
		return nil, errors.Join(fmt.Errorf("replace the program of %s: %w", port, err), own.Close(), l.Close())
	}
	return func() error { return errors.Join(l.Update(own), own.Close(), l.Close()) }, nil
}

// TranslateStamps makes a connection a translated one whose timestamps are
// shifted, and whose sequence numbers are by nothing: a program can be measured
// with one packet again and again, and does for it what it does for any other.
func (s *Server) TranslateStamps(client, server netip.AddrPort, shift uint32) error {
	const scale = 7
	value := serverTranslation{
		State:      uint8(serverTranslationStateTRANSLATION_ESTABLISHED),
		StampDelta: shift, Options: translationOptions(scale, scale, scale, true),
	}
	key := serverEndpoints{
		ClientBe: wordsOf(client.Addr()), ClientPortBe: client.Port()<<8 | client.Port()>>8,
		ServerBe: wordsOf(server.Addr()), ServerPortBe: server.Port()<<8 | server.Port()>>8,
	}
	if err := s.objects.Flows.Put(key, value); err != nil {
		return fmt.Errorf("write a translated connection: %w", err)
	}
	if err := s.objects.Translating.Set(true); err != nil {
		return fmt.Errorf("set translating: %w", err)
	}
	return nil
}

// translationOptions are a connection's three window scales, and whether it has
// timestamps.
func translationOptions(client, announced, kernel uint16, timestamps bool) uint16 {
	options := client | announced<<serverTranslationOptionsTRANSLATION_ANNOUNCED_SHIFT | kernel<<serverTranslationOptionsTRANSLATION_KERNEL_SHIFT
	if timestamps {
		options |= uint16(serverTranslationOptionsTRANSLATION_TIMESTAMPS)
	}
	return options
}

// wordsOf is an address as it lies in the tables, IPv4 mapped into IPv6.
func wordsOf(a netip.Addr) (words [4]uint32) {
	bytes := a.As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return words
}
