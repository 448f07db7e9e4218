package dataplane

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// listed is an edge and its lists.
func listed(t testing.TB, change ...func(*EdgeConfig)) (edgeAgent, *Lists) {
	t.Helper()
	e := loadedEdge(t, change...)
	return agentOf(t, e), e.lists
}

func (l *Lists) mustAdd(t testing.TB, list List, lasts time.Duration, all ...string) {
	t.Helper()
	if err := l.Add(list, prefixes(all...), lasts); err != nil {
		t.Fatal(err)
	}
}

func (l *Lists) mustRemove(t testing.TB, list List, prefix string, want bool) {
	t.Helper()
	was, err := l.Remove(list, netip.MustParsePrefix(prefix))
	if err != nil || was != want {
		t.Errorf("remove %s: %v, %v", prefix, was, err)
	}
}

// expire makes a prefix's time be over, on the list and for who remembers it. No
// writer has been there: the version stays.
func (e edgeAgent) expire(l *Lists, list List, prefix string) {
	e.t.Helper()
	m, key := prefixKey(l.tries[list][0], l.tries[list][1], netip.MustParsePrefix(prefix))
	var v edgeListed
	if err := m.Lookup(key, &v); err != nil {
		e.t.Fatal(err)
	}
	e.passInMemos(v.UntilNs)
	v.UntilNs = 1
	if err := m.Put(key, v); err != nil {
		e.t.Fatal(err)
	}
}

// passInMemos makes what holds until a time hold no longer.
func (e edgeAgent) passInMemos(untilNS uint64) {
	e.t.Helper()
	perCPU := make([]edgeSourceMemo, ebpf.MustPossibleCPU())
	for slot := range e.SourceMemos.MaxEntries() {
		if err := e.SourceMemos.Lookup(slot, perCPU); err != nil {
			e.t.Fatal(err)
		}
		remembered := false
		for cpu := range perCPU {
			if perCPU[cpu].UntilNs == untilNS {
				perCPU[cpu].UntilNs, remembered = 1, true
			}
		}
		if !remembered {
			continue
		}
		if err := e.SourceMemos.Put(slot, perCPU); err != nil {
			e.t.Fatal(err)
		}
	}
}

