package dataplane

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"smartcookie/internal/cookie"
	"smartcookie/test/wire"
)

// bench is one program under a flood of odd frames: what it decides is compared
// with the model, frame by frame in action and bytes, batch by batch in counts.
type bench struct {
	agent
	prog    *ebpf.Program
	judge   func(*model, []byte) decision
	model   *model
	buffer  []byte
	pending map[decision]uint64
	frames  int            // of the batch
	seen    map[string]int // verdicts of all batches
	before  []uint64
	check   func() // of what must hold after a batch
}

func newBench(a agent, prog *ebpf.Program, m *model, judge func(*model, []byte) decision) *bench {
	b := &bench{agent: a, prog: prog, judge: judge, model: m, buffer: make([]byte, 16384), seen: make(map[string]int)}
	b.check = func() {}
	b.begin()
	return b
}

func (b *bench) begin() {
	b.pending, b.frames, b.before = make(map[decision]uint64), 0, b.counts()
}

// send runs one frame and checks everything but its count.
func (b *bench) send(frame []byte) {
	b.t.Helper()
	want := b.judge(b.model, frame)
	b.pending[want]++
	b.seen[want.verdict]++
	b.frames++
	o := ebpf.RunOptions{Data: frame, DataOut: b.buffer}
	action, err := b.prog.Run(&o)
	if err != nil {
		b.t.Fatalf("%x: %v", frame, err)
	}
	if expected := b.actionOf(want.verdict); action != expected {
		b.t.Fatalf("%x: action %d, want %d (%s)", frame, action, expected, want.verdict)
	}
	if action != xdpTX {
		if !bytes.Equal(o.DataOut, frame) {
			b.t.Fatalf("%x: changed to %x", frame, o.DataOut)
		}
		return
	}
	if err := answerFault(frame, o.DataOut, want); err != nil {
		b.t.Fatalf("%x: answered with %x: %v", frame, o.DataOut, err)
	}
}

func (b *bench) actionOf(verdict string) uint32 {
	if b.prog.Type() == ebpf.XDP {
		return actionOf(verdict)
	}
	if actionOf(verdict) == xdpDrop {
		return tcDrop
	}
	return tcNext
}

// answerFault says what is wrong with an answer. The TSval's clock is the one
// that it shows; the golden frames check that one.
func answerFault(frame, answer []byte, d decision) error {
	syn, got := wire.Read(frame), wire.Read(answer)
	limit := got.NetworkAt + 60
	if !syn.Source.Is4() {
		limit += 20
	}
	if len(answer) > limit {
		return fmt.Errorf("%d bytes, at most %d", len(answer), limit)
	}
	clock := uint64(wire.ReadOptions(got.Options, got.Flags).TSval) << 20
	if want := answerOf(frame, d, clock); !bytes.Equal(answer, want) {
		return fmt.Errorf("want %x", want)
	}
	return nil
}

// settle compares the counters with the model's and begins the next batch.
func (b *bench) settle() {
	b.t.Helper()
	after, sum := b.counts(), uint64(0)
	for i := range after {
		risen := after[i] - b.before[i]
		sum += risen
		stride := int(edgeVerdictVERDICT_STRIDE)
		if i%stride >= len(VerdictNames()) {
			continue
		}
		d := decision{VerdictNames()[i%stride], i / stride}
		if risen != b.pending[d] {
			b.t.Errorf("%s of service %d: %d, the model says %d", d.verdict, d.service, risen, b.pending[d])
		}
	}
	if sum != uint64(b.frames) {
		b.t.Errorf("%d verdicts on %d frames", sum, b.frames)
	}
	b.check()
	if b.t.Failed() {
		b.t.FailNow()
	}
	b.begin()
}

// benches has one for each program.
func benches(t *testing.T) map[string]func(*testing.T) *bench {
	t.Helper()
	overEdge := func(prog func(edgeAgent) *ebpf.Program, judge func(*model, []byte) decision) func(*testing.T) *bench {
		return func(t *testing.T) *bench {
			e := newEdge(t)
			b := newBench(e.agent, prog(e), newModel(newFilterTwin(e)), judge)
			b.check = func() {
				if !bytes.Equal(e.lines(), b.model.twin.Bytes()) {
					t.Error("the filter differs from its twin")
				}
				e.forget()
				b.model = newModel(newFilterTwin(e))
			}
			return b
		}
	}
	return map[string]func(*testing.T) *bench{
		"edge_outside": overEdge(func(e edgeAgent) *ebpf.Program { return e.EdgeOutside },
			func(m *model, f []byte) decision { return m.outside(wire.Read(f)) }),
		"edge_inside": overEdge(func(e edgeAgent) *ebpf.Program { return e.EdgeInside },
			func(m *model, f []byte) decision { return m.inside(wire.Read(f)) }),
		"edge_egress": overEdge(func(e edgeAgent) *ebpf.Program { return e.EdgeEgress },
			func(m *model, f []byte) decision { return m.inside(readSKB(f)) }),
		"server_ingress": func(t *testing.T) *bench {
			s := newServer(t)
			return newBench(s.agent, s.ServerIngress, newModel(nil),
				func(m *model, f []byte) decision { return m.server(readSKB(f)) })
		},
	}
}

