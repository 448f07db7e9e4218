package bench

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

// Effort is how long the experiment `server` takes. Many short transfers are
// better than few long ones: what else the machine does changes by the second.
type Effort struct {
	Rounds    int   // of test runs
	Repeats   int   // of a program in each of them
	Transfers int   // rounds of transfers
	Bytes     int64 // of a transfer
}

// FullEffort is what figures are made with.
var FullEffort = Effort{Rounds: 9, Repeats: 200_000, Transfers: 41, Bytes: 2 << 30}

// Server measures what established traffic costs at the server agent: its
// programs alone, and transfers through it.
func Server(ctx context.Context, effort Effort, progress func(string)) (rows []Row, err error) {
	for _, name := range []string{"iperf3", "nft"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("measure the server agent: %w: scripts/deps installs it", err)
		}
	}
	err = apart(func() (err error) {
		rows, err = serverRuns(effort, progress)
		return err
	})
	if err != nil {
		return nil, err
	}
	transfers, err := serverTransfers(ctx, effort, progress)
	return append(rows, transfers...), err
}

// What TC says, and what the agent says so that the next program sees a packet.
const tcNext = 0xffffffff // -1

const emptyProgram = "empty program"

// serverCase is a packet of an established connection at one hook.
type serverCase struct {
	name    string
	family  int
	frame   []byte
	changes bool // the packet, by being translated
	program func() *ebpf.Program
	ns      []float64
}

// serverBench is the agent in three states, for a connection of each family.
type serverBench struct {
	connections []*connection
	service     policy.Service
	empty       *ebpf.Program
	agents      map[string]*dataplane.Server
}

// The states: no translated connection at all, another one, this one.
const (
	native     = "native"
	beside     = "native beside translated"
	translated = "translated"
)

var states = []string{native, beside, translated}

// serverRuns measures the programs by BPF_PROG_TEST_RUN, each round with
// programs that are loaded anew (see TestRun).
func serverRuns(effort Effort, progress func(string)) ([]Row, error) {
	b := &serverBench{}
	defer b.close()
	if err := b.connect(); err != nil {
		return nil, err
	}
	cases := b.cases()
	for round := range effort.Rounds {
		progress(fmt.Sprintf("server: test runs, round %d of %d", round+1, effort.Rounds))
		if err := b.load(); err != nil {
			return nil, err
		}
		for i := range cases {
			if err := cases[(i+round)%len(cases)].measure(effort.Repeats); err != nil {
				return nil, err
			}
		}
	}
	return serverRows(cases), nil
}

func (b *serverBench) connect() error {
	for _, address := range []string{"127.0.0.1:80", "[::1]:80"} {
		server := netip.MustParseAddrPort(address)
		c, err := connect(server)
		if err != nil {
			return err
		}
		b.connections = append(b.connections, c)
		b.service.Prefixes = append(b.service.Prefixes, netip.PrefixFrom(server.Addr(), server.Addr().BitLen()))
	}
	b.service.Name, b.service.Domain, b.service.Mode = "bench", "default", policy.Always
	b.service.Ports = []policy.PortRange{{Low: 80, High: 80}}
	return nil
}

// cases are both directions in each state. Timestamps, as nearly all have them,
// and no data: programs do not look at it.
func (b *serverBench) cases() []*serverCase {
	var all []*serverCase
	stamps := []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	for _, c := range b.connections {
		family := int(c.flow.Family())
		in := frameOf(c.flow, flagACK, c.seq, c.ack, stamps)
		out := frameOf(reversed(c.flow), flagACK, c.ack, c.seq, stamps)
		all = append(all, &serverCase{
			name: emptyProgram, family: family, frame: in,
			program: func() *ebpf.Program { return b.empty },
		})
		for _, state := range states {
			add := func(hook string, frame []byte, program func() *ebpf.Program) {
				all = append(all, &serverCase{
					name: hook + ", " + state, family: family, frame: frame, changes: state == translated, program: program,
				})
			}
			add("ingress", in, func() *ebpf.Program { p, _ := b.agents[state].Programs(); return p })
			add("egress", out, func() *ebpf.Program { _, p := b.agents[state].Programs(); return p })
		}
	}
	return all
}

// load puts the programs in the kernel, in the place of those of the round before.
func (b *serverBench) load() (err error) {
	b.unload()
	b.agents = make(map[string]*dataplane.Server)
	for _, state := range states {
		if b.agents[state], err = b.loadAgent(state); err != nil {
			return err
		}
	}
	b.empty, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load the empty program: %w", err)
	}
	return nil
}

func (b *serverBench) loadAgent(state string) (*dataplane.Server, error) {
	services := []policy.Service{b.service}
	table, err := policy.Compile(services)
	if err != nil {
		return nil, err
	}
	s, err := dataplane.LoadServer(nil, dataplane.ServerConfig{
		Services: services, Table: table, Domains: []string{"default"}, Epochs: 8,
		Interfaces: []dataplane.Interface{{Name: "lo", Index: 1}},
		Recent:     1024, Translated: 1024,
	})
	if err != nil {
		return nil, err
	}
	for _, c := range b.connections {
		client := c.flow.Source
		if state == native {
			break
		}
		if state == beside {
			client = netip.AddrPortFrom(client.Addr(), client.Port()^1)
		}
		if err := s.TranslateStamps(client, c.flow.Destination, 12345); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func (b *serverBench) unload() {
	for _, agent := range b.agents {
		if agent != nil {
			agent.Close()
		}
	}
	if b.empty != nil {
		b.empty.Close()
	}
	b.agents, b.empty = nil, nil
}

func (b *serverBench) close() {
	b.unload()
	for _, c := range b.connections {
		c.close()
	}
}

// measure sees first that the packet passes, translated or as it was.
func (c *serverCase) measure(repeats int) error {
	prog := c.program()
	options := ebpf.RunOptions{Data: c.frame, DataOut: make([]byte, len(c.frame))}
	action, err := prog.Run(&options)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	if changed := !bytes.Equal(options.DataOut, c.frame); action != tcNext || changed != c.changes {
		return fmt.Errorf("%s, IPv%d: TC action %d, changed: %t; expected the next program, %t",
			c.name, c.family, int32(action), changed, c.changes)
	}
	before := threadTime()
	if _, err := prog.Run(&ebpf.RunOptions{Data: c.frame, Repeat: uint32(repeats)}); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	c.ns = append(c.ns, float64(threadTime()-before)/float64(repeats))
	return nil
}

// serverRows have their ratios to the empty program of the same round.
func serverRows(cases []*serverCase) []Row {
	floors := make(map[int][]float64)
	for _, c := range cases {
		if c.name == emptyProgram {
			floors[c.family] = c.ns
		}
	}
	var rows []Row
	for _, c := range cases {
		s, r := spreadOf(c.ns), ratios(c.ns, floors[c.family])
		rows = append(rows, Row{
			Experiment: "server", Name: c.name, Family: c.family, Min: s.Min, Median: s.Median, Max: s.Max,
			Ratio: r.Median, RatioMin: r.Min, RatioMax: r.Max, RatioTo: emptyProgram,
		})
	}
	slices.SortStableFunc(rows, func(a, b Row) int { return a.Family - b.Family })
	return rows
}
