package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smartcookie/test/wire"
)

// marked are all marks in the kernel.
func (l *Lists) marked(t testing.TB) []byte {
	t.Helper()
	memory, err := l.marks.Memory()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]byte, 8*markWords)
	if _, err := memory.ReadAt(all, 0); err != nil {
		t.Fatal(err)
	}
	return all
}

// mustMark says whether the marks are those of just these prefixes.
func (l *Lists) mustMark(t testing.TB, what string, all ...netip.Prefix) {
	t.Helper()
	want := markSet{bytes: make([]byte, 8*markWords)}
	for _, p := range all {
		want.add(p)
	}
	if !bytes.Equal(l.marked(t), want.bytes) {
		t.Errorf("%s: other marks than those of %v", what, all)
	}
}

func (l *Lists) mustSweep(t testing.TB, want int) {
	t.Helper()
	if n, err := l.Sweep(); err != nil || n != want {
		t.Errorf("%d removed, %v; want %d", n, err, want)
	}
}

func isMarked(set []byte, a netip.Addr) bool {
	found := false
	one := func(p netip.Prefix) {
		all := true // the bits and their kind
		marksOf(p, func(word uint32, bits uint64) {
			all = all && binary.NativeEndian.Uint64(set[8*word:])&bits == bits
		})
		found = found || all
	}
	if a.Is4() {
		one(netip.PrefixFrom(a, 24).Masked())
		one(netip.PrefixFrom(a, 32))
		return found
	}
	for length := 0; length <= 64; length += 16 {
		one(netip.PrefixFrom(a, length).Masked())
	}
	return found
}

func randomAddress(random *rand.Rand, v6 bool) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], random.Uint64())
	binary.BigEndian.PutUint64(b[8:], random.Uint64())
	if v6 {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:4]))
}

// lastOf is the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b) // it has an address's length
	return last
}

func sentBy(syn wire.Packet, a netip.Addr) wire.Packet {
	return with(syn, func(p *wire.Packet) { p.Source = netip.AddrPortFrom(a, 40000) })
}

// The program looks where the daemon and commands mark, for each length there is.
func TestPrefixOfAnyLengthIsFoundByItsMarks(t *testing.T) {
	e, lists := listed(t)
	random := newRandom(t)
	for _, syn := range families() {
		whole := syn.Source.Addr().BitLen()
		for length := 0; length <= whole; length++ {
			a := randomAddress(random, whole == 128)
			prefix := netip.PrefixFrom(a, length).Masked()
			lists.mustAdd(t, Deny, 0, prefix.String())
			for _, source := range []netip.Addr{a, prefix.Addr(), lastOf(prefix)} {
				e.want(fmt.Sprintf("%s, of %s", source, prefix), sentBy(syn, source), "drop_denied")
			}
			lists.mustMark(t, "added", prefix)
			lists.mustRemove(t, Deny, prefix.String(), true)
			lists.mustSweep(t, 0)
			lists.mustMark(t, "removed")
		}
	}
}

// Each kind of marks is looked at beside all others.
func TestPrefixesOfAllLengthsAreFoundTogether(t *testing.T) {
	e, lists := listed(t)
	random := newRandom(t)
	for _, syn := range families() {
		whole := syn.Source.Addr().BitLen()
		var all []string
		for length := whole / 16; length <= whole; length++ {
			all = append(all, netip.PrefixFrom(randomAddress(random, whole == 128), length).Masked().String())
		}
		lists.mustAdd(t, Deny, 0, all...)
		for _, prefix := range all {
			e.want(prefix, sentBy(syn, lastOf(netip.MustParsePrefix(prefix))), "drop_denied")
		}
	}
}

