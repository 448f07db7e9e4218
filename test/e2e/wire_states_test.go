package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const wireOld = "what the old connection carries"

// wireState brings a connection into one state of the server's socket, and
// returns the packet that set it up.
type wireState struct {
	name     string
	state    string // as ss names it
	timewait bool   // the socket is of the small kind that outlives its program
	mode     wireMode
	arrange  func(*wireFlow, *wireServer) []byte
	// goesOn shows that the connection still works.
	goesOn func(*wireFlow, *wireServer)
	slow   bool
}

var wireStates = []wireState{
	{name: "established", state: "ESTAB", arrange: wireEstablished, goesOn: wireGoesOn},
	{name: "established by a bare ACK", state: "ESTAB", arrange: wireBare, goesOn: wireGoesOn},
	{name: "established, a hole in the stream", state: "ESTAB", arrange: wireHole, goesOn: wireHoleFills},
	{name: "established, answer not acknowledged", state: "ESTAB", arrange: wireUnacknowledged, goesOn: wireGoesOn, slow: true},
	{name: "established, much data both ways", state: "ESTAB", arrange: wireMuch, goesOn: wireGoesOn},
	{name: "established, window closed", state: "ESTAB", mode: wireIdle, arrange: wireFull},
	{name: "FIN-WAIT-1", state: "FIN-WAIT-1", arrange: wireFinWait1},
	{name: "FIN-WAIT-1, orphan", state: "FIN-WAIT-1", arrange: wireFinWait1Orphan},
	{name: "FIN-WAIT-2", state: "FIN-WAIT-2", arrange: wireFinWait2, goesOn: wireHalfClosedGoesOn},
	{name: "FIN-WAIT-2, orphan", state: "FIN-WAIT-2", timewait: true, arrange: wireFinWait2Orphan},
	{name: "CLOSING", state: "CLOSING", arrange: wireClosing},
	{name: "TIME-WAIT", state: "TIME-WAIT", timewait: true, arrange: wireTimeWait},
	{name: "CLOSE-WAIT", state: "CLOSE-WAIT", arrange: wireCloseWait},
	{name: "LAST-ACK", state: "LAST-ACK", arrange: wireLastAck},
}

func wireEstablished(f *wireFlow, _ *wireServer) []byte {
	setup := f.connect(wireOld)
	f.send(len(wireOld), wireACK, nil)
	return setup
}

func wireBare(f *wireFlow, s *wireServer) []byte {
	f.open()
	setup := f.send(0, wireACK, nil)
	s.conn(0)
	return setup
}

func wireHole(f *wireFlow, s *wireServer) []byte {
	setup := wireEstablished(f, s)
	f.send(len(wireOld)+1000, wireData, []byte("behind the hole"))
	f.pump("a duplicate ACK", func() bool { return f.count > 1 })
	return setup
}

// wireUnacknowledged leaves the echo in the server's send queue, where it is
// retransmitted.
func wireUnacknowledged(f *wireFlow, _ *wireServer) []byte {
	setup := f.connect(wireOld)
	seen := f.count
	f.pump("the server's retransmission", func() bool { return f.count > seen })
	return setup
}

func wireMuch(f *wireFlow, _ *wireServer) []byte {
	f.open()
	var setup []byte
	var sent strings.Builder
	for i := range 300 {
		data := wireSegment(i % 10)
		frame := f.send(sent.Len(), wireData, data)
		if i == 0 {
			setup = frame
		}
		sent.Write(data)
		f.expectStream(sent.String())
		f.send(sent.Len(), wireACK, nil)
	}
	return setup
}

// wireFull sends until the server, which does not read, closes its window.
func wireFull(f *wireFlow, s *wireServer) []byte {
	f.open()
	setup := f.send(0, wireData, wireSegment(0))
	if err := s.conn(0).SetReadBuffer(2048); err != nil {
		f.t.Fatal(err)
	}
	at, closed := len(wireSegment(0)), false
	f.pump("the first ACK", func() bool { return f.latest.tcp.ACK })
	for !closed {
		seen := f.latest.tcp.Ack
		f.send(at, wireData, wireSegment(1))
		f.pump("an ACK", func() bool {
			closed = f.latest.tcp.Window == 0
			return closed || f.latest.tcp.Ack != seen
		})
		at += len(wireSegment(1))
	}
	return setup
}

func wireFinWait1(f *wireFlow, s *wireServer) []byte {
	setup := wireEstablished(f, s)
	if err := s.conn(0).CloseWrite(); err != nil {
		f.t.Fatal(err)
	}
	return setup
}

func wireFinWait1Orphan(f *wireFlow, s *wireServer) []byte {
	setup := wireEstablished(f, s)
	s.conn(0).Close()
	return setup
}

