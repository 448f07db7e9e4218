package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

// Rounds, and repeats of each program in a round.
const (
	testRounds  = 9
	testRepeats = 300_000
)

// The bench lives in one epoch, which never ends.
const (
	benchEpoch   = 8
	benchEpochNS = 1 << 58
)

// XDP actions.
const (
	xdpDrop     = 1
	xdpTX       = 3
	xdpRedirect = 4
)

// testCase is a program and the frame that it rebuilds before each run.
type testCase struct {
	row    Row
	from   **ebpf.Collection
	prog   string // without the frame's length
	frame  []byte
	expect uint32
	ns     []float64

	edge    *dataplane.Edge
	verdict string // that must be counted; empty: the action says enough
	warm    int    // runs before that, to get there
}

// testBench is an edge with one kind of hash, and the programs beside it.
type testBench struct {
	hash         cookie.Hash
	slot         cookie.Slot
	edge         *dataplane.Edge
	ours, kernel *ebpf.Collection
	alone        bool     // without the variants of other makers
	proven       [][]byte // packets from inside, whose flows shall be known
}

// TestRun measures programs with BPF_PROG_TEST_RUN, all cases in every round.
// Each round loads them anew: where the kernel happens to put a program moves
// it by a tenth, and stays as it is until the next load.
func TestRun(progress func(string)) ([]Row, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var benches []*testBench
	var cases []*testCase
	for _, kind := range append(hashBenches(), floodBenches()...) {
		b, err := newTestBench(kind.hash, kind.change)
		if err != nil {
			return nil, err
		}
		defer b.close()
		b.alone = kind.change != nil
		benches = append(benches, b)
		cases = append(cases, kind.cases(b)...)
	}
	for round := range testRounds {
		progress(fmt.Sprintf("test runs: round %d of %d", round+1, testRounds))
		for _, b := range benches {
			if err := b.load(); err != nil {
				return nil, err
			}
		}
		for i := range cases {
			c := cases[(i+round)%len(cases)] // nobody always comes first
			if err := c.measure(); err != nil {
				return nil, err
			}
		}
	}
	rows := make([]Row, len(cases))
	for i, c := range cases {
		s := spreadOf(c.ns)
		rows[i] = c.row
		rows[i].Min, rows[i].Median, rows[i].Max = s.Min, s.Median, s.Max
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return a.Family - b.Family })
	return rows, nil
}

// benchKind is an edge, and what is measured with it.
type benchKind struct {
	hash   cookie.Hash
	change func(*dataplane.EdgeConfig) // nil: the usual edge
	cases  func(*testBench) []*testCase
}

func hashBenches() []benchKind {
	return []benchKind{
		{hash: cookie.SipHash, cases: func(b *testBench) []*testCase { return append(b.cases(), b.floods()...) }},
		{hash: cookie.HalfSipHash, cases: (*testBench).cases},
	}
}

func newTestBench(hash cookie.Hash, change func(*dataplane.EdgeConfig)) (*testBench, error) {
	b := &testBench{hash: hash, slot: cookie.Slot{Epoch: benchEpoch, Hash: hash, WindowScale: 7}}
	copy(b.slot.Key[:hash.KeyLength()], "a key for benchmarks")
	services := []policy.Service{{
		Name: "bench", Domain: "default", Mode: policy.Always, Options: policy.AllOptions,
		Prefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:1::/48")},
		Ports:    []policy.PortRange{{Low: 80, High: 80}}, MSS4: 1460, MSS6: 1440, Window: 65535,
	}}
	loopback := []dataplane.Interface{{Name: "lo", Index: 1}}
	c := dataplane.EdgeConfig{
		Services: services, Domains: []string{"default"}, Epochs: 8,
		Outside: loopback, Inside: loopback, Forward: dataplane.Bridge,
		Flows: 1_000_000, Generation: time.Minute,
	}
	if change != nil {
		change(&c)
	}
	return b, b.start(c)
}

