package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"smartcookie/internal/cookie"
	"smartcookie/internal/policy"
)

// tables are the maps that both agents have.
type tables struct {
	keys, clock, services, prefixes4, prefixes6, ranges, counters, labels *ebpf.Map
	slots                                                                 uint32 // per domain
	identities
}

// slotsFor returns how many key slots a domain needs for this many epochs
// ahead: a power of two, with room for the epochs that are still accepted.
func slotsFor(epochs uint64) uint32 {
	n := uint32(8)
	for uint64(n) < epochs+4 {
		n *= 2
	}
	return n
}

// writeServices fills empty tables.
func (t *tables) writeServices(services []policy.Service, table *policy.Table, domains []string) error {
	if err := t.writePolicies(services, domains); err != nil {
		return err
	}
	for i, r := range table.Ranges {
		v := edgePortRange{Low: r.Low, High: r.High, Service: t.ids[r.Service-1]}
		if err := t.ranges.Put(uint32(i), v); err != nil {
			return fmt.Errorf("write ports: %w", err)
		}
	}
	for prefix, set := range table.Prefixes {
		v := edgePortSet{First: set.First, Count: set.Count}
		if err := putPrefix(t.prefixes4, t.prefixes6, prefix, v); err != nil {
			return err
		}
	}
	return nil
}

// writePolicies writes what is said of the services, but not where they are.
func (t *tables) writePolicies(services []policy.Service, domains []string) error {
	for i := range services {
		s := &services[i]
		domain := slices.Index(domains, s.Domain)
		if domain < 0 {
			return fmt.Errorf("service %q: unknown key domain %q", s.Name, s.Domain)
		}
		v := edgeService{
			Mode: uint8(s.Mode), KeysEnd: uint8(s.KeysEnd), Options: uint8(s.Options),
			Domain: uint8(domain), Mss4: s.MSS4, Mss6: s.MSS6, Window: s.Window,
			Setup: uint8(s.Setup), Silent: uint8(s.Silent),
			Admission: uint8(s.Admission), Strategy: uint8(s.Strategy), ProbeIntervalNs: interval(s.Probes),
			AuthPrefix4: s.Auth.Prefix4, AuthPrefix6: s.Auth.Prefix6, AuthSeconds: uint32(s.Auth.Time / time.Second),
			AuthIntervalNs: interval(s.Auth.SYNs), AuthUnfinished: uint32(s.Auth.Unfinished),
			MinTtl: s.MinTTL, PacketIntervalNs: interval(s.PacketsPerFlow),
		}
		if err := t.services.Put(t.id(i), v); err != nil {
			return fmt.Errorf("write service %q: %w", s.Name, err)
		}
	}
	return nil
}

// interval is the time between two of so many a second; 0 of none.
func interval(perSecond int) uint32 {
	if perSecond == 0 {
		return 0
	}
	return uint32(time.Second.Nanoseconds() / int64(perSecond))
}

// MovePrefixes makes the services' ports hold at other prefixes: first where
// they are new, then no longer where they are old.
func (t *tables) MovePrefixes(added, removed []netip.Prefix, set policy.PortSet) error {
	for _, prefix := range added {
		v := edgePortSet{First: set.First, Count: set.Count}
		if err := putPrefix(t.prefixes4, t.prefixes6, prefix, v); err != nil {
			return err
		}
	}
	for _, prefix := range removed {
		if err := deletePrefix(t.prefixes4, t.prefixes6, prefix); err != nil {
			return err
		}
	}
	return t.raiseVersion()
}

// raiseVersion makes the data plane forget what it remembers of the tables.
func (t *tables) raiseVersion() error {
	const at = 24 // struct agent_clock, tables_version
	memory, err := t.clock.Memory()
	if err != nil {
		return fmt.Errorf("map clock: %w", err)
	}
	var b [8]byte
	if _, err := memory.ReadAt(b[:], at); err != nil {
		return fmt.Errorf("read version of the tables: %w", err)
	}
	binary.NativeEndian.PutUint64(b[:], binary.NativeEndian.Uint64(b[:])+1)
	if _, err := memory.WriteAt(b[:], at); err != nil {
		return fmt.Errorf("write version of the tables: %w", err)
	}
	return nil
}