func wireFinWait2(f *wireFlow, s *wireServer) []byte {
	setup := wireFinWait1(f, s)
	f.expectFIN()
	f.send(len(wireOld), wireACK, nil)
	return setup
}

func wireFinWait2Orphan(f *wireFlow, s *wireServer) []byte {
	setup := wireFinWait1Orphan(f, s)
	f.expectFIN()
	f.send(len(wireOld), wireACK, nil)
	return setup
}

// wireClosing: both ends close, and the client's FIN does not acknowledge the
// server's.
func wireClosing(f *wireFlow, s *wireServer) []byte {
	setup := wireFinWait1Orphan(f, s)
	f.w.awaitState(f.t, f, "FIN-WAIT-1")
	f.send(len(wireOld), wireFINACK, nil)
	return setup
}

func wireTimeWait(f *wireFlow, s *wireServer) []byte {
	setup := wireFinWait1Orphan(f, s)
	f.expectFIN()
	f.send(len(wireOld), wireFINACK, nil)
	return setup
}

func wireCloseWait(f *wireFlow, s *wireServer) []byte {
	setup := wireEstablished(f, s)
	f.send(len(wireOld), wireFINACK, nil)
	s.expectEOF(s.conn(0))
	return setup
}

func wireLastAck(f *wireFlow, s *wireServer) []byte {
	setup := wireCloseWait(f, s)
	s.conn(0).Close()
	return setup
}

// wireGoesOn sends more, whatever was sent before, and gets it back.
func wireGoesOn(f *wireFlow, s *wireServer) {
	got, _ := s.conn(0).read()
	answer := string(f.got)
	f.send(len(got), wireData, []byte("more"))
	f.expectStream(answer + "more")
}

func wireHoleFills(f *wireFlow, s *wireServer) {
	hole := strings.Repeat("h", 1000)
	f.send(len(wireOld), wireData, []byte(hole))
	f.expectStream(wireOld + hole + "behind the hole")
	s.expectOnly(wireOld + hole + "behind the hole")
}

func wireHalfClosedGoesOn(f *wireFlow, s *wireServer) {
	f.send(len(wireOld), wireData, []byte("more"))
	s.expectOnly(wireOld + "more")
}

// bring makes a flow and brings it into the state.
func (state wireState) bring(t *testing.T, w *wireLab, s *wireServer, v6 bool, change func(*wireFlow)) (*wireFlow, []byte) {
	t.Helper()
	f := w.flow(t, v6)
	if change != nil {
		change(f)
	}
	setup := state.arrange(f, s)
	w.awaitState(t, f, state.state)
	return f, setup
}

// ---- a setup packet that comes again ----

// The packet that set a connection up is only a packet of that connection when
// it comes again, whatever has become of it.
func TestRepeatedSetupPacketLeavesConnectionAlone(t *testing.T) {
	for _, shape := range wireServers {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				for _, state := range wireStates {
					t.Run(state.name, func(t *testing.T) { repeatIsHarmless(t, w, state, v6, nil) })
				}
			})
		})
	}
}

// Sequence numbers wrap, and no comparison may mind.
func TestRepeatedSetupPacketLeavesConnectionAloneAcrossWrap(t *testing.T) {
	w := newWire(t, wireRoute, wireSettings{})
	for _, isn := range []uint32{0xffffffff, 0xfffffffe, 0xfffffff0, 0x7fffffff, 0x00ffffff, 0} {
		for _, state := range wireStates {
			t.Run(fmt.Sprintf("%s, ISN %#x", state.name, isn), func(t *testing.T) {
				repeatIsHarmless(t, w, state, false, func(f *wireFlow) { f.isn = isn })
			})
		}
	}
}

func repeatIsHarmless(t *testing.T, w *wireLab, state wireState, v6 bool, change func(*wireFlow)) {
	s := w.serve(t, state.mode)
	f, setup := state.bring(t, w, s, v6, change)
	f.drain()
	before := w.verdicts(t)
	repeats := 3
	for range repeats {
		f.emit(setup)
	}
	got := w.await(t, before, uint64(repeats), "pass_repeated", "pass_connection", "setup", "requeue_stale", "requeue_timewait", "pass_replayed")
	if got["pass_repeated"]+got["pass_connection"] != uint64(repeats) {
		t.Fatalf("verdicts on %d copies: %v", repeats, got)
	}
	w.awaitState(t, f, state.state)
	f.drain()
	if f.reset != nil {
		t.Fatal("the repeated packet has been answered with a RST")
	}
	if state.goesOn != nil {
		state.goesOn(f, s)
	}
	if n := len(s.conns()); n != 1 {
		t.Fatalf("the server has accepted %d connections, want 1", n)
	}
}

