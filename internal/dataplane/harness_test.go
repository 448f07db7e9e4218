package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

const inNamespace = "SMARTCOOKIE_TEST_NAMESPACE"

// The tests run in a network namespace of their own: no socket of the machine
// is what a program finds.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(inNamespace) != "" {
		os.Exit(m.Run())
	}
	child := exec.Command("/proc/self/exe", os.Args[1:]...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.Env = append(os.Environ(), inNamespace+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := child.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "run tests in a network namespace:", err)
		os.Exit(1)
	}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("this test needs root, and CI has to give it")
	}
	t.Skip("this test needs root")
}

// eventually polls until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick, deadline := time.NewTicker(5*time.Millisecond), time.After(10*time.Second)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// newRandom returns a random source; SMARTCOOKIE_SEED repeats a run.
func newRandom(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SMARTCOOKIE_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("SMARTCOOKIE_SEED: %v", err)
		}
		seed = given
	}
	t.Logf("SMARTCOOKIE_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// The services of the tests, by id.
const (
	none = iota
	web  // two prefixes of each family, some ports and a range, every option
	ssh  // one address within web's, another domain, few options
	off
	stops  // without keys, fails closed
	passes // without keys, fails open
	bare   // no option at all

	authCookie
	authFull
	authRST
)

const (
	domainMain = iota
	domainHalf
	domainEmpty
)

var domains = []string{"main", "half", "empty"}

func prefixes(all ...string) (parsed []netip.Prefix) {
	for _, p := range all {
		parsed = append(parsed, netip.MustParsePrefix(p))
	}
	return parsed
}

func port(p uint16) policy.PortRange { return policy.PortRange{Low: p, High: p} }

var services = []policy.Service{
	{
		Name: "web", Domain: "main", Mode: policy.Always, Options: policy.AllOptions,
		Prefixes: prefixes("203.0.113.0/24", "198.18.7.0/28", "2001:db8:1::/48", "2001:db8:2::80/128"),
		Ports:    []policy.PortRange{{Low: 8000, High: 8999}, port(443), port(80)},
		MSS4:     1460, MSS6: 1440, Window: 65535,
	},
	{
		Name: "ssh", Domain: "half", Mode: policy.Always, Options: policy.SACK | policy.WindowScale,
		Prefixes: prefixes("203.0.113.200/32", "2001:db8:1::200/128"),
		Ports:    []policy.PortRange{port(22)}, MSS4: 1400, MSS6: 1300, Window: 1000,
	},
	{
		Name: "off", Domain: "main", Mode: policy.Off, Options: policy.AllOptions,
		Prefixes: prefixes("198.51.100.0/26", "2001:db8:3::/64"), Ports: []policy.PortRange{port(80)},
	},
	{
		Name: "stops", Domain: "empty", Mode: policy.Always, KeysEnd: policy.Stop, Options: policy.AllOptions,
		Prefixes: prefixes("198.51.100.64/26", "2001:db8:4::/64"), Ports: []policy.PortRange{port(80)},
	},
	{
		Name: "passes", Domain: "empty", Mode: policy.Always, KeysEnd: policy.Pass, Options: policy.AllOptions,
		Prefixes: prefixes("198.51.100.128/26", "2001:db8:5::/64"), Ports: []policy.PortRange{port(80)},
	},
	{
		Name: "bare", Domain: "main", Mode: policy.Always,
		Prefixes: prefixes("198.51.100.192/26", "2001:db8:6::/64"),
		Ports:    []policy.PortRange{{Low: 0, High: 65535}}, MSS4: 536, MSS6: 1220, Window: 1,
	},
	authService("auth-cookie", policy.AuthCookie, "198.18.8.0/28", "2001:db8:a::/64"),
	authService("auth-full", policy.AuthFull, "198.18.9.0/28", "2001:db8:b::/64"),
	authService("auth-rst", policy.AuthRST, "198.18.10.0/28", "2001:db8:c0::/64"),
}

// authService whitelists sources that send as much as they like.
func authService(name string, s policy.Strategy, at ...string) policy.Service {
	return policy.Service{
		Name: name, Domain: "main", Mode: policy.Always, Options: policy.AllOptions, Strategy: s,
		Prefixes: prefixes(at...), Ports: []policy.PortRange{port(80)}, MSS4: 1460, MSS6: 1440, Window: 65535,
		Auth: policy.Auth{Prefix4: 32, Prefix6: 64, Time: time.Hour, SYNs: 1_000_000, Unfinished: 1_000_000},
	}
}

// The keys and the epoch of most tests.
const testEpoch = 7

var (
	mainSlot = slotOf(testEpoch, cookie.SipHash, 9)
	halfSlot = slotOf(testEpoch, cookie.HalfSipHash, 3)
)

func slotOf(epoch uint64, hash cookie.Hash, scale uint8) cookie.Slot {
	s := cookie.Slot{Epoch: epoch, Hash: hash, WindowScale: scale}
	for i := range s.Key[:hash.KeyLength()] {
		s.Key[i] = byte(epoch) + byte(17*i)
	}
	return s
}

// agent is a loaded edge or server.
type agent struct {
	*tables
	t testing.TB
}

type edgeAgent struct {
	agent
	*edgeObjects
}

type serverAgent struct {
	agent
	*serverObjects
}

// newEdge loads an edge that bridges, with a small filter that is not swept
// until its timer is started.
func newEdge(t testing.TB, change ...func(*EdgeConfig)) edgeAgent {
	t.Helper()
	return agentOf(t, loadedEdge(t, change...))
}

func agentOf(t testing.TB, e *Edge) edgeAgent {
	t.Helper()
	a := edgeAgent{agent{&e.tables, t}, &e.objects}
	a.usualKeys()
	return a
}

func loadedEdge(t testing.TB, change ...func(*EdgeConfig)) *Edge {
	t.Helper()
	return loadedEdgeAt(t, nil, change...)
}

func loadedEdgeAt(t testing.TB, pins *Pins, change ...func(*EdgeConfig)) *Edge {
	t.Helper()
	needRoot(t)
	lo := []Interface{{Name: "lo", Index: 1, MTU: 9000}} // frames may be jumbo
	c := EdgeConfig{
		Services: services, Domains: domains, Epochs: 100, Outside: lo, Inside: lo,
		Forward: Bridge, Flows: 1000, Generation: time.Hour, Whitelist: 10_000,
	}
	for _, f := range change {
		f(&c)
	}
	c.Table = compile(t, c.Services)
	e, err := LoadEdge(pins, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func newServer(t testing.TB, change ...func(*ServerConfig)) serverAgent {
	t.Helper()
	needRoot(t)
	c := ServerConfig{Services: services, Domains: domains, Epochs: 100, Recent: 1000}
	for _, f := range change {
		f(&c)
	}
	c.Interfaces = []Interface{{Name: "lo", Index: 1}}
	c.Table = compile(t, c.Services)
	s, err := LoadServer(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	a := serverAgent{agent{&s.tables, t}, &s.objects}
	a.usualKeys()
	return a
}

func compile(t testing.TB, s []policy.Service) *policy.Table {
	t.Helper()
	table, err := policy.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func (a agent) usualKeys() {
	a.t.Helper()
	a.writeKeys(domainMain, mainSlot)
	a.writeKeys(domainHalf, halfSlot)
	a.setEpoch(testEpoch, longEpoch)
}

func (a agent) writeKeys(domain int, slots ...cookie.Slot) {
	a.t.Helper()
	if len(slots) == 0 {
		return
	}
	if err := a.WriteKeys(domain, slots); err != nil {
		a.t.Fatal(err)
	}
}

// clearKeys empties every slot of every domain.
func (a agent) clearKeys() {
	a.t.Helper()
	keys := make([]uint32, a.keys.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := a.keys.BatchUpdate(keys, make([]edgeKeySlot, len(keys)), nil); err != nil {
		a.t.Fatal(err)
	}
}

// The length of an epoch in tests: years for small epochs, a minute for those
// of the vectors. Nothing is measured in it.
const (
	longEpoch  = 1 << 56
	shortEpoch = 1 << 36
)

// setEpoch begins the epoch, as far as the agent knows.
func (a agent) setEpoch(epoch, length uint64) {
	a.t.Helper()
	if err := a.SetClock(Clock{OffsetNS: int64(epoch*length + length/8 - monotonic(a.t)), EpochNS: length}); err != nil {
		a.t.Fatal(err)
	}
}

// learn makes the agent learn for so long.
func (a agent) learn(d time.Duration) {
	a.t.Helper()
	c, err := a.GetClock()
	if err != nil {
		a.t.Fatal(err)
	}
	c.LearnUntilNS = monotonic(a.t) + uint64(d)
	if err := a.SetClock(c); err != nil {
		a.t.Fatal(err)
	}
}

// monotonic is the clock that the programs read.
func monotonic(t testing.TB) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano())
}

// clockNow is the clock that the agent makes epochs of.
func (a agent) clockNow() uint64 {
	a.t.Helper()
	c, err := a.GetClock()
	if err != nil {
		a.t.Fatal(err)
	}
	return monotonic(a.t) + uint64(c.OffsetNS)
}

// What a program may return.
const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpTX       = 3
	xdpRedirect = 4
	tcNext      = ^uint32(0)
	tcDrop      = 2
)

// outcome is what became of one frame.
type outcome struct {
	action  uint32
	verdict string
	service int
	out     []byte
}

func (a agent) run(prog *ebpf.Program, frame []byte) outcome {
	a.t.Helper()
	before := a.counts()
	action, out := a.runUncounted(prog, frame)
	return outcome{action: action, out: out}.counted(a.t, before, a.counts())
}

func (a agent) runUncounted(prog *ebpf.Program, frame []byte) (uint32, []byte) {
	a.t.Helper()
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64)}
	action, err := prog.Run(&o)
	if err != nil {
		a.t.Fatalf("run with %d bytes: %v", len(frame), err)
	}
	return action, o.DataOut
}

// fitsSKB says whether the kernel makes an skb of a frame for a test: it must
// have a whole IP header, if any, and fit one page.
func fitsSKB(frame []byte) bool {
	least := 15
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		least = 14 + 20
	case 0x86dd:
		least = 14 + 40
	}
	return len(frame) >= least && len(frame) < 3000
}

