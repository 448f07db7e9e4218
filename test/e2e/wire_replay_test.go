package e2e

import (
	"fmt"
	"testing"
)

// wireEnding ends a connection so that the server has no socket of any kind
// for it.
type wireEnding struct {
	name  string
	mode  wireMode
	setup wireFlags
	end   func(*wireFlow, *wireServer)
}

var wireEndings = []wireEnding{
	{"client closes first", wireEcho, wireData, wireClientCloses},
	{"client closes first, bare ACK", wireEcho, wireACK, wireClientCloses},
	{"client closes in its first packet", wireEcho, wireFlags{ack: true, psh: true, fin: true}, func(f *wireFlow, s *wireServer) {
		s.conn(0).Close()
		f.expectFIN()
		f.sent++
		f.send(f.sent, wireACK, nil)
	}},
	{"server aborts", wireEcho, wireData, func(f *wireFlow, s *wireServer) {
		s.conn(0).abort()
		f.expectReset()
	}},
	{"server aborts at once", wireAbort, wireData, func(f *wireFlow, _ *wireServer) { f.expectReset() }},
	{"client aborts", wireEcho, wireData, func(f *wireFlow, s *wireServer) {
		f.send(f.sent, wireRST, nil)
	}},
}

func wireClientCloses(f *wireFlow, s *wireServer) {
	f.send(f.sent, wireFINACK, nil)
	s.expectEOF(s.conn(0))
	s.conn(0).Close()
	f.expectFIN()
	f.sent++
	f.send(f.sent, wireACK, nil)
}

// The packet that set a connection up says nothing once that connection is
// over: the kernel answers it as any packet without a connection, and no
// request runs a second time.
func TestReplayedSetupPacketSetsNothingUp(t *testing.T) {
	for _, shape := range wireServers {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				for _, ending := range wireEndings {
					t.Run(ending.name, func(t *testing.T) { replayIsRefused(t, w, ending, v6) })
				}
			})
			w.only4 = true
			t.Run("IPv4 listener", func(t *testing.T) { replayIsRefused(t, w, wireEndings[0], false) })
		})
	}
}

func replayIsRefused(t *testing.T, w *wireLab, ending wireEnding, v6 bool) {
	s := w.serve(t, ending.mode)
	f := w.flow(t, v6)
	f.open()
	var data []byte
	if ending.setup.psh {
		data = []byte(wireRequest)
	}
	setup := f.send(0, ending.setup, data)
	f.sent = len(data)
	if ending.mode == wireEcho {
		f.expectStream(string(data))
	}
	s.conn(0)
	ending.end(f, s)
	w.awaitState(t, f, "")
	replayed(t, w, s, f, setup)
}

// replayed sends the packet again, three times, and wants three RSTs.
func replayed(t *testing.T, w *wireLab, s *wireServer, f *wireFlow, setup []byte) {
	t.Helper()
	before := w.verdicts(t)
	for range 3 {
		f.drain()
		f.reset = nil
		f.emit(setup)
		f.expectReset()
		if f.reset.tcp.Seq != f.cookie+1 {
			t.Fatalf("RST at %d, want cookie+1 = %d", f.reset.tcp.Seq, f.cookie+1)
		}
	}
	verdict := "pass_replayed"
	if w.shape.tenant { // translated, until what was its connection expires
		verdict = "pass_repeated"
	}
	w.expect(t, before, wireVerdicts{verdict: 3, "setup": 0, "requeue_stale": 0, "requeue_timewait": 0})
	if n := len(s.conns()); n != 1 {
		t.Fatalf("the server has accepted %d connections, want 1", n)
	}
}

// A connection may be over before the kernel's coarse clock has ticked.
func TestReplayWithinOneTickSetsNothingUp(t *testing.T) {
	w := newWire(t, wireRoute, wireSettings{})
	s := w.serve(t, wireAbort)
	wireFamilies(t, func(t *testing.T, v6 bool) {
		before, accepted, rounds := w.verdicts(t), len(s.conns()), 100
		for range rounds {
			f := w.flow(t, v6)
			f.open()
			setup := f.send(0, wireData, []byte(wireRequest))
			f.expectReset()
			f.reset = nil
			f.emit(setup)
			f.expectReset()
		}
		w.expect(t, before, wireVerdicts{"setup": uint64(rounds), "pass_replayed": uint64(rounds)})
		if n := len(s.conns()) - accepted; n != rounds {
			t.Fatalf("the server has accepted %d connections of %d clients", n, rounds)
		}
	})
}

