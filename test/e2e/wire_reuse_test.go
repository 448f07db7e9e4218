package e2e

import (
	"bytes"
	"fmt"
	"testing"
)

// The kernel may hold a handshake of its own, of a SYN that came before the
// defence: it gives way as other old sockets do.
func TestReusedPortReplacesHalfOpenConnection(t *testing.T) {
	for _, shape := range []wireShape{wireRoute, wireHost} {
		t.Run(shape.name, func(t *testing.T) {
			var old []*wireFlow
			var s *wireServer
			w := newWire(t, shape, wireSettings{before: func(w *wireLab) {
				s = w.serve(t, wireEcho)
				for i := range 2 * len(wireNewcomers) {
					f := w.flow(t, i%2 == 1)
					f.open()
					w.awaitState(t, f, "SYN-RECV")
					old = append(old, f)
				}
			}})
			for i, f := range old {
				newcomer := wireNewcomers[i/2]
				t.Run(family(f.v6)+"/"+newcomer.name, func(t *testing.T) {
					f.t, s.t = t, t
					reuseWorks(t, w, s, f, false, newcomer)
				})
			}
		})
	}
}

// With tcp_rfc1337 nothing ends a TIME_WAIT early: the agent says so, and a
// client that meets one is refused without a loop.
func TestProtectedTimeWaitIsLeftAlone(t *testing.T) {
	for _, shape := range []wireShape{wireRoute, wireHost} {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{sysctls: map[string]string{"net.ipv4.tcp_rfc1337": "1"}})
			if !bytes.Contains(w.daemon.Log(), []byte("tcp_rfc1337 is 1")) {
				t.Errorf("the agent does not warn of tcp_rfc1337: %s", w.daemon.Log())
			}
			wireFamilies(t, func(t *testing.T, v6 bool) { stubbornTimeWait(t, w, v6) })
		})
	}
}

func stubbornTimeWait(t *testing.T, w *wireLab, v6 bool) {
	s := w.serve(t, wireEcho)
	old := w.flow(t, v6)
	wireTimeWait(old, s)
	w.awaitState(t, old, "TIME-WAIT")
	before := w.verdicts(t)
	f := old.reuse()
	f.open()
	setup := f.send(0, wireData, []byte(wireRequest))
	w.expect(t, before, wireVerdicts{"requeue_timewait": 1, "drop_stubborn_socket": 1, "setup": 0})
	f.emit(setup)
	w.expect(t, before, wireVerdicts{"requeue_timewait": 1, "drop_stubborn_socket": 2, "setup": 0})
	w.flow(t, v6).connect(wireRequest) // everybody else is served, and time has passed
	w.expect(t, before, wireVerdicts{"requeue_timewait": 1, "drop_stubborn_socket": 2, "setup": 1})
	w.awaitState(t, old, "TIME-WAIT")
}

// What GRO has merged is one packet to the agent, also when a copy of it is
// queued again behind the reset of an old socket.
func TestMergedFirstFlightStaysIntact(t *testing.T) {
	flightsInEveryState(t, (*wireLab).mergeAtServer, mergedFlightArrives)
}

// flightsInEveryState has a flight meet each state of an old socket, and none. What
// arrives says whether it has come as it was to: that is a matter of time, so try
// again.
func flightsInEveryState(t *testing.T, prepare func(*wireLab, *testing.T), arrives func(*testing.T, *wireLab, wireState, bool) bool) {
	t.Helper()
	for _, shape := range []wireShape{wireRoute, wireHost} {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			prepare(w, t)
			for _, state := range append([]wireState{{name: "new port"}}, wireStates...) {
				wireFamilies(t, func(t *testing.T, v6 bool) {
					t.Run(state.name, func(t *testing.T) {
						for range 10 {
							if arrives(t, w, state, v6) {
								return
							}
						}
						t.Fatal("no flight has come as it was to: the test has not tested what it should")
					})
				})
			}
		})
	}
}