// start loads the edge. What is in mode auto acts from the start: one that was
// always defended goes on so.
func (b *testBench) start(c dataplane.EdgeConfig) (err error) {
	mode := c.Services[0].Mode
	c.Services[0].Mode = policy.Always
	if c.Table, err = policy.Compile(c.Services); err != nil {
		return err
	}
	if b.edge, err = dataplane.LoadEdge(nil, c); err != nil {
		return err
	}
	if err = errors.Join(b.fill(), b.edge.SetMode(1, mode)); err != nil {
		b.close()
	}
	return err
}

func (b *testBench) fill() error {
	if err := b.edge.SetClock(dataplane.Clock{OffsetNS: benchEpoch * benchEpochNS, EpochNS: benchEpochNS}); err != nil {
		return err
	}
	var slots []cookie.Slot
	for e := uint64(benchEpoch - 1); e <= benchEpoch+1; e++ {
		slot := b.slot
		slot.Epoch = e
		slots = append(slots, slot)
	}
	if err := b.edge.WriteKeys(0, slots); err != nil {
		return err
	}
	return nil
}

// load puts the programs in the kernel, in the place of those of an earlier round.
func (b *testBench) load() error {
	b.unload()
	type variant struct {
		spec func() (*ebpf.CollectionSpec, error)
		into **ebpf.Collection
	}
	all := []variant{{loadOurs, &b.ours}}
	if !b.alone {
		all = append(all, variant{loadKernel, &b.kernel})
	}
	for _, load := range all {
		spec, err := load.spec()
		if err != nil {
			return fmt.Errorf("read embedded object: %w", err)
		}
		if *load.into, err = b.edge.LoadBeside(spec); err != nil {
			return err
		}
	}
	return b.prove()
}

// prove puts flows into the filter, where a minute does not pass for this.
func (b *testBench) prove() error {
	for _, frame := range b.proven {
		prog := fmt.Sprintf("inside_%d", len(frame))
		c := testCase{row: Row{Name: "prove"}, from: &b.ours, prog: prog, frame: frame, expect: xdpRedirect}
		if err := c.prepare(b.ours.Programs[prog]); err != nil {
			return err
		}
	}
	return nil
}

func (b *testBench) unload() {
	for _, c := range []*ebpf.Collection{b.ours, b.kernel} {
		if c != nil {
			c.Close()
		}
	}
	b.ours, b.kernel = nil, nil
}

func (b *testBench) close() {
	b.unload()
	b.edge.Close()
}

// cases lists what is measured. The floor and the variant with the kernel's
// helper do not depend on our hash: they run beside the first one.
func (b *testBench) cases() []*testCase {
	var all []*testCase
	for _, flow := range flowsOf() {
		syn := frameOf(flow, flagSYN, 1000, 0, nil)
		options := frameOf(flow, flagSYN, 1000, 0, linuxOptions)
		valid := cookie.Make(b.slot, flow, 1000, 0)
		hit := frameOf(flow, flagACK, 1001, valid+1, nil)
		stranger := flow // who never gets into the filter
		stranger.Source = netip.AddrPortFrom(flow.Source.Addr(), flow.Source.Port()+1)
		bad := frameOf(stranger, flagACK, 1001, valid+1, nil) // the parity of this epoch
		worse := frameOf(stranger, flagACK, 1001, (valid^1<<31)+1, nil)
		back := frameOf(reversed(flow), flagACK, valid+1, 1001, nil)
		add := func(name, hash string, from **ebpf.Collection, prog string, frame []byte, expect uint32) {
			all = append(all, &testCase{
				row:  Row{Experiment: "testrun", Name: name, Hash: hash, Family: int(flow.Family())},
				from: from, prog: prog, frame: frame, expect: expect,
			})
		}
		ours := b.hash.String()
		if b.hash == cookie.SipHash {
			add("floor", "", &b.ours, "floor", syn, xdpTX)
			add("floor, options", "", &b.ours, "floor", options, xdpTX)
			add("SYN, kernel helper", "kernel", &b.kernel, "outside", syn, xdpTX)
			add("SYN with options, kernel helper", "kernel", &b.kernel, "outside", options, xdpTX)
		}
		add("SYN", ours, &b.ours, "outside", syn, xdpTX)
		add("SYN with options", ours, &b.ours, "outside", options, xdpTX)
		add("bad ACK, one MAC", ours, &b.ours, "outside", bad, xdpDrop)
		add("bad ACK, two MACs", ours, &b.ours, "outside", worse, xdpDrop)
		add("filter hit", ours, &b.ours, "outside", hit, xdpRedirect)
		add("return packet", ours, &b.ours, "inside", back, xdpRedirect)
	}
	return all
}

