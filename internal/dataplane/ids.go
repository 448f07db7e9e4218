package dataplane

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"smartcookie/internal/policy"
)

// identities are the ids by which the programs know services: what is counted
// of one, its detector and the sources that it lists are kept by its id. A
// service keeps it for as long as there is one of its name, wherever in the
// file.
type identities struct {
	ids   []uint16 // by place in the list of services
	fresh []uint16 // of those that no earlier agent had
}

// identify gives ids. A new service gets one that nobody had, so that what the
// former programs still do about a service that goes is not the new one's; only
// when there is none left, that of such a service.
func identify(services []policy.Service, had map[string]uint16) identities {
	taken := make([]bool, policy.MaxServices+1)
	for _, id := range had {
		taken[id] = true
	}
	stays := make([]bool, policy.MaxServices+1)
	for i := range services {
		stays[had[services[i].Name]] = true
	}
	var free []uint16
	for _, used := range [][]bool{taken, stays} {
		for id := uint16(1); id <= policy.MaxServices; id++ {
			if !used[id] && !slices.Contains(free, id) {
				free = append(free, id)
			}
		}
	}
	all := identities{ids: make([]uint16, len(services))}
	for i := range services {
		id, old := had[services[i].Name]
		if !old {
			id, free = free[0], free[1:]
			all.fresh = append(all.fresh, id)
		}
		all.ids[i] = id
	}
	return all
}

// id is that of the service at a place in the list.
func (n *identities) id(place int) uint32 { return uint32(n.ids[place]) }

// highest is up to which id there are services.
func (n *identities) highest() uint32 {
	if len(n.ids) == 0 {
		return 0
	}
	return uint32(slices.Max(n.ids))
}

// idsOf are the ids that services of an agent had, by name.
func idsOf(left map[string]former) map[string]uint16 {
	had := make(map[string]uint16, len(left))
	for name, f := range left {
		had[name] = f.id
	}
	return had
}

// clearCounters begins anew what is counted under ids that are given again.
func clearCounters(counters *ebpf.Map, ids []uint16) error {
	stride := uint32(edgeVerdictVERDICT_STRIDE)
	keys, zeros := make([]uint32, stride), make([]uint64, int(stride)*ebpf.MustPossibleCPU())
	for _, id := range ids {
		for i := range keys {
			keys[i] = uint32(id)*stride + uint32(i)
		}
		if _, err := counters.BatchUpdate(keys, zeros, nil); err != nil {
			return fmt.Errorf("clear counters of service %d: %w", id, err)
		}
	}
	return nil
}

// delistServices removes the sources that services which have gone have listed.
func delistServices(whitelist *ebpf.Map, ids []uint16) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]edgeWhitelistKey, listBatch), make([]edgeWhitelisted, listBatch)
	var gone []edgeWhitelistKey
	for {
		n, err := whitelist.BatchLookup(&cursor, keys, values, nil)
		for _, key := range keys[:n] {
			if slices.Contains(ids, key.Service) {
				gone = append(gone, key)
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return fmt.Errorf("read whitelist: %w", err)
		}
	}
	for _, key := range gone {
		if err := whitelist.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("clear whitelist: %w", err)
		}
	}
	return nil
}