// mergeAtServer makes the server's port wait for what it can merge.
func (w *wireLab) mergeAtServer(t *testing.T) {
	t.Helper()
	w.setServerPort(t, "gro_flush_timeout", 5_000_000)
}

// batchAtServer makes the server's port take what has come within 5 ms at once, as a
// card does that moderates its interrupts.
func (w *wireLab) batchAtServer(t *testing.T) {
	t.Helper()
	w.mergeAtServer(t)
	w.setServerPort(t, "napi_defer_hard_irqs", 1<<31-1)
}

func (w *wireLab) setServerPort(t *testing.T, name string, value int) {
	t.Helper()
	need(t, "unshare", "mount")
	script := fmt.Sprintf("mount -t sysfs sysfs /sys && echo %d > /sys/class/net/%s/%s", value, w.Server.Port, name)
	if out, err := w.Server.Command(t.Context(), "unshare", "-m", "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("set %s: %v: %s", name, err, out)
	}
}

// TC sees a batch of packets before TCP sees the first of them: what comes behind
// the packet that makes the connection waits for it, and none has to be sent again.
func TestFirstFlightInOneBatchStaysWhole(t *testing.T) {
	flightsInEveryState(t, (*wireLab).batchAtServer, batchedFlightArrives)
}

// newcomer is a client that has its SYN-ACK, from a port with an old socket or a
// new one, and how many connections the server has accepted before his.
func (w *wireLab) newcomer(t *testing.T, s *wireServer, state wireState, v6 bool) (f *wireFlow, accepted int) {
	t.Helper()
	f = w.flow(t, v6)
	if state.arrange != nil {
		state.arrange(f, s)
		w.awaitState(t, f, state.state)
		f = f.reuse()
	}
	s.becomes(wireEcho)
	accepted = len(s.conns())
	f.open()
	return f, accepted
}

// arrivesWhole wants the server to have a flight, and to have answered it.
func (s *wireServer) arrivesWhole(t *testing.T, f *wireFlow, accepted int, stream []byte) {
	t.Helper()
	f.expectStream(string(stream))
	if got, _ := s.conn(accepted).read(); !bytes.Equal(got, stream) {
		t.Fatalf("the server has received %d bytes, want %d", len(got), len(stream))
	}
}

// batchedFlightArrives sends a bare ACK and what GRO cannot merge, each once, and
// says whether any packet has met its connection too early.
func batchedFlightArrives(t *testing.T, w *wireLab, state wireState, v6 bool) bool {
	s := w.serve(t, state.mode)
	defer s.stop()
	f, accepted := w.newcomer(t, s, state, v6)
	before := w.verdicts(t)
	frames := [][]byte{f.frame(0, wireACK, nil)}
	var stream []byte
	for i := range 5 {
		segment := wireSegment(i)[:1000+i] // one that is longer is not merged
		frames = append(frames, f.frame(len(stream), wireData, segment))
		stream = append(stream, segment...)
	}
	f.emit(frames...)
	s.arrivesWhole(t, f, accepted, stream)
	w.expect(t, before, wireVerdicts{"setup": 1, "drop_bad_cookie": 0, "drop_stubborn_socket": 0, "drop_early": 0, "drop_refused": 0})
	return w.verdicts(t).since(before)["requeue_early"] > 0
}

// mergedFlightArrives checks a flight, and says whether GRO merged any of it.
func mergedFlightArrives(t *testing.T, w *wireLab, state wireState, v6 bool) bool {
	s := w.serve(t, state.mode)
	defer s.stop()
	tap := newWireTap(t, w.Server.Namespace, w.Server.Port)
	f, accepted := w.newcomer(t, s, state, v6)
	before := w.verdicts(t)
	var frames [][]byte
	var stream []byte
	for i := range 6 {
		frames = append(frames, f.frame(len(stream), wireACK, wireSegment(i)))
		stream = append(stream, wireSegment(i)...)
	}
	f.emit(frames...)
	s.arrivesWhole(t, f, accepted, stream)
	w.expect(t, before, wireVerdicts{"setup": 1, "drop_stubborn_socket": 0, "drop_refused": 0})
	merged := tap.frames(func(frame wireFrame) bool {
		p, ok := parseWirePacket(frame.bytes)
		return ok && !frame.out && uint16(p.tcp.SrcPort) == f.port && len(p.tcp.Payload) > len(wireSegment(0))
	})
	return len(merged) > 0
}