// program is the one for frames of this length.
func (c *testCase) program() string { return fmt.Sprintf("%s_%d", c.prog, len(c.frame)) }

// measure runs the case once to see that it does what it is named for, and then
// takes the CPU time of many runs: wall time would count what else happens.
func (c *testCase) measure() error {
	prog := (*c.from).Programs[c.program()]
	if prog == nil {
		return fmt.Errorf("%s: no program for frames of %d bytes", c.row.Name, len(c.frame))
	}
	if err := c.prepare(prog); err != nil {
		return err
	}
	before := threadTime()
	if _, err := prog.Run(&ebpf.RunOptions{Data: c.frame, Repeat: testRepeats}); err != nil {
		return fmt.Errorf("%s: %w", c.row.Name, err)
	}
	c.ns = append(c.ns, float64(threadTime()-before)/testRepeats)
	return nil
}

// prepare writes the frame that is rebuilt, and runs the case once.
func (c *testCase) prepare(prog *ebpf.Program) error {
	var pattern [12]uint64
	padded := append(slices.Clone(c.frame), make([]byte, 8*len(pattern)-len(c.frame))...)
	for i := range pattern {
		pattern[i] = binary.LittleEndian.Uint64(padded[8*i:])
	}
	if err := (*c.from).Variables["pattern"].Set(pattern); err != nil {
		return fmt.Errorf("write pattern: %w", err)
	}
	return c.check(prog)
}

// check runs the case once.
func (c *testCase) check(prog *ebpf.Program) error {
	if c.warm > 0 {
		if _, err := prog.Run(&ebpf.RunOptions{Data: c.frame, Repeat: uint32(c.warm)}); err != nil {
			return fmt.Errorf("%s: %w", c.row.Name, err)
		}
	}
	before, err := c.counted()
	if err != nil {
		return err
	}
	action, err := prog.Run(&ebpf.RunOptions{Data: c.frame})
	if err != nil {
		return fmt.Errorf("%s: %w", c.row.Name, err)
	}
	if action != c.expect {
		return fmt.Errorf("%s, %s, IPv%d: XDP action %d, expected %d", c.row.Name, c.row.Hash, c.row.Family, action, c.expect)
	}
	after, err := c.counted()
	if err == nil && c.verdict != "" && after != before+1 {
		err = fmt.Errorf("%s, IPv%d: it is not %s that is counted", c.row.Name, c.row.Family, c.verdict)
	}
	return err
}

// counted is the count of the verdict, of the service and of none.
func (c *testCase) counted() (sum uint64, err error) {
	if c.verdict == "" {
		return 0, nil
	}
	number, ok := dataplane.VerdictNumber(c.verdict)
	if !ok {
		return 0, fmt.Errorf("%s: no verdict %s", c.row.Name, c.verdict)
	}
	for service := range 2 {
		counts, err := c.edge.ServiceVerdicts(service)
		if err != nil {
			return 0, err
		}
		sum += counts[number]
	}
	return sum, nil
}

// threadTime is the CPU time of this thread in nanoseconds.
func threadTime() int64 {
	var t unix.Timespec
	// It cannot fail: the clock exists on every Linux.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return t.Nano()
}