func putPrefix(v4, v6 *ebpf.Map, prefix netip.Prefix, value any) error {
	m, key := prefixKey(v4, v6, prefix)
	if err := m.Put(key, value); err != nil {
		return fmt.Errorf("write prefix %s: %w", prefix, err)
	}
	return nil
}

func deletePrefix(v4, v6 *ebpf.Map, prefix netip.Prefix) error {
	m, key := prefixKey(v4, v6, prefix)
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove prefix %s: %w", prefix, err)
	}
	return nil
}

// prefixKey returns the map of the prefix's family and the key in it.
func prefixKey(v4, v6 *ebpf.Map, prefix netip.Prefix) (*ebpf.Map, any) {
	if a := prefix.Addr(); a.Is4() {
		b := a.As4()
		return v4, edgePrefix4{Length: uint32(prefix.Bits()), AddressBe: binary.NativeEndian.Uint32(b[:])}
	}
	key := edgePrefix6{Length: uint32(prefix.Bits())}
	b := prefix.Addr().As16()
	for i := range key.AddressBe {
		key.AddressBe[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return v6, key
}

// WriteKeys writes the keys of a domain, by its index, each in the slot of its
// epoch. Keys of other epochs stay.
func (t *tables) WriteKeys(domain int, keys []cookie.Slot) error {
	if domain < 0 || domain >= MaxDomains {
		return fmt.Errorf("write keys: domain %d", domain)
	}
	indices := make([]uint32, len(keys))
	values := make([]edgeKeySlot, len(keys))
	for i, k := range keys {
		indices[i] = uint32(domain)*t.slots + uint32(k.Epoch)&(t.slots-1)
		values[i] = edgeKeySlot{Epoch: k.Epoch, Hash: uint8(k.Hash), WindowScale: k.WindowScale}
		values[i].Key[0] = binary.LittleEndian.Uint64(k.Key[:8])
		values[i].Key[1] = binary.LittleEndian.Uint64(k.Key[8:])
	}
	defer clear(values)
	if _, err := t.keys.BatchUpdate(indices, values, nil); err != nil {
		return fmt.Errorf("write keys: %w", err)
	}
	return nil
}

// Clock is what the data plane needs to tell an epoch (struct agent_clock).
type Clock struct {
	OffsetNS     int64  // real time less coarse monotonic time
	EpochNS      uint64 // length of an epoch
	LearnUntilNS uint64 // coarse monotonic time
}

// SetClock sets everything; SetOffset alone is what runs all the time.
func (t *tables) SetClock(c Clock) error {
	var v edgeAgentClock
	if err := t.clock.Lookup(uint32(0), &v); err != nil {
		return fmt.Errorf("read clock: %w", err)
	}
	v.OffsetNs, v.EpochNs, v.LearnUntilNs = uint64(c.OffsetNS), c.EpochNS, c.LearnUntilNS
	if err := t.clock.Put(uint32(0), v); err != nil { // the version of the tables stays
		return fmt.Errorf("write clock: %w", err)
	}
	return nil
}

// GetClock returns what is set.
func (t *tables) GetClock() (Clock, error) {
	var v edgeAgentClock
	if err := t.clock.Lookup(uint32(0), &v); err != nil {
		return Clock{}, fmt.Errorf("read clock: %w", err)
	}
	return Clock{OffsetNS: int64(v.OffsetNs), EpochNS: v.EpochNs, LearnUntilNS: v.LearnUntilNs}, nil
}

// SetOffset moves the clock with a single store: a packet sees the old offset
// or the new one.
func (t *tables) SetOffset(offsetNS int64) error {
	memory, err := t.clock.Memory()
	if err != nil {
		return fmt.Errorf("map clock: %w", err)
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(offsetNS))
	if _, err := memory.WriteAt(b[:], 0); err != nil {
		return fmt.Errorf("write clock: %w", err)
	}
	return nil
}

// ServiceVerdicts returns the counts of one service by verdict's number;
// service 0 is what belongs to none.
func (t *tables) ServiceVerdicts(service int) ([]uint64, error) {
	return readVerdicts(t.counters, service)
}

func readVerdicts(counters *ebpf.Map, service int) ([]uint64, error) {
	counts := make([]uint64, len(VerdictNames()))
	perCPU := make([]uint64, ebpf.MustPossibleCPU())
	for v := range counts {
		key := uint32(service)*uint32(edgeVerdictVERDICT_STRIDE) + uint32(v)
		if err := counters.Lookup(key, &perCPU); err != nil {
			return nil, fmt.Errorf("read counters: %w", err)
		}
		for _, n := range perCPU {
			counts[v] += n
		}
	}
	return counts, nil
}

// ErrNoAgent means that nothing is pinned where it was looked for.
var ErrNoAgent = errors.New("no agent is attached")

// ErrOtherVersion means that what is pinned may look as it should and mean
// something else.
var ErrOtherVersion = errors.New("attached by another version: start its daemon anew")

// AgentVerdicts returns, by agent and name, what the agents pinned below root
// have decided, over all services; verdicts that never happened are left out.
// What a daemon has counted of control messages has names of its own.
func AgentVerdicts(root string) (map[string]map[string]uint64, error) {
	all := make(map[string]map[string]uint64)
	for _, agent := range agentNames {
		counters, err := ebpf.LoadPinnedMap(filepath.Join(root, agent, "maps", "counters"), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open counters of %s: %w", agent, err)
		}
		all[agent] = make(map[string]uint64)
		err = addVerdicts(all[agent], counters)
		counters.Close()
		if err == nil {
			err = addControlCounts(all[agent], filepath.Join(root, agent, "maps", controlPin))
		}
		if err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w (looked at %s)", ErrNoAgent, root)
	}
	return all, nil
}

// Verdicts adds up what all agents pinned below root have decided.
func Verdicts(root string) (map[string]uint64, error) {
	agents, err := AgentVerdicts(root)
	if err != nil {
		return nil, err
	}
	total := make(map[string]uint64)
	for _, verdicts := range agents {
		for name, n := range verdicts {
			total[name] += n
		}
	}
	return total, nil
}

// countersBatch is how many counters are read in one system call.
const countersBatch = 4096

func addVerdicts(total map[string]uint64, counters *ebpf.Map) error {
	names := VerdictNames()
	return eachCounter(counters, policy.MaxServices, func(_ uint32, verdict int, count uint64) {
		total[names[verdict]] += count
	})
}

// eachCounter hands out what is not zero, of no service and of those up to a last one.
func eachCounter(counters *ebpf.Map, last uint32, each func(service uint32, verdict int, count uint64)) error {
	var cursor ebpf.MapBatchCursor
	stride, cpus, known := uint32(edgeVerdictVERDICT_STRIDE), ebpf.MustPossibleCPU(), len(VerdictNames())
	keys, perCPU := make([]uint32, countersBatch), make([]uint64, countersBatch*cpus)
	for {
		n, err := counters.BatchLookup(&cursor, keys, perCPU, nil)
		for i, key := range keys[:n] {
			var count uint64
			for _, one := range perCPU[i*cpus : (i+1)*cpus] {
				count += one
			}
			verdict := int(key % stride)
			if count > 0 && verdict < known && key/stride <= last { // another version may have more
				each(key/stride, verdict, count)
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) || n > 0 && keys[n-1]/stride > last {
			return nil // the end
		}
		if err != nil {
			return fmt.Errorf("read counters: %w", err)
		}
	}
}
