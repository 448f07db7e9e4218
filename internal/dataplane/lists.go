package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// List is one of the lists of sources.
type List string

// The lists.
const (
	Deny  List = "deny"
	Allow List = "allow"
)

// statePin is the variable sources: the BPF file system takes no dots.
const statePin = "sources"

// marksPin is the map that says where nothing is denied.
const marksPin = "deny_marks"

// listGroup is what has been said at run time; it outlives a daemon.
var listGroup = []string{"deny4", "deny6", "allow4", "allow6", marksPin}

// Lists are an edge's lists of sources, in the kernel: a daemon's or, by their
// pins, a command's.
type Lists struct {
	tries map[List][2]*ebpf.Map // IPv4, IPv6
	marks *ebpf.Map             // where the deny list may have something
	state *ebpf.Map
	swept uint32   // version of the lists of which every mark is known to be needed
	lock  string   // directory whose lock keeps writers apart; none: nobody else knows the maps
	held  *os.File // that lock, of a command; none: it is taken for each write
	occupancies
}

// Listed is a prefix on a list.
type Listed struct {
	Prefix     netip.Prefix
	Left       time.Duration // until it expires; 0: never
	Configured bool          // it is in the daemon's configuration
}

func listsOf(o *edgeObjects, state *ebpf.Map) *Lists {
	return &Lists{
		tries: map[List][2]*ebpf.Map{Deny: {o.Deny4, o.Deny6}, Allow: {o.Allow4, o.Allow6}},
		marks: o.DenyMarks, state: state,
	}
}

// OpenLists opens the lists of the edge that is pinned below root. No daemon
// need run. Until Close nobody else writes, and no daemon can put others in
// their place, to which what is written would mean nothing.
func OpenLists(root string) (*Lists, error) {
	pins := &Pins{path: filepath.Join(root, EdgeAgent)}
	l := &Lists{tries: make(map[List][2]*ebpf.Map), lock: filepath.Join(pins.path, "maps")}
	var err error
	if l.held, err = lockDirectory(l.lock); err == nil {
		err = l.open(pins)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w as an edge or host (looked at %s)", ErrNoAgent, root)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Lists) open(pins *Pins) error {
	open := func(name string) (*ebpf.Map, error) {
		m, err := ebpf.LoadPinnedMap(pins.mapPath(name), nil)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
		return m, nil
	}
	for _, list := range []List{Deny, Allow} {
		var pair [2]*ebpf.Map
		for i, family := range []string{"4", "6"} {
			m, err := open(string(list) + family)
			if err != nil {
				return err
			}
			pair[i] = m
			l.tries[list] = pair
		}
	}
	var err error
	if l.marks, err = open(marksPin); err != nil {
		return err
	}
	if l.state, err = open(statePin); err != nil {
		return err
	}
	if !pins.sameContract() {
		return fmt.Errorf("the %s agent was %w", EdgeAgent, ErrOtherVersion)
	}
	return l.stillThere()
}

// stillThere says whether the locked directory is the one with the pins: an agent
// may have been detached and attached anew.
func (l *Lists) stillThere() error {
	now, err := os.Stat(l.lock)
	if err != nil {
		return fmt.Errorf("open lists: %w", err)
	}
	locked, err := l.held.Stat()
	if err != nil {
		return fmt.Errorf("open lists: %w", err)
	}
	if !os.SameFile(now, locked) {
		return errors.New("open lists: the agent was attached anew meanwhile: try again")
	}
	return nil
}

// Close lets go of the maps and lets others write.
func (l *Lists) Close() {
	for _, pair := range l.tries {
		for _, m := range pair {
			m.Close()
		}
	}
	l.marks.Close()
	l.state.Close()
	if l.held != nil {
		l.held.Close()
	}
}

// pin leaves the lists to the next daemon and to commands. From now on they
// may write, too.
func (l *Lists) pin(pins *Pins) error {
	l.lock = filepath.Join(pins.path, "maps")
	release, err := l.exclusive()
	if err != nil {
		return err
	}
	defer release()
	all := map[string]*ebpf.Map{marksPin: l.marks, statePin: l.state}
	for list, pair := range l.tries {
		all[string(list)+"4"], all[string(list)+"6"] = pair[0], pair[1]
	}
	for name, m := range all {
		if err := pins.pinMap(name, m); err != nil {
			return err
		}
	}
	return l.heedDeny() // a command may have used the old variable until now
}

// exclusive keeps other writers out until it is released.
func (l *Lists) exclusive() (release func(), err error) {
	if l.lock == "" || l.held != nil {
		return func() {}, nil
	}
	dir, err := lockDirectory(l.lock)
	if err != nil {
		return nil, err
	}
	return func() { dir.Close() }, nil
}

// lockDirectory waits for the lock of the lists; closing the file gives it up.
func lockDirectory(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open lists: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return dir, nil
}

// Add puts prefixes on a list, for so long, or for good with 0. One that is
// there already gets the new time.
func (l *Lists) Add(list List, prefixes []netip.Prefix, lasts time.Duration) error {
	release, err := l.exclusive()
	if err != nil {
		return err
	}
	defer release()
	var until uint64
	if lasts > 0 {
		now, err := coarseNow()
		if err != nil {
			return err
		}
		until = now + uint64(lasts)
	}
	// Some of them may be there when one finds no room.
	return errors.Join(l.put(list, prefixes, until, edgeListedOriginLISTED_HAND), l.heedDeny())
}

// Remove takes a prefix off a list; false: it was not there.
func (l *Lists) Remove(list List, prefix netip.Prefix) (bool, error) {
	release, err := l.exclusive()
	if err != nil {
		return false, err
	}
	defer release()
	m, key := prefixKey(l.tries[list][0], l.tries[list][1], prefix)
	if err := m.Delete(key); errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("remove prefix %s: %w", prefix, err)
	}
	return true, l.heedDeny()
}