// ---- a port that comes again ----

// wireNewcomer is how the client that reuses a port begins. The new flow has
// its own ISN and a higher TSval than the old one.
type wireNewcomer struct {
	name   string
	change func(f, old *wireFlow)
	flags  wireFlags
	data   string
}

var wireNewcomers = []wireNewcomer{
	{name: "data first", flags: wireData, data: wireRequest},
	{name: "bare ACK first", flags: wireACK},
	{name: "data and FIN first", flags: wireFlags{ack: true, psh: true, fin: true}, data: wireRequest},
	{name: "lower TSval", flags: wireData, data: wireRequest, change: func(f, old *wireFlow) { f.tsval = old.tsval - 1<<29 }},
	{name: "bare ACK, lower TSval", flags: wireACK, change: func(f, old *wireFlow) { f.tsval = old.tsval - 1<<29 }},
	{name: "no timestamps", flags: wireData, data: wireRequest, change: func(f, _ *wireFlow) { f.stamps = false }},
	{name: "ISN in the old window", flags: wireData, data: wireRequest, change: func(f, old *wireFlow) { f.isn = old.isn + 5000 }},
	{name: "bare FIN first", flags: wireFINACK},
	{name: "ISN with the old cookie", flags: wireData, data: wireRequest, change: func(f, old *wireFlow) { f.isn = old.isn + 1<<24 }},
	{name: "ISN just behind the old one", flags: wireData, data: wireRequest, change: func(f, old *wireFlow) { f.isn = old.isn - 1 }},
}

func (n wireNewcomer) begin(old *wireFlow) *wireFlow {
	f := old.reuse()
	if n.change != nil {
		n.change(f, old)
	}
	for f.open(); f.fits(old); f.open() {
		f.isn++
	}
	f.send(0, n.flags, []byte(n.data))
	return f
}

// fits tells whether both numbers can be the old connection's, as one cookie in
// some 500 can: then the packet is that connection's for every TCP (RFC 9293
// 3.10.7.4), and docs/limits.md says so.
func (f *wireFlow) fits(old *wireFlow) bool {
	within := func(a, b uint32) bool { return a-b+wireReach <= 2*wireReach }
	return within(f.isn, old.isn) && within(f.cookie, old.cookie)
}

// wireReach is more than any window of a flow.
const wireReach = 1 << 24

// A proven client that comes from a port whose old connection the server still
// holds gets its connection at the first attempt, at the price of one requeue.
func TestReusedPortReplacesOldConnection(t *testing.T) {
	for _, shape := range wireServers {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				for _, state := range wireStates {
					for _, newcomer := range wireNewcomers {
						if (shape == wireBridge || state.slow) && newcomer.name != "lower TSval" && !long() {
							continue // bridge or route is all the same to the server
						}
						t.Run(state.name+"/"+newcomer.name, func(t *testing.T) {
							s := w.serve(t, state.mode)
							old, _ := state.bring(t, w, s, v6, nil)
							reuseWorks(t, w, s, old, state.timewait, newcomer)
							if state.goesOn != nil { // its program had not closed it
								s.expectEnd(s.conn(0), unix.ECONNRESET)
							}
						})
					}
				}
			})
		})
	}
}

func reuseWorks(t *testing.T, w *wireLab, s *wireServer, old *wireFlow, timewait bool, newcomer wireNewcomer) {
	t.Helper()
	s.becomes(wireEcho)
	accepted := len(s.conns())
	before := w.verdicts(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("verdicts: %v", w.verdicts(t).since(before))
		}
	})
	f := newcomer.begin(old)
	conn := s.conn(accepted)
	f.expectStream(newcomer.data)
	if got, _ := conn.read(); string(got) != newcomer.data {
		t.Fatalf("the new connection has received %q, want %q", got, newcomer.data)
	}
	want := wireVerdicts{"setup": 1, "requeue_stale": 1, "requeue_timewait": 0, "drop_stubborn_socket": 0, "drop_bad_cookie": 0, "drop_refused": 0}
	if w.shape.tenant { // whose kernel may take the SYN at once, or answer with an ACK
		want["requeue_stale"] = w.verdicts(t).since(before)["requeue_stale"]
		want["setup"] += want["requeue_stale"]
	} else if timewait {
		want["requeue_stale"], want["requeue_timewait"] = 0, 1
	}
	w.expect(t, before, want)
	if !newcomer.flags.fin {
		f.send(len(newcomer.data), wireData, []byte("more"))
		f.expectStream(newcomer.data + "more")
	}
	if n := len(s.conns()); n != accepted+1 {
		t.Fatalf("%d connections, want %d", n, accepted+1)
	}
}