func (l *Lists) mustHave(t testing.TB, list List, want ...string) {
	t.Helper()
	var got []string
	if err := l.All(list, func(e Listed) { got = append(got, e.Prefix.String()) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("%s has %v, want %v", list, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s has %v, want %v", list, got, want)
		}
	}
}

func TestDeniedSourceIsLostWhateverItSends(t *testing.T) {
	e, lists := listed(t)
	for _, family := range []struct {
		syn            wire.Packet
		prefix, around string
	}{
		{syn4(linuxOptions), "192.0.2.1/32", "192.0.0.0/8"},
		{syn6(windowsOptions), "2001:db8:c::1/128", "2001:d00::/24"},
	} {
		family.around = netip.MustParsePrefix(family.around).Masked().String()
		e.forget()
		syn := family.syn
		ack := e.handshake(syn)
		e.want("not denied yet", ack, "pass_cookie")
		for _, prefix := range []string{family.prefix, family.around} {
			lists.mustAdd(t, Deny, 0, prefix)
			for name, p := range map[string]wire.Packet{
				"verified": ack, "SYN": syn, "RST": flagged(ack, wire.RST), "tagged": tagged(ack, wire.Tag{Type: wire.Customer, ID: 9}),
				"UDP":         with(syn, func(p *wire.Packet) { p.Protocol = wire.UDP }),
				"unprotected": to(syn, netip.AddrPortFrom(otherNetwork(syn.Source.Addr()), 9).String()),
				"other port":  to(syn, netip.AddrPortFrom(syn.To.Addr(), 444).String()),
				"no flag":     flagged(syn, 0),
			} {
				if got := e.outside(p.Frame()); got.verdict != "drop_denied" || got.service != none || got.action != xdpDrop {
					t.Errorf("%s: %s of service %d, action %d", name, got.verdict, got.service, got.action)
				}
			}
			lists.mustRemove(t, Deny, prefix, true)
			lists.mustRemove(t, Deny, prefix, false)
			e.want("no longer denied", ack, "pass_verified")
		}
		lists.mustAdd(t, Deny, 0, family.around)
		arp := syn.Frame()
		binary.BigEndian.PutUint16(arp[12:], 0x0806)
		if got := e.outside(arp); got.verdict != "pass_other" {
			t.Errorf("ARP: %s", got.verdict)
		}
		if got := e.outside(syn.Frame()[:20]); got.verdict != "pass_other" {
			t.Errorf("a frame without addresses: %s", got.verdict)
		}
		if got := e.inside(with(syn, func(p *wire.Packet) { p.Source, p.To = p.To, p.Source }).Frame()); got.verdict != "pass_inside" {
			t.Errorf("to a denied address, from inside: %s", got.verdict)
		}
		lists.mustRemove(t, Deny, family.around, true)
	}
}

func TestAllowExemptsFromDenyButNotFromTheCookie(t *testing.T) {
	e, lists := listed(t)
	lists.mustAdd(t, Deny, 0, "192.0.2.0/24", "192.0.2.1/32", "2001:db8:c::/48")
	lists.mustAdd(t, Allow, 0, "192.0.2.1/32", "2001:db8::/32")
	for _, syn := range families() {
		e.want("SYN", syn, "answer_syn")
		e.want("ACK", flagged(syn, wire.ACK), "drop_bad_cookie")
	}
	e.want("a neighbour", from(syn4(""), "192.0.2.2"), "drop_denied")
	lists.mustRemove(t, Allow, "192.0.2.1/32", true)
	e.want("no longer allowed", syn4(""), "drop_denied")
}

func TestAllowExemptsFromLimits(t *testing.T) {
	t.Run("answers", func(t *testing.T) {
		e, lists := listed(t, limitedAnswers(1))
		lists.mustAdd(t, Allow, 0, "192.0.2.0/24")
		for range 200 {
			e.want("SYN", syn4(""), "answer_syn")
		}
	})
	t.Run("packets", func(t *testing.T) {
		e, lists := listed(t, careful(func(s *policy.Service) { s.PacketsPerFlow = 1 }))
		ack := e.handshake(syn6(""))
		e.want("first", ack, "pass_cookie")
		e.spendAll()
		lists.mustAdd(t, Allow, 0, "2001:db8:c::1/128")
		for range 100 {
			e.want("data", ack, "pass_verified")
		}
		lists.mustRemove(t, Allow, "2001:db8:c::1/128", true)
		e.want("no longer allowed", ack, "drop_flow_budget")
	})
}

func TestExpiredPrefixIsNoneAtOnce(t *testing.T) {
	e, lists := listed(t)
	for _, test := range []struct {
		syn            wire.Packet
		whole, network string
	}{
		{syn4(""), "192.0.2.1/32", "192.0.2.0/24"}, {syn6(""), "2001:db8:c::1/128", "2001:db8:c::/64"},
	} {
		lists.mustAdd(t, Deny, time.Hour, test.whole)
		e.want("in time", test.syn, "drop_denied")
		e.expire(lists, Deny, test.whole)
		e.want("expired", test.syn, "answer_syn")
		lists.mustAdd(t, Deny, 0, test.network)
		e.want("expired, within one that is not", test.syn, "drop_denied")
		lists.mustAdd(t, Allow, time.Hour, test.whole)
		e.want("allowed in time", test.syn, "answer_syn")
		e.expire(lists, Allow, test.whole)
		e.want("allowed once", test.syn, "drop_denied")
		lists.mustRemove(t, Deny, test.network, true)
	}
	lists.mustHave(t, Deny)
	if n, err := lists.Sweep(); err != nil || n != 4 {
		t.Errorf("%d removed, %v; want 4", n, err)
	}
	lists.mustRemove(t, Deny, "192.0.2.1/32", false)
}

func TestExpiredPrefixesHideNoneOfThoseAround(t *testing.T) {
	e, lists := listed(t)
	lists.mustAdd(t, Deny, 0, "192.0.0.0/16")
	for bits := 32; bits > 33-int(edgeSourceLimitsLISTED_NESTED); bits-- {
		prefix := netip.PrefixFrom(client4.Addr(), bits).Masked().String()
		lists.mustAdd(t, Deny, time.Hour, prefix)
		e.expire(lists, Deny, prefix)
		e.want(prefix, syn4(""), "drop_denied")
	}
}

// The lists change under what is remembered of a source.
func TestWhoIsRememberedIsDeniedAtOnce(t *testing.T) {
	e, lists := listed(t)
	stayOnOneCPU(t)
	lists.mustAdd(t, Deny, 0, "10.0.0.0/8", "2001:db9::/32")
	for _, syn := range families() {
		for round := range 3 {
			prefix := netip.PrefixFrom(syn.Source.Addr(), syn.Source.Addr().BitLen()-round).Masked().String()
			twice := func(what string, p wire.Packet, verdict string) {
				t.Helper()
				e.want(what, p, verdict)
				e.want(what+", remembered", p, verdict)
			}
			twice("not denied", syn, "answer_syn")
			twice("a neighbour", neighbour(syn), "answer_syn")
			lists.mustAdd(t, Deny, time.Hour, prefix)
			twice("denied", syn, "drop_denied")
			lists.mustAdd(t, Allow, 0, prefix)
			twice("allowed", syn, "answer_syn")
			lists.mustRemove(t, Allow, prefix, true)
			twice("no longer allowed", syn, "drop_denied")
			e.expire(lists, Deny, prefix)
			twice("expired", syn, "answer_syn")
			lists.mustAdd(t, Deny, 0, prefix)
			twice("denied again", syn, "drop_denied")
			lists.mustRemove(t, Deny, prefix, true)
		}
	}
	mapped := with(syn6(""), func(p *wire.Packet) { p.Source = netip.MustParseAddrPort("[c000:201::]:40000") })
	e.want("IPv4's", syn4(""), "answer_syn")
	e.want("IPv6's with the same first word", mapped, "answer_syn")
	lists.mustAdd(t, Deny, 0, "c000:201::/128")
	e.want("IPv6's, denied", mapped, "drop_denied")
	e.want("IPv4's, still", syn4(""), "answer_syn")
}

// A long list is walked once for a source, whether it is denied, allowed or
// neither: what is taken off the tries behind a memo's back is not missed.
func TestListsAreWalkedOnceForASource(t *testing.T) {
	e, lists := listed(t)
	stayOnOneCPU(t)
	for _, syn := range families() {
		whole := netip.PrefixFrom(syn.Source.Addr(), syn.Source.Addr().BitLen())
		for _, lasts := range []time.Duration{0, time.Hour} {
			lists.mustAdd(t, Deny, lasts, whole.String())
			e.want("denied", syn, "drop_denied")
			behind(t, lists, Deny, whole)
			e.want("denied, remembered", syn, "drop_denied")
			lists.mustAdd(t, Deny, 0, whole.String())
			lists.mustAdd(t, Allow, lasts, whole.String())
			e.want("allowed", syn, "answer_syn")
			behind(t, lists, Allow, whole)
			e.want("allowed, remembered", syn, "answer_syn")
			if err := lists.heedDeny(); err != nil {
				t.Fatal(err)
			}
			e.want("a new version", syn, "drop_denied")
		}
	}
}

// behind takes a prefix off a list as no writer does: without a word.
func behind(t *testing.T, l *Lists, list List, prefix netip.Prefix) {
	t.Helper()
	if err := deletePrefix(l.tries[list][0], l.tries[list][1], prefix); err != nil {
		t.Fatal(err)
	}
}

// What is remembered holds no longer than the prefix that it comes from, with
// those around it looked at anew then; and no writer is there to say so.
func TestWhatIsRememberedOfASourceExpiresWithItsPrefix(t *testing.T) {
	e, lists := listed(t)
	stayOnOneCPU(t)
	for _, test := range []struct {
		syn                    wire.Packet
		whole, network, around string
	}{
		{syn4(""), "192.0.2.1/32", "192.0.2.0/24", "192.0.0.0/16"},
		{syn6(""), "2001:db8:c::1/128", "2001:db8:c::/64", "2001:db8::/32"},
	} {
		lists.mustAdd(t, Deny, time.Hour, test.around)
		lists.mustAdd(t, Deny, 2*time.Hour, test.network)
		lists.mustAdd(t, Allow, 3*time.Hour, test.network)
		lists.mustAdd(t, Allow, 4*time.Hour, test.whole)
		for _, step := range []struct {
			what   string
			list   List
			prefix string
			then   string
		}{
			{"the one that allows", Allow, test.whole, "answer_syn"},
			{"the other that allows", Allow, test.network, "drop_denied"},
			{"the one that denies", Deny, test.network, "drop_denied"},
			{"the other that denies", Deny, test.around, "answer_syn"},
		} {
			e.expire(lists, step.list, step.prefix)
			for range 2 { // looked up, then remembered
				e.want(step.what+" has expired", test.syn, step.then)
			}
		}
	}
}

// Until the kernel's clock has come to it, and no later.
func TestDenialEndsByTheKernelsClock(t *testing.T) {
	e, lists := listed(t)
	stayOnOneCPU(t)
	now := func() uint64 {
		t.Helper()
		ns, err := coarseNow()
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	const lasts = 100 * time.Millisecond
	latest := now() + uint64(lasts)
	lists.mustAdd(t, Deny, lasts, "192.0.2.1/32")
	var v edgeListed
	if err := lists.tries[Deny][0].Lookup(must4("192.0.2.1/32"), &v); err != nil || v.UntilNs < latest {
		t.Fatalf("until %d, %v; want %d at least", v.UntilNs, err, latest)
	}
	eventually(t, "the denial ends", func() bool {
		before := now()
		got := e.outside(syn4("").Frame()).verdict
		if after := now(); got == "drop_denied" && before >= v.UntilNs || got != "drop_denied" && after < v.UntilNs {
			t.Fatalf("%s between %d and %d, denied until %d", got, before, after, v.UntilNs)
		}
		return got != "drop_denied"
	})
}

func must4(prefix string) any {
	_, key := prefixKey(nil, nil, netip.MustParsePrefix(prefix))
	return key
}

// What has got onto a list before it was full is heeded like the rest.
func TestWhatFitsOnAFullListIsHeeded(t *testing.T) {
	lists := emptyLists(t, 2)
	for _, list := range []List{Deny, Allow} {
		before, err := lists.readState()
		if err != nil {
			t.Fatal(err)
		}
		err = lists.Add(list, prefixes("192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32"), 0)
		if err == nil || !strings.Contains(err.Error(), string(list)+" is full") {
			t.Errorf("%s: %v", list, err)
		}
		after, err := lists.readState()
		if err != nil || after.Version == before.Version || after.Checks != uint32(edgeSourceCheckSOURCES_DENIED) {
			t.Errorf("%s: %+v, %v; before %+v", list, after, err, before)
		}
	}
}

func TestSweepSparesWhatIsAddedAnew(t *testing.T) {
	e, lists := listed(t)
	lists.mustAdd(t, Deny, time.Hour, "192.0.2.1/32")
	now, err := coarseNow()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := lists.removeExpired(Deny, prefixes("192.0.2.1/32", "192.0.2.0/24"), now); err != nil || n != 0 {
		t.Errorf("%d removed, %v", n, err)
	}
	e.want("still denied", syn4(""), "drop_denied")
}

func TestConfiguredPrefixesComeAndGoAndThoseOfCommandsStay(t *testing.T) {
	_, lists := listed(t)
	lists.mustAdd(t, Deny, 0, "192.0.2.1/32")
	for _, step := range []struct{ configured, have []string }{
		{[]string{"10.0.0.0/8", "2001:db8::/32"}, []string{"10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"}},
		{[]string{"10.0.0.0/9"}, []string{"10.0.0.0/9", "192.0.2.1/32"}},
		{nil, []string{"192.0.2.1/32"}},
	} {
		if err := lists.configure(Deny, prefixes(step.configured...)); err != nil {
			t.Fatal(err)
		}
		lists.mustHave(t, Deny, step.have...)
	}
}

func TestProgramsLookAtDenyOnlyWhileSomethingIsOnIt(t *testing.T) {
	_, lists := listed(t)
	want := func(what string, checks uint32) {
		t.Helper()
		if got, err := lists.readState(); err != nil || got.Checks != checks || got.Version == 0 {
			t.Errorf("%s: %+v, %v; want %d", what, got, err, checks)
		}
	}
	want("empty", 0)
	lists.mustAdd(t, Allow, 0, "10.0.0.0/8")
	want("only allow", 0)
	lists.mustAdd(t, Deny, 0, "2001:db8::/32")
	want("IPv6", uint32(edgeSourceCheckSOURCES_DENIED))
	lists.mustAdd(t, Deny, 0, "10.0.0.0/8")
	lists.mustRemove(t, Deny, "2001:db8::/32", true)
	want("IPv4", uint32(edgeSourceCheckSOURCES_DENIED))
	lists.mustRemove(t, Deny, "10.0.0.0/8", true)
	want("empty again", 0)
}

// scattered is so many prefixes of a family, all over the addresses.
func scattered(random *rand.Rand, v6 bool, count int) []netip.Prefix {
	all := make([]netip.Prefix, 0, count)
	seen := make(map[netip.Prefix]bool, count)
	for len(all) < count {
		var p netip.Prefix
		if v6 {
			var b [16]byte
			binary.BigEndian.PutUint64(b[:], 0x2000<<48|random.Uint64()>>3)
			p = netip.PrefixFrom(netip.AddrFrom16(b), 64)
		} else {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], random.Uint32())
			p = netip.PrefixFrom(netip.AddrFrom4(b), 32-8*(len(all)%5/4)) // one network of 256 in five
		}
		if p = p.Masked(); !seen[p] {
			seen[p] = true
			all = append(all, p)
		}
	}
	return all
}