// counts are the counters of all services of the tests, one after another.
func (a agent) counts() []uint64 {
	a.t.Helper()
	n := (len(services) + 1) * int(edgeVerdictVERDICT_STRIDE)
	cpus := ebpf.MustPossibleCPU()
	keys, perCPU := make([]uint32, n), make([]uint64, n*cpus)
	if _, err := a.counters.BatchLookup(new(ebpf.MapBatchCursor), keys, perCPU, nil); err != nil {
		a.t.Fatal(err)
	}
	total := make([]uint64, n)
	for i, v := range perCPU {
		total[keys[i/cpus]] += v
	}
	return total
}

// counted fills in the verdict: exactly one counter must have risen, by one.
func (o outcome) counted(t testing.TB, before, after []uint64) outcome {
	t.Helper()
	risen := 0
	for i := range after {
		if after[i] == before[i] {
			continue
		}
		risen += int(after[i] - before[i])
		o.verdict = VerdictNames()[i%int(edgeVerdictVERDICT_STRIDE)]
		o.service = i / int(edgeVerdictVERDICT_STRIDE)
	}
	if risen != 1 {
		t.Fatalf("the counters have risen by %d, want 1", risen)
	}
	return o
}

func (e edgeAgent) outside(frame []byte) outcome { e.t.Helper(); return e.run(e.EdgeOutside, frame) }
func (e edgeAgent) inside(frame []byte) outcome  { e.t.Helper(); return e.run(e.EdgeInside, frame) }
func (e edgeAgent) egress(frame []byte) outcome  { e.t.Helper(); return e.run(e.EdgeEgress, frame) }

func (s serverAgent) ingress(frame []byte) outcome {
	s.t.Helper()
	return s.run(s.ServerIngress, frame)
}

// forget empties the filter and the whitelist.
func (e edgeAgent) forget() {
	e.t.Helper()
	e.delist()
	memory, err := e.FilterLines.Memory()
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := memory.WriteAt(make([]byte, memory.Size()), 0); err != nil {
		e.t.Fatal(err)
	}
}

// answerer is the model of what a service answers with.
func answerer(service int) wire.Answerer {
	s := services[service-1]
	slot := mainSlot
	if s.Domain == "half" {
		slot = halfSlot
	}
	return wire.Answerer{
		Slot: slot, Offer: cookie.Offer(s.Options), MSS4: s.MSS4, MSS6: s.MSS6, Window: s.Window,
	}
}