// An ACK of a few bytes of the server's stream is not an ACK of the SYN-ACK,
// and a later segment of the client's stream is not its first.
func TestNumbersBesideTheCookieSetNothingUp(t *testing.T) {
	for _, shape := range wireShapes {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				t.Run("unknown to the edge", func(t *testing.T) {
					besideIsDropped(t, w, w.flow(t, v6), shape.host)
				})
				t.Run("in the filter", func(t *testing.T) {
					s := w.serve(t, wireEcho)
					old := w.flow(t, v6)
					old.connect(wireRequest)
					old.sent = len(wireRequest)
					wireClientCloses(old, s)
					w.awaitState(t, old, "")
					s.stop()
					besideIsDropped(t, w, old.reuse(), true)
				})
			})
		})
	}
}

func besideIsDropped(t *testing.T, w *wireLab, f *wireFlow, seen bool) {
	s := w.serve(t, wireEcho)
	f.open()
	before := w.verdicts(t)
	sent := uint64(0)
	for n := uint32(2); n <= 32; n++ {
		f.emit(f.raw(f.isn+1, f.cookie+n, wireACK, nil), f.raw(f.isn+1, f.cookie+n, wireData, []byte("no first data")))
		sent += 2
	}
	for _, at := range []uint32{1, 2, 536, 1300, 1460, 65535, 1 << 20, 1 << 23, 1<<24 - 1, 1<<24 + 1} {
		f.emit(f.raw(f.isn+1+at, f.cookie+1, wireData, []byte("not the first segment")))
		sent++
	}
	f.emit(f.raw(f.isn, f.cookie+1, wireACK, nil), f.raw(f.isn+1, f.cookie, wireACK, nil))
	sent += 2
	want := wireVerdicts{"setup": 0, "pass_closed_port": 0, "pass_kernel_cookie": 0}
	if seen {
		want["drop_bad_cookie"] = sent
	}
	w.expect(t, before, want)
	f.send(0, wireData, []byte(wireRequest))
	f.expectStream(wireRequest)
	s.expectOnly(wireRequest)
	f.expectCookieIsISN()
}

// A server may close without having read a byte.
func TestServerThatClosesAtOnce(t *testing.T) {
	for _, shape := range wireServers {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				for _, data := range []string{"", wireRequest} {
					t.Run(fmt.Sprintf("%d bytes unread", len(data)), func(t *testing.T) {
						closesAtOnce(t, w, v6, data)
					})
				}
			})
		})
	}
}

func closesAtOnce(t *testing.T, w *wireLab, v6 bool, data string) {
	s := w.serve(t, wireClose)
	f := w.flow(t, v6)
	f.open()
	setup := f.send(0, wireACK, []byte(data))
	if data != "" { // unread data is lost, and TCP says so
		f.expectReset()
		if f.reset.tcp.Seq != f.cookie+1 {
			t.Fatalf("RST at %d, want cookie+1 = %d", f.reset.tcp.Seq, f.cookie+1)
		}
		w.awaitState(t, f, "")
		replayed(t, w, s, f, setup)
		return
	}
	f.expectFIN()
	f.expectCookieIsISN()
	before := w.verdicts(t)
	f.emit(setup)
	w.expect(t, before, wireVerdicts{"setup": 0, "requeue_stale": 0})
	f.send(0, wireFINACK, nil)
	w.awaitState(t, f, "TIME-WAIT")
	before = w.verdicts(t)
	f.emit(setup)
	w.expect(t, before, wireVerdicts{"pass_repeated": 1, "setup": 0, "requeue_timewait": 0})
	s.expectOnly("")
}

// A packet of an old connection may come when its port has a new one: it was
// delayed, or somebody sends it again.
func TestReplayDoesNotHarmTheNextConnection(t *testing.T) {
	for _, shape := range []wireShape{wireRoute, wireHost} {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				for _, state := range wireStates {
					if state.mode == wireEcho {
						t.Run(state.name, func(t *testing.T) { successorLives(t, w, state, v6) })
					}
				}
			})
		})
	}
}

func successorLives(t *testing.T, w *wireLab, state wireState, v6 bool) {
	s := w.serve(t, wireEcho)
	old := w.flow(t, v6)
	setup := old.connect(wireRequest)
	old.sent = len(wireRequest)
	wireClientCloses(old, s)
	w.awaitState(t, old, "")
	s.stop()

	s = w.serve(t, wireEcho)
	f := old.reuse()
	state.arrange(f, s)
	w.awaitState(t, f, state.state)
	before := w.verdicts(t)
	f.drain()
	f.emit(setup, setup)
	w.await(t, before, 2, "pass_repeated", "pass_connection", "setup", "requeue_stale", "requeue_timewait")
	w.expect(t, before, wireVerdicts{"setup": 0, "requeue_stale": 0, "requeue_timewait": 0})
	w.awaitState(t, f, state.state)
	if f.drain(); f.reset != nil {
		t.Fatal("the connection was reset")
	}
	if state.goesOn != nil {
		state.goesOn(f, s)
	}
	if n := len(s.conns()); n != 1 {
		t.Fatalf("%d connections, want 1", n)
	}
}
