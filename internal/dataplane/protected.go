package dataplane

import (
	"crypto/sha256"
	"fmt"

	"github.com/cilium/ebpf"

	"smartcookie/internal/policy"
)

// protectedPin is a map with the digest of what is protected and where, for the
// next daemon: handshakes and idle flows of what was not are not in the filter.
const protectedPin = "protected"

// protectedDigest is of all services that are not off.
func protectedDigest(services []policy.Service) [sha256.Size]byte {
	h := sha256.New()
	for i := range services {
		if services[i].Mode != policy.Off {
			fmt.Fprintln(h, services[i].Prefixes, services[i].Ports)
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// protectedByAnother reads what an earlier daemon has left.
func protectedByAnother(pins *Pins) (digest [sha256.Size]byte) {
	if pins == nil {
		return digest
	}
	m, err := ebpf.LoadPinnedMap(pins.mapPath(protectedPin), nil)
	if err != nil {
		return digest
	}
	defer m.Close()
	_ = m.Lookup(uint32(0), &digest) // without, all counts as new
	return digest
}

// pinProtected records what is protected from now on.
func pinProtected(pins *Pins, services []policy.Service) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: protectedPin, Type: ebpf.Array, KeySize: 4, ValueSize: sha256.Size, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("make map %s: %w", protectedPin, err)
	}
	defer m.Close()
	if err := m.Put(uint32(0), protectedDigest(services)); err != nil {
		return fmt.Errorf("write map %s: %w", protectedPin, err)
	}
	return pins.pinMap(protectedPin, m)
}

// ProtectsSame says that an earlier daemon has protected the same, so that there
// is nothing new to learn.
func (e *Edge) ProtectsSame() bool { return e.protectsSame }