// The setup packet may come twice to a port with an old socket, and the rest
// of its flight before it has been queued again.
func TestDuplicatedSetupPacketOnReusedPortSetsUpOnce(t *testing.T) {
	w := newWire(t, wireRoute, wireSettings{})
	wireFamilies(t, func(t *testing.T, v6 bool) {
		for _, state := range wireStates {
			t.Run(state.name, func(t *testing.T) {
				s := w.serve(t, state.mode)
				old, _ := state.bring(t, w, s, v6, nil)
				s.becomes(wireEcho)
				f := old.reuse()
				f.open()
				before := w.verdicts(t)
				setup, next := f.frame(0, wireData, []byte("first ")), f.frame(6, wireData, []byte("second"))
				f.emit(setup, setup, next, setup, next, setup, next)
				f.expectStream("first second")
				if got, _ := s.conn(1).read(); string(got) != "first second" {
					t.Fatalf("the server has received %q", got)
				}
				got := w.verdicts(t).since(before)
				if got["setup"] != 1 || got["requeue_stale"]+got["requeue_timewait"] != 1 {
					t.Fatalf("verdicts %v, want one setup and one requeue", got)
				}
				if n := len(s.conns()); n != 2 {
					t.Fatalf("%d connections, want 2", n)
				}
			})
		}
	})
}

// A client may come back from one port again and again.
func TestPortIsReusedManyTimes(t *testing.T) {
	for _, shape := range []wireShape{wireRoute, wireHost} {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				s, f, before := w.serve(t, wireEcho), w.flow(t, v6), w.verdicts(t)
				rounds := 50
				for n := range rounds {
					f.connect(wireOld)
					s.conn(n).Close()
					f.expectFIN()
					f.send(len(wireOld), wireFINACK, nil)
					next := f.reuse()
					next.tsval = f.tsval - 10
					f = next
				}
				w.expect(t, before, wireVerdicts{"setup": uint64(rounds), "requeue_timewait": uint64(rounds - 1), "drop_stubborn_socket": 0})
				if n := len(s.conns()); n != rounds {
					t.Fatalf("%d connections, want %d", n, rounds)
				}
			})
		})
	}
}

// The old socket is gone and there is no room for the new one yet: the client
// tries again.
func TestReusedPortWaitsForRoomInTheQueue(t *testing.T) {
	w := newWire(t, wireRoute, wireSettings{})
	wireFamilies(t, func(t *testing.T, v6 bool) {
		s := w.serve(t, wireEcho)
		old := w.flow(t, v6)
		wireTimeWait(old, s)
		w.awaitState(t, old, "TIME-WAIT")
		s.stop()
		listener := w.listen(t, 1)
		defer listener.Close()
		for range 2 {
			f := w.flow(t, v6)
			f.open()
			f.send(0, wireData, []byte("in the queue"))
			f.pump("an ACK", func() bool { return f.count > 0 })
		}
		f := old.reuse()
		f.open()
		before := w.verdicts(t)
		setup := f.send(0, wireData, []byte(wireRequest))
		w.expect(t, before, wireVerdicts{"requeue_timewait": 1, "setup": 1})
		f.emit(setup)
		w.expect(t, before, wireVerdicts{"requeue_timewait": 1, "setup": 2, "drop_stubborn_socket": 0})
		acceptOne(t, listener, "in the queue")
		f.emit(setup)
		acceptOne(t, listener, "in the queue")
		acceptOne(t, listener, wireRequest)
		w.expect(t, before, wireVerdicts{"requeue_timewait": 1, "setup": 3, "drop_stubborn_socket": 0})
	})
}