// available is the memory that the machine has left, in bytes.
func available(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "MemAvailable:")
	kilobytes, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}

// medianRun is how long the program takes for a frame, look-up included.
func (e edgeAgent) medianRun(frames [][]byte) time.Duration {
	e.t.Helper()
	times := make([]time.Duration, len(frames))
	for i, frame := range frames {
		_, took, err := e.EdgeOutside.Benchmark(frame, 64, func() {})
		if err != nil {
			e.t.Fatal(err)
		}
		times[i] = took
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// A million of a family in the long form, a tenth otherwise.
func TestMillionPrefixesOfAFamilyAreListedFoundAndSwept(t *testing.T) {
	count := int(edgeSourceLimitsLISTED_MAX)
	if os.Getenv("SMARTCOOKIE_LONG") != "1" {
		count /= 10
	}
	random := newRandom(t)
	for _, v6 := range []bool{false, true} {
		e, lists := listed(t)
		all := scattered(random, v6, count)
		syn := families()[0]
		if v6 {
			syn = families()[1]
		}
		var frames [][]byte
		for range 500 {
			source := all[random.IntN(count)].Addr()
			frames = append(frames, with(syn, func(p *wire.Packet) { p.Source = netip.AddrPortFrom(source, 7) }).Frame())
		}
		before, begin := available(t), time.Now()
		if err := lists.put(Deny, all, 0, edgeListedOriginLISTED_FILE); err != nil {
			t.Fatal(err)
		}
		if err := lists.heedDeny(); err != nil {
			t.Fatal(err)
		}
		added, memory := time.Since(begin), before-available(t)
		begin = time.Now()
		if err := lists.Add(Deny, all[:1], 0); err != nil {
			t.Fatal(err)
		}
		again := time.Since(begin)
		for _, frame := range frames {
			if got := e.outside(frame); got.verdict != "drop_denied" {
				t.Fatalf("%s: %x", got.verdict, frame)
			}
		}
		t.Logf("%d prefixes, IPv6 %v: added in %s, one of them again in %s, some %d MB, %s a denied packet", count, v6, added, again, memory>>20, e.medianRun(frames))
		if count == int(edgeSourceLimitsLISTED_MAX) {
			if err := lists.Add(Deny, []netip.Prefix{netip.PrefixFrom(all[0].Addr(), 9).Masked()}, 0); err == nil || !strings.Contains(err.Error(), "deny is full") {
				t.Errorf("one more: %v", err)
			}
		}
		if err := lists.put(Deny, all[count/2:], 1, edgeListedOriginLISTED_HAND); err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		removed, err := lists.Sweep()
		if err != nil || removed != count-count/2 {
			t.Errorf("%d removed, %v; want %d", removed, err, count-count/2)
		}
		t.Logf("%d removed in %s", removed, time.Since(begin))
	}
}

// emptyLists are lists that no program looks at, with room for so many prefixes
// of a family.
func emptyLists(t *testing.T, room uint32) *Lists {
	t.Helper()
	needRoot(t)
	spec, err := loadEdge()
	if err != nil {
		t.Fatal(err)
	}
	var o edgeObjects
	var state *ebpf.Map
	for name, to := range map[string]**ebpf.Map{
		"deny4": &o.Deny4, "deny6": &o.Deny6, "allow4": &o.Allow4, "allow6": &o.Allow6, marksPin: &o.DenyMarks, ".data.sources": &state,
	} {
		if spec.Maps[name].Type == ebpf.LPMTrie {
			spec.Maps[name].MaxEntries = room
		}
		if *to, err = ebpf.NewMap(spec.Maps[name]); err != nil {
			t.Fatal(err)
		}
	}
	l := listsOf(&o, state)
	t.Cleanup(l.Close)
	return l
}

// A daemon adopts the lists and has a variable of its own. What a command has put
// on a list while it started, its programs have to look at.
func TestDaemonWaitsForACommandOnTheLists(t *testing.T) {
	former, next := emptyLists(t, 10), emptyLists(t, 10)
	root, pins := ownPins(t, EdgeAgent)
	if err := errors.Join(former.pin(pins), pins.pinContract()); err != nil {
		t.Fatal(err)
	}
	command, err := OpenLists(root)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(pins.mapPath(""))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("while a command has the lists open, others may write: %v", err) // and the daemon would wait for this test
	}
	next.tries = former.tries
	pinned := make(chan error, 1)
	go func() { pinned <- next.pin(pins) }()
	command.mustAdd(t, Deny, 0, "192.0.2.1/32")
	command.Close()
	if err := <-pinned; err != nil {
		t.Fatal(err)
	}
	if state, err := next.readState(); err != nil || state.Checks != uint32(edgeSourceCheckSOURCES_DENIED) {
		t.Errorf("the next daemon's programs have %+v, %v", state, err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("a daemon that has pinned its lists keeps others out: %v", err)
	}
}
