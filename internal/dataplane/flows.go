package dataplane

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// keepSizes gives maps of translated connections the size that they have already:
// what is in them lives, and cannot move.
func keepSizes(pins *Pins, spec *ebpf.CollectionSpec, names ...string) error {
	if pins == nil || !pins.sameContract() {
		return nil
	}
	for _, name := range names {
		m, err := ebpf.LoadPinnedMap(pins.mapPath(name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("open pinned %s: %w", name, err)
		}
		if n := m.MaxEntries(); n > 1 { // it was in use
			spec.Maps[name].MaxEntries = n
		}
		m.Close()
	}
	return nil
}

// heedFlows has the programs look at translated connections from the first
// packet on, if there are any. Where there are none a packet is spared that,
// until a program makes one.
func (s *Server) heedFlows() error {
	for _, m := range []*ebpf.Map{s.objects.HalfOpen, s.objects.Flows} { // as a connection goes
		var any serverEndpoints
		err := m.NextKey(nil, &any)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for translated connections: %w", err)
		}
		if err := s.objects.Translating.Set(true); err != nil {
			return fmt.Errorf("set translating: %w", err)
		}
		return nil
	}
	return nil
}

// halfOpen is how many handshakes of translated connections can be under way.
// One takes as long as the kernel needs to answer its own SYN.
const halfOpen = 1 << 16

// flowsBatch is how many connections are read in one system call.
const flowsBatch = 4096

// SweepFlows removes translated connections whose sockets, TIME_WAIT included,
// are gone. It returns how many there were and how many it has removed.
func (s *Server) SweepFlows() (seen, removed int, err error) {
	now, err := coarseNow()
	if err != nil {
		return 0, 0, err
	}
	flows, cursor := s.objects.Flows, ebpf.MapBatchCursor{}
	keys, values := make([]serverEndpoints, flowsBatch), make([]serverTranslation, flowsBatch)
	for {
		n, err := flows.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return seen, removed, fmt.Errorf("read translated connections: %w", err)
		}
		seen += n
		for i := range n {
			if !values[i].expired(now) {
				continue
			}
			if err := s.removeFlow(keys[i], now); err != nil {
				return seen, removed, err
			}
			removed++
		}
		if err != nil {
			s.note("flows", seen-removed, flows.MaxEntries())
			return seen, removed, nil
		}
	}
}

// removeFlow takes an expired connection out. If a new one from the same port
// has taken its place since it was read, that one goes back.
func (s *Server) removeFlow(key serverEndpoints, now uint64) error {
	var value serverTranslation
	err := s.objects.Flows.LookupAndDelete(key, &value)
	if err == nil && !value.expired(now) {
		err = s.objects.Flows.Update(key, value, ebpf.UpdateNoExist)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("remove a translated connection: %w", err)
	}
	return nil
}

func (t *serverTranslation) expired(now uint64) bool {
	return t.ExpiresNs != 0 && int64(t.ExpiresNs-now) <= 0
}

// coarseNow is the clock of the programs.
func coarseNow() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint64(now.Nano()), nil
}