// What has no mark is not looked up: a prefix that got into a trie without one is
// not found, and only by its own marks.
func TestUnmarkedSourceIsNotLookedUp(t *testing.T) {
	e, lists := listed(t)
	lists.mustAdd(t, Deny, 0, "10.0.0.0/8", "10.0.0.1/32", "2001:db9::/32", "2001:db9::/48", "2001:db9::/64")
	for _, test := range []struct{ syn, marked wire.Packet }{
		{syn4(""), from(syn4(""), "10.1.2.3")}, {syn6(""), from(syn6(""), "2001:db9::1")},
	} {
		whole := netip.PrefixFrom(test.syn.Source.Addr(), test.syn.Source.Addr().BitLen())
		if err := putPrefix(lists.tries[Deny][0], lists.tries[Deny][1], whole, edgeListed{Length: uint8(whole.Bits())}); err != nil {
			t.Fatal(err)
		}
		e.want("not marked", test.syn, "answer_syn")
		e.want("another, that is", test.marked, "drop_denied")
		if err := lists.mark([]netip.Prefix{whole}); err != nil {
			t.Fatal(err)
		}
		e.want("marked", test.syn, "drop_denied")
	}
}

// All bits make a mark: a source that meets some of another's is not looked up.
func TestSourceWithSomeBitsOfAMarkIsNotLookedUp(t *testing.T) {
	e, lists := listed(t)
	listed := netip.MustParsePrefix("192.0.2.1/32")
	similar := listed
	for !sharesSomeBits(listed, similar) {
		similar = netip.PrefixFrom(similar.Addr().Next(), 32)
	}
	lists.mustAdd(t, Deny, 0, listed.String())
	if err := putPrefix(lists.tries[Deny][0], lists.tries[Deny][1], similar, edgeListed{Length: 32}); err != nil {
		t.Fatal(err)
	}
	e.want(similar.String(), sentBy(syn4(""), similar.Addr()), "answer_syn")
}

// sharesSomeBits says whether two addresses are marked in one word, by bits of which
// some are the same.
func sharesSomeBits(a, b netip.Prefix) (shares bool) {
	marksOf(a, func(word uint32, bits uint64) {
		marksOf(b, func(w uint32, other uint64) {
			shares = shares || word == w && word != markKinds && bits&other != 0 && bits != other && bits&other != other
		})
	})
	return shares
}

// What finds no room in the trie has been marked: the mark comes first, or a packet
// between the two would not find what is on the list.
func TestPrefixIsMarkedBeforeATrieHasIt(t *testing.T) {
	lists := emptyLists(t, 1)
	all := prefixes("192.0.2.0/24", "198.51.100.0/24", "203.0.113.1/32", "2001:db8::/32")
	if err := lists.Add(Deny, all, 0); !strings.Contains(fmt.Sprint(err), "deny is full") {
		t.Fatal(err)
	}
	lists.mustMark(t, "full", all...)
	lists = emptyLists(t, 1)
	if err := lists.configure(Deny, all); !strings.Contains(fmt.Sprint(err), "deny is full") {
		t.Fatal(err)
	}
	lists.mustMark(t, "configured, full", all...)
}

// And what cannot be marked gets into no trie.
func TestPrefixThatCannotBeMarkedIsNotListed(t *testing.T) {
	lists := emptyLists(t, 10)
	deaf, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: markWords}) // cannot be mapped
	if err != nil {
		t.Fatal(err)
	}
	lists.marks.Close()
	lists.marks = deaf
	all := prefixes("192.0.2.0/24", "203.0.113.1/32", "2001:db8::/32")
	if err := lists.Add(Deny, all, 0); err == nil {
		t.Error("added without marks")
	}
	if err := lists.configure(Deny, all); err == nil {
		t.Error("configured without marks")
	}
	lists.mustHave(t, Deny)
}