// All lists what is in force, in the order of the tries.
func (l *Lists) All(list List, each func(Listed)) error {
	now, err := coarseNow()
	if err != nil {
		return err
	}
	return l.walk(list, func(p netip.Prefix, v edgeListed) {
		if !v.expired(now) {
			each(Listed{Prefix: p, Left: v.left(now), Configured: v.Origin == uint8(edgeListedOriginLISTED_FILE)})
		}
	})
}

// Sweep removes what has expired, and says how much.
func (l *Lists) Sweep() (removed int, err error) {
	now, err := coarseNow()
	if err != nil {
		return 0, err
	}
	for _, list := range []List{Deny, Allow} {
		n, err := l.sweep(list, now)
		removed += n
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

func (l *Lists) sweep(list List, now uint64) (removed int, err error) {
	var gone []netip.Prefix
	needed := &markSet{}
	if list == Deny {
		if needed, err = l.marksToFind(); err != nil {
			return 0, err
		}
	}
	left := map[bool]int{} // of IPv4, and of IPv6
	if err := l.walk(list, func(p netip.Prefix, v edgeListed) {
		if v.expired(now) {
			gone = append(gone, p)
		} else {
			needed.add(p)
			left[p.Addr().Is4()]++
		}
	}); err != nil {
		return 0, err
	}
	l.note(string(list)+"4", left[true], l.tries[list][0].MaxEntries())
	l.note(string(list)+"6", left[false], l.tries[list][1].MaxEntries())
	if err := l.keepMarks(needed); err != nil {
		return 0, err
	}
	return l.removeExpired(list, gone, now)
}

// removeExpired removes what has not been put on the list anew since it was read.
// Others may write between batches.
func (l *Lists) removeExpired(list List, prefixes []netip.Prefix, now uint64) (removed int, err error) {
	for len(prefixes) > 0 {
		batch := prefixes[:min(listBatch, len(prefixes))]
		n, err := l.removeBatch(list, batch, now)
		removed += n
		if err != nil {
			return removed, err
		}
		prefixes = prefixes[len(batch):]
	}
	return removed, nil
}

func (l *Lists) removeBatch(list List, prefixes []netip.Prefix, now uint64) (removed int, err error) {
	release, err := l.exclusive()
	if err != nil {
		return 0, err
	}
	defer release()
	for _, prefix := range prefixes {
		v, ok, err := l.exactly(list, prefix)
		if err != nil {
			return removed, err
		}
		if !ok || !v.expired(now) {
			continue
		}
		if err := deletePrefix(l.tries[list][0], l.tries[list][1], prefix); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, l.heedDeny()
}

// exactly looks up a prefix itself, not one around it.
func (l *Lists) exactly(list List, prefix netip.Prefix) (v edgeListed, ok bool, err error) {
	m, key := prefixKey(l.tries[list][0], l.tries[list][1], prefix)
	err = m.Lookup(key, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return v, false, nil
	}
	if err != nil {
		return v, false, fmt.Errorf("look up %s: %w", prefix, err)
	}
	return v, int(v.Length) == prefix.Bits(), nil
}

// configure makes the list have what the configuration says, beside what
// commands have added.
func (l *Lists) configure(list List, wanted []netip.Prefix) error {
	release, err := l.exclusive()
	if err != nil {
		return err
	}
	defer release()
	keep := make(map[netip.Prefix]bool, len(wanted))
	for _, p := range wanted {
		keep[p] = true
	}
	var gone []netip.Prefix
	if err := l.walk(list, func(p netip.Prefix, v edgeListed) {
		if v.Origin == uint8(edgeListedOriginLISTED_FILE) && !keep[p] {
			gone = append(gone, p)
		}
	}); err != nil {
		return err
	}
	for _, p := range gone {
		if err := deletePrefix(l.tries[list][0], l.tries[list][1], p); err != nil {
			return err
		}
	}
	return l.put(list, wanted, 0, edgeListedOriginLISTED_FILE)
}

// heedDeny has the programs look at the list exactly while something is on it,
// and forget what they remember of it.
func (l *Lists) heedDeny() error {
	state, err := l.readState()
	if err != nil {
		return err
	}
	return l.refreshState(state.Checks&uint32(edgeSourceCheckSOURCES_PLACED) != 0)
}

func (l *Lists) readState() (state edgeSourceState, err error) {
	if err := l.state.Lookup(uint32(0), &state); err != nil {
		return state, fmt.Errorf("read %s: %w", statePin, err)
	}
	return state, nil
}

func (l *Lists) refreshState(placed bool) error {
	state, err := l.readState()
	if err != nil {
		return err
	}
	state.Checks = 0
	if state.Version++; state.Version == 0 {
		state.Version++
	}
	if placed {
		state.Checks |= uint32(edgeSourceCheckSOURCES_PLACED)
	}
	for _, m := range l.tries[Deny] {
		some, err := anyKey(m)
		if err != nil {
			return err
		}
		if some {
			state.Checks |= uint32(edgeSourceCheckSOURCES_DENIED)
		}
	}
	if err := l.state.Put(uint32(0), state); err != nil {
		return fmt.Errorf("write %s: %w", statePin, err)
	}
	return nil
}

func anyKey(m *ebpf.Map) (bool, error) {
	err := m.NextKey(nil, make([]byte, m.KeySize()))
	if err == nil {
		return true, nil
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return false, fmt.Errorf("look for a prefix: %w", err)
}

// listBatch is how many prefixes go in one system call.
const listBatch = 4096

// put writes prefixes, in batches of each family.
func (l *Lists) put(list List, prefixes []netip.Prefix, until uint64, origin edgeListedOrigin) error {
	if list == Deny {
		if err := l.mark(prefixes); err != nil {
			return err
		}
	}
	var four []edgePrefix4
	var six []edgePrefix6
	for _, p := range prefixes {
		switch _, key := prefixKey(nil, nil, p); k := key.(type) {
		case edgePrefix4:
			four = append(four, k)
		case edgePrefix6:
			six = append(six, k)
		}
	}
	value := func(length uint32) edgeListed {
		return edgeListed{UntilNs: until, Length: uint8(length), Origin: uint8(origin)}
	}
	err := putListed(l.tries[list][0], four, func(k edgePrefix4) edgeListed { return value(k.Length) })
	if err == nil {
		err = putListed(l.tries[list][1], six, func(k edgePrefix6) edgeListed { return value(k.Length) })
	}
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%s is full: at most %d prefixes of a family", list, edgeSourceLimitsLISTED_MAX)
	}
	return err
}

func putListed[K any](m *ebpf.Map, keys []K, value func(K) edgeListed) error {
	for len(keys) > 0 {
		batch := keys[:min(listBatch, len(keys))]
		values := make([]edgeListed, len(batch))
		for i, k := range batch {
			values[i] = value(k)
		}
		if _, err := m.BatchUpdate(batch, values, nil); err != nil {
			return fmt.Errorf("write prefixes: %w", err)
		}
		keys = keys[len(batch):]
	}
	return nil
}

// walk goes over both families. What is changed meanwhile it may miss or see.
func (l *Lists) walk(list List, each func(netip.Prefix, edgeListed)) error {
	err := walkListed(l.tries[list][0], func(k edgePrefix4, v edgeListed) {
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], k.AddressBe)
		each(netip.PrefixFrom(netip.AddrFrom4(b), int(k.Length)), v)
	})
	if err != nil {
		return err
	}
	return walkListed(l.tries[list][1], func(k edgePrefix6, v edgeListed) {
		var b [16]byte
		for i, word := range k.AddressBe {
			binary.NativeEndian.PutUint32(b[4*i:], word)
		}
		each(netip.PrefixFrom(netip.AddrFrom16(b), int(k.Length)), v)
	})
}

func walkListed[K any](m *ebpf.Map, each func(K, edgeListed)) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, listBatch), make([]edgeListed, listBatch)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			each(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read prefixes: %w", err)
		}
	}
}

func (v *edgeListed) expired(now uint64) bool { return v.UntilNs != 0 && v.UntilNs <= now }

func (v *edgeListed) left(now uint64) time.Duration {
	if v.UntilNs == 0 {
		return 0
	}
	return time.Duration(v.UntilNs - now)
}
