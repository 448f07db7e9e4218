package dataplane

import (
	"crypto/sha256"
	"fmt"

	"github.com/cilium/ebpf"

	"smartcookie/internal/policy"
)

// protectedPin is a map with a digest of where each service is, by its id, for
// the next agent: handshakes and idle flows of what was not protected are not
// in the filter.
const protectedPin = "protected"

// protectedDigest is of where a service is; zeros while it is off.
func protectedDigest(s *policy.Service) (digest [sha256.Size]byte) {
	if s.Mode != policy.Off {
		digest = sha256.Sum256(fmt.Append(nil, s.Prefixes, s.Ports))
	}
	return digest
}

// newGround finds, by place in the list, the services that the filter which was
// taken over knows nothing of.
func (e *Edge) newGround(pins *Pins) []bool {
	all := make([]bool, len(e.config.Services))
	if !e.adopted || e.config.Forward == Local { // a host has its sockets to ask
		return all
	}
	m, err := ebpf.LoadPinnedMap(pins.mapPath(protectedPin), nil)
	if err == nil {
		defer m.Close()
	}
	for i := range all {
		var before [sha256.Size]byte
		if err == nil {
			_ = m.Lookup(e.id(i), &before) // without, it counts as new
		}
		all[i] = before != protectedDigest(&e.config.Services[i])
	}
	return all
}

// pinProtected records what is protected from now on.
func (e *Edge) pinProtected(pins *Pins) error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: protectedPin, Type: ebpf.Array, KeySize: 4, ValueSize: sha256.Size, MaxEntries: policy.MaxServices + 1,
	})
	if err != nil {
		return fmt.Errorf("make map %s: %w", protectedPin, err)
	}
	defer m.Close()
	for i := range e.config.Services {
		if err := m.Put(e.id(i), protectedDigest(&e.config.Services[i])); err != nil {
			return fmt.Errorf("write map %s: %w", protectedPin, err)
		}
	}
	return pins.pinMap(protectedPin, m)
}

// Adopted says that the filter of an earlier agent goes on, so that only what is
// new to it has to be learnt.
func (e *Edge) Adopted() bool { return e.adopted }