// A mark is no coarser than it need be: who is next to what is listed has none.
func TestNeighboursAreNotMarked(t *testing.T) {
	for prefix, neighbours := range map[string][]string{
		"192.0.2.1/32":       {"192.0.2.0", "192.0.2.2"},
		"192.0.2.128/25":     {"192.0.1.255", "192.0.3.0"},
		"192.0.2.0/24":       {"192.0.1.255", "192.0.3.0"},
		"192.0.2.0/23":       {"192.0.1.255", "192.0.4.0"},
		"192.0.0.0/18":       {"191.255.255.255", "192.0.64.0"},
		"192.0.0.0/16":       {"191.255.255.255", "192.1.0.0"},
		"10.0.0.0/8":         {"9.255.255.255", "11.0.0.0"},
		"2001:db8:0:1::/64":  {"2001:db8::", "2001:db8:0:2::"},
		"2001:db8:0:1::1/80": {"2001:db8::", "2001:db8:0:2::"},
		"2001:db8:1::/48":    {"2001:db8::", "2001:db8:2::"},
		"2001:db8::/32":      {"2001:db7::", "2001:db9::"},
		"2001::/16":          {"2000::", "2002::"},
	} {
		set := markSet{bytes: make([]byte, 8*markWords)}
		set.add(netip.MustParsePrefix(prefix).Masked())
		for _, n := range neighbours {
			if isMarked(set.bytes, netip.MustParseAddr(n)) {
				t.Errorf("%s is marked by %s", n, prefix)
			}
		}
	}
}

func TestAllowIsNotMarked(t *testing.T) {
	lists := emptyLists(t, 10)
	lists.mustAdd(t, Allow, 0, "192.0.2.0/24", "2001:db8::/32")
	lists.mustMark(t, "allow")
	lists.mustSweep(t, 0)
	lists.mustMark(t, "allow, swept")
}

func TestSweepKeepsTheMarksOfWhatIsOnTheListAlone(t *testing.T) {
	e, lists := listed(t)
	stay := []string{"10.0.0.0/9", "172.16.0.0/24", "192.0.2.128/25", "198.51.100.1/32", "2001:db8:1::/48", "2001:db8:2:1::/64", "2001:db9::/32", "2001:db8::1/128"}
	removed := []string{"10.128.0.0/9", "192.0.3.0/25", "198.51.100.2/32", "2001:db8:3::/48", "::/0"}
	expired := []string{"172.16.1.0/24", "198.51.100.3/32", "2001:db8:4::/48"}
	lists.mustAdd(t, Deny, 0, stay...)
	lists.mustAdd(t, Deny, 0, removed...)
	lists.mustAdd(t, Deny, time.Hour, expired...)
	for _, p := range expired {
		e.expire(lists, Deny, p)
	}
	for _, p := range removed {
		lists.mustRemove(t, Deny, p, true)
	}
	lists.mustSweep(t, len(expired))
	lists.mustMark(t, "swept", prefixes(stay...)...)
	for _, p := range prefixes(stay...) {
		syn := families()[0]
		if p.Addr().Is6() {
			syn = families()[1]
		}
		e.want(p.String(), sentBy(syn, lastOf(p)), "drop_denied")
	}
}

