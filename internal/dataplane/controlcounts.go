package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"

	"smartcookie/internal/control"
)

// controlPin is a map in which a daemon leaves its counts for `status`.
const controlPin = "control"

// ControlCounts shows a daemon's counts of control messages.
type ControlCounts struct {
	m *ebpf.Map
}

// PinControlCounts makes the map, in the place of an earlier daemon's.
func PinControlCounts(pins *Pins) (*ControlCounts, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: controlPin, Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: uint32(len(control.EventNames())),
	})
	if err != nil {
		return nil, fmt.Errorf("make map %s: %w", controlPin, err)
	}
	if err := pins.pinMap(controlPin, m); err != nil {
		m.Close()
		return nil, err
	}
	return &ControlCounts{m}, nil
}

// Write shows the counts.
func (c *ControlCounts) Write(counts []uint64) error {
	for i, n := range counts {
		if err := c.m.Put(uint32(i), n); err != nil {
			return fmt.Errorf("write counts of control messages: %w", err)
		}
	}
	return nil
}

// Close lets go of the map; the pin stays.
func (c *ControlCounts) Close() error { return c.m.Close() }

// peerMaps are where an agent has its peers.
var peerMaps = map[string]string{EdgeAgent: "agents", ServerAgent: "edges"}

// ControlPeers returns what the agents pinned below root know of their peers.
func ControlPeers(root string) (map[string]map[uint32]control.Peer, error) {
	all := make(map[string]map[uint32]control.Peer)
	for agent, name := range peerMaps {
		m, err := ebpf.LoadPinnedMap(filepath.Join(root, agent, "maps", name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open peers of %s: %w", agent, err)
		}
		all[agent] = peersOf(m)
		m.Close()
	}
	return all, nil
}

// addControlCounts adds what a daemon has counted, by name.
func addControlCounts(total map[string]uint64, path string) error {
	counts, err := readControlCounts(path)
	for i, n := range counts {
		if n > 0 {
			total["control_"+control.EventNames()[i]] = n
		}
	}
	return err
}

// readControlCounts returns the counts by event; none where there are no messages.
func readControlCounts(path string) ([]uint64, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open counts of control messages: %w", err)
	}
	defer m.Close()
	counts := make([]uint64, len(control.EventNames()))
	for i := range counts {
		if err := m.Lookup(uint32(i), &counts[i]); err != nil {
			return nil, fmt.Errorf("read counts of control messages: %w", err)
		}
	}
	return counts, nil
}