// frameSource sends to all services and past them, from all kinds of clients.
func frameSource(random *rand.Rand, inside bool) wire.Source {
	var clients, servers []netip.Addr
	for _, a := range []string{
		"192.0.2.1", "192.0.2.2", "10.1.2.3", "172.16.4.5", "100.64.1.1", "8.8.8.8", "1.1.1.1", "223.255.255.255",
		"224.0.0.1", "127.0.0.1", "0.0.0.1", "203.0.113.5",
		"2001:db8:c::1", "2001:db8:c::2", "fe80::1", "fd00::7", "2620::1", "::ffff:192.0.2.1", "2a00::1", "::2",
		"::1", "::", "ff02::1", "2001:db8:1::5",
	} {
		clients = append(clients, netip.MustParseAddr(a))
	}
	for _, a := range []string{
		"203.0.113.5", "203.0.113.200", "198.18.7.3", "198.51.100.1", "198.51.100.65", "198.51.100.129", "198.51.100.193",
		"192.0.2.99", "198.18.8.1", "198.18.9.1", "198.18.10.1", "2001:db8:a::1", "2001:db8:b::1", "2001:db8:c0::1",
		"2001:db8:1::5", "2001:db8:1::200", "2001:db8:2::80", "2001:db8:3::1", "2001:db8:4::1",
		"2001:db8:5::1", "2001:db8:6::1", "2001:db8:9::1",
	} {
		servers = append(servers, netip.MustParseAddr(a))
	}
	if inside {
		clients, servers = servers, clients
	}
	return wire.Source{Rand: random, Clients: clients, Servers: servers, Ports: []uint16{80, 443, 443, 22, 8000, 8999, 9000, 7}}
}

// proven gives some ACKs a valid cookie, and some RSTs a challenge.
func proven(random *rand.Rand, p wire.Packet) wire.Packet {
	id := serviceOf(p.To.Addr(), p.To.Port())
	if random.IntN(2) == 0 || id == none || services[id-1].Domain == "empty" {
		return p
	}
	if services[id-1].Strategy.Whitelists() { // so few flows that a SYN and its ACK meet
		p.Source = netip.AddrPortFrom(p.Source.Addr(), 40000+uint16(random.IntN(2)))
	}
	flow := cookie.Flow{Source: p.Source, Destination: p.To}
	switch kind := p.Flags & (wire.SYN | wire.RST | wire.ACK); {
	case kind == wire.ACK && id == authFull:
		p.Ack = p.Seq
	case kind == wire.ACK:
		p.Ack = cookie.Make(answerer(id).Slot, flow, p.Seq-1, uint8(random.IntN(32))) + 1
	case kind == wire.RST:
		p.Seq = cookie.MakeChallenge(answerer(id).Slot, flow, random.Uint32())
	}
	return p
}

// variants returns one frame, and then some with faults put into it.
func variants(s wire.Source, inside bool) [][]byte {
	p := s.Packet()
	if inside { // the port of the service is the sender's
		p.Source, p.To = netip.AddrPortFrom(p.Source.Addr(), p.To.Port()), netip.AddrPortFrom(p.To.Addr(), p.Source.Port())
	} else {
		p = proven(s.Rand, p)
	}
	frames := [][]byte{p.Frame()}
	if !inside && p.Flags&(wire.SYN|wire.ACK) == wire.SYN { // what ends the handshake, if the SYN passes
		frames = append(frames, flagged(p, wire.ACK).Frame())
		if id := serviceOf(p.To.Addr(), p.To.Port()); id != none && services[id-1].Strategy.Whitelists() {
			frames = append(frames, passing(authRST, p).Frame())
		}
	}
	for range 3 {
		frames = append(frames, s.Mutate(slices.Clone(frames[0])))
	}
	if s.IntN(4) == 0 {
		frames = append(frames, s.Noise())
	}
	return frames
}

func TestMillionOddFramesEndAsTheModelSays(t *testing.T) {
	count, batch := 1_000_000, 20_000
	if testing.Short() {
		count = 100_000
	}
	for name, newBench := range benches(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := newRandom(t)
			inside := name == "edge_inside" || name == "edge_egress"
			source, b := frameSource(random, inside), newBench(t)
			for sent := 0; sent < count; {
				for _, frame := range variants(source, inside) {
					if b.prog.Type() != ebpf.XDP && !fitsSKB(frame) {
						continue
					}
					b.send(frame)
					sent++
				}
				if b.frames >= batch {
					b.settle()
				}
			}
			b.settle()
			t.Logf("verdicts: %v", b.seen)
			for verdict := range strings.FieldsSeq(fuzzedVerdicts[name]) {
				if b.seen[verdict] == 0 {
					t.Errorf("no frame has met with %s: the source is too tame", verdict)
				}
			}
		})
	}
}

// fuzzedVerdicts are those that the frames must reach at each program.
var fuzzedVerdicts = map[string]string{
	"edge_outside": `pass_other pass_off drop_fragment drop_unparsable drop_vlan_depth drop_flags_null drop_flags_syn_fin
		drop_flags_syn_rst drop_flags_xmas drop_flags_other drop_bad_cookie drop_no_key answer_syn pass_verified
		pass_cookie pass_no_key drop_unverified_rst drop_unverified_synack drop_bad_source
		answer_challenge answer_reset drop_challenged pass_whitelisted pass_finished`,
	"edge_inside": "pass_inside",
	"edge_egress": "pass_inside",
	"server_ingress": `pass_other pass_off drop_fragment drop_unparsable drop_flags_null drop_flags_syn_fin
		drop_flags_syn_rst drop_flags_xmas drop_flags_other drop_bad_cookie pass_syn pass_closed_port pass_rst
		drop_unverified_synack`,
}

func TestGoldenFramesCutAtEveryLengthEndAsTheModelSays(t *testing.T) {
	for name, newBench := range benches(t) {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			for _, g := range goldens() {
				frame := g.frame()
				for length := 14; length <= len(frame); length++ {
					if length > 2000 && length < len(frame)-10 && length%251 != 0 {
						continue // the data of jumbo frames
					}
					if b.prog.Type() == ebpf.XDP || fitsSKB(frame[:length]) {
						b.send(frame[:length])
					}
				}
				b.settle()
			}
		})
	}
}