// Who writes between a sweep's look at the list and its end keeps all marks; the
// next sweep, which nobody disturbs, does the work.
func TestSweepForgetsNoMarkOfWhoWritesMeanwhile(t *testing.T) {
	lists := emptyLists(t, 10)
	lists.mustAdd(t, Deny, 0, "192.0.2.1/32", "198.51.100.0/24")
	lists.mustRemove(t, Deny, "198.51.100.0/24", true)
	needed, err := lists.marksToFind()
	if err != nil || needed.bytes == nil {
		t.Fatalf("%v, nothing to find: %v", err, needed.bytes == nil)
	}
	if err := lists.walk(Deny, func(p netip.Prefix, _ edgeListed) { needed.add(p) }); err != nil {
		t.Fatal(err)
	}
	lists.mustAdd(t, Deny, 0, "203.0.113.0/24", "2001:db8::/32")
	if err := lists.keepMarks(needed); err != nil {
		t.Fatal(err)
	}
	lists.mustMark(t, "written meanwhile", prefixes("192.0.2.1/32", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")...)
	lists.mustSweep(t, 0)
	lists.mustMark(t, "swept", prefixes("192.0.2.1/32", "203.0.113.0/24", "2001:db8::/32")...)
	if needed, err = lists.marksToFind(); err != nil || needed.bytes != nil {
		t.Errorf("%v; nobody has written, and a sweep looks for marks again", err)
	}
}

// A daemon that starts may share its maps with commands: it marks and removes no
// more than they do while another writes.
func TestDaemonThatConfiguresListsWaitsForACommand(t *testing.T) {
	lists := emptyLists(t, 10)
	_, pins := ownPins(t, EdgeAgent)
	lists.lock = pins.mapPath("")
	command, err := lockDirectory(lists.lock)
	if err != nil {
		t.Fatal(err)
	}
	defer command.Close()
	configured := make(chan error, 1)
	go func() { configured <- lists.configure(Deny, prefixes("192.0.2.1/32")) }()
	eventually(t, "the daemon waits", func() bool {
		if len(configured) > 0 {
			t.Fatal("the daemon writes while a command has the lists")
		}
		return somebodyWaits(t)
	})
	lists.mustMark(t, "the daemon waits")
	command.Close()
	if err := <-configured; err != nil {
		t.Fatal(err)
	}
	lists.mustMark(t, "the daemon has written", prefixes("192.0.2.1/32")...)
}

// somebodyWaits says whether a thread of this process waits for a lock.
func somebodyWaits(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "->" && f[2] == "FLOCK" && f[5] == fmt.Sprint(os.Getpid()) {
			return true
		}
	}
	return false
}

func TestEdgeWithPinsKeepsOutWritersFromTheStart(t *testing.T) {
	_, pins := ownPins(t, EdgeAgent)
	e := loadedEdgeAt(t, pins)
	if e.lists.lock != pins.mapPath("") {
		t.Errorf("the lists' lock is %q", e.lists.lock)
	}
}

// A list without its marks, or the other way round, is no list.
func TestListsAreAdoptedWithTheirMarksOrNotAtAll(t *testing.T) {
	lists := emptyLists(t, uint32(edgeSourceLimitsLISTED_MAX))
	root, pins := ownPins(t, EdgeAgent)
	if err := errors.Join(lists.pin(pins), pins.pinContract()); err != nil {
		t.Fatal(err)
	}
	spec, err := loadEdge()
	if err != nil {
		t.Fatal(err)
	}
	found, ok := pins.reusable(spec, listGroup)
	if !ok {
		t.Fatal("complete lists are not adopted")
	}
	for _, m := range found {
		m.Close()
	}
	command, err := OpenLists(root)
	if err != nil {
		t.Fatal(err)
	}
	command.mustAdd(t, Deny, 0, "192.0.2.1/32", "2001:db8::/32")
	command.Close()
	lists.mustMark(t, "by a command", prefixes("192.0.2.1/32", "2001:db8::/32")...)
	if err := unix.Unlink(pins.mapPath(marksPin)); err != nil {
		t.Fatal(err)
	}
	if _, ok := pins.reusable(spec, listGroup); ok {
		t.Error("lists without their marks are adopted")
	}
	if l, err := OpenLists(root); err == nil {
		l.Close()
		t.Error("a command writes to lists without marks")
	}
}

// The marks are worth it: beside a list of a million, half of each family, few sources
// that are not on it look as if they could be.
func TestFewUnlistedSourcesAreMarked(t *testing.T) {
	const perFamily, tries = 500_000, 100_000
	random := newRandom(t)
	set := markSet{bytes: make([]byte, 8*markWords)}
	for range perFamily {
		set.add(netip.PrefixFrom(randomAddress(random, false), 32))
		set.add(netip.PrefixFrom(randomAddress(random, true), 64).Masked())
	}
	for _, v6 := range []bool{false, true} {
		marked := 0
		for range tries {
			if isMarked(set.bytes, randomAddress(random, v6)) {
				marked++
			}
		}
		if marked > tries/200 {
			t.Errorf("IPv6 %v: %d of %d sources are marked", v6, marked, tries)
		}
	}
}
