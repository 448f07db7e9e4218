package e2e

import (
	"net"
	"testing"
)

// SYNs that come around the edge are the kernel's, and so are its own cookies.
func TestKernelHandshakesWorkBesideTheDefence(t *testing.T) {
	for _, c := range []struct{ name, syncookies, verdict string }{
		{"queued", "1", "pass_connection"},
		{"kernel's cookies", "2", "pass_kernel_cookie"},
	} {
		for _, shape := range []wireShape{wireRoute, wireBridge} {
			t.Run(c.name+"/"+shape.name, func(t *testing.T) {
				w := newWire(t, shape, wireSettings{sysctls: map[string]string{"net.ipv4.tcp_syncookies": c.syncookies}})
				wireFamilies(t, func(t *testing.T, v6 bool) {
					s := w.serve(t, wireEcho)
					f := w.flow(t, v6)
					f.behind = true
					before := w.verdicts(t)
					f.open()
					f.send(0, wireACK, nil)
					s.expectOnly("")
					w.expect(t, before, wireVerdicts{"pass_syn": 1, c.verdict: 1, "setup": 0, "drop_bad_cookie": 0})
					f.send(0, wireData, []byte(wireRequest))
					f.expectStream(wireRequest)
					w.flow(t, v6).connect(wireRequest) // through the edge, meanwhile
					w.expect(t, before, wireVerdicts{"setup": 1})
					s.expectConns(wireRequest, wireRequest)
				})
			})
		}
	}
}

// strict: only allowed prefixes may open a connection that the edge has not
// proved.
func TestStrictServerDropsSYNsFromElsewhere(t *testing.T) {
	w := newWire(t, wireRoute, wireSettings{server: "strict: true\nallowed: [10.99.2.0/24, \"fd99:0:0:2::/64\"]\n"})
	wireFamilies(t, func(t *testing.T, v6 bool) {
		s := w.serve(t, wireEcho)
		before := w.verdicts(t)
		stranger := w.flow(t, v6)
		stranger.behind = true
		stranger.emit(stranger.raw(stranger.isn, 0, wireFlags{syn: true}, nil))
		w.expect(t, before, wireVerdicts{"drop_strict_syn": 1, "pass_syn": 0})
		w.awaitState(t, stranger, "")

		friend := w.flow(t, v6)
		friend.behind, friend.source = true, w.Attacker.Addr(v6)
		tap := newWireTap(t, w.Server.Namespace, w.Server.Port)
		friend.emit(friend.raw(friend.isn, 0, wireFlags{syn: true}, nil))
		w.expect(t, before, wireVerdicts{"drop_strict_syn": 1, "pass_syn": 1})
		friend.takeFrom(tap)
		friend.send(0, wireData, []byte(wireRequest))
		s.expectOnly(wireRequest)

		w.flow(t, v6).connect(wireRequest) // proved by the edge
		s.expectConns(wireRequest, wireRequest)
	})
}

// takeFrom takes the SYN-ACK that the server's port has sent: it goes to
// somebody else.
func (f *wireFlow) takeFrom(tap *wireTap) {
	f.t.Helper()
	eventually(f.t, wirePatience, "the server answers the SYN", func() bool {
		return len(tap.frames(func(frame wireFrame) bool {
			p, ok := parseWirePacket(frame.bytes)
			if !ok || !frame.out || uint16(p.tcp.DstPort) != f.port || !p.tcp.SYN {
				return false
			}
			f.cookie = p.tcp.Seq
			f.tsecr, _, _ = p.stamps()
			return true
		})) > 0
	})
}

// A protected port on which nobody listens is closed, as without a defence.
func TestClosedPortAnswersWithReset(t *testing.T) {
	for _, shape := range wireShapes {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				for name, payload := range map[string]string{"bare ACK": "", "data": wireRequest} {
					t.Run(name, func(t *testing.T) {
						f := w.flow(t, v6)
						f.open()
						before := w.verdicts(t)
						f.send(0, wireData, []byte(payload))
						f.expectReset()
						if f.reset.tcp.Seq != f.cookie+1 {
							t.Fatalf("RST at %d, want cookie+1 = %d", f.reset.tcp.Seq, f.cookie+1)
						}
						w.expect(t, before, wireVerdicts{"pass_closed_port": 1, "setup": 0})
					})
				}
			})
		})
	}
}

// What has no valid cookie gets no answer, neither from the edge nor, where it
// comes around the edge, from the server: a listener would send a RST.
func TestInvalidCookieGetsNoAnswer(t *testing.T) {
	for _, shape := range wireShapes {
		for _, listening := range []bool{true, false} {
			t.Run(shape.name+map[bool]string{true: "/listening", false: "/closed"}[listening], func(t *testing.T) {
				w := newWire(t, shape, wireSettings{})
				wireFamilies(t, func(t *testing.T, v6 bool) { invalidIsSilent(t, w, v6, listening) })
			})
		}
	}
}

func invalidIsSilent(t *testing.T, w *wireLab, v6, listening bool) {
	if listening {
		w.serve(t, wireEcho)
	}
	tap := newWireTap(t, w.Server.Namespace, w.Server.Port)
	forger := w.flow(t, v6)
	forger.behind = !w.shape.host
	before := w.verdicts(t)
	for range 10 {
		isn, cookie := w.random.Uint32(), w.random.Uint32()
		forger.emit(forger.raw(isn, cookie, wireACK, nil), forger.raw(isn, cookie, wireData, []byte(wireRequest)), forger.raw(isn, cookie, wireFINACK, nil))
	}
	w.expect(t, before, wireVerdicts{"drop_bad_cookie": 30, "setup": 0})
	honest := w.flow(t, v6)
	honest.open()
	honest.send(0, wireData, []byte(wireRequest))
	honest.pump("an answer", func() bool { return len(honest.got) > 0 || honest.reset != nil })
	if n := len(tap.frames(func(f wireFrame) bool {
		p, ok := parseWirePacket(f.bytes)
		return ok && f.out && uint16(p.tcp.DstPort) == forger.port
	})); n > 0 {
		t.Fatalf("the server has answered %d packets without a valid cookie", n)
	}
}

// A server that does not accept for a while loses no client: the queue is
// full, the client tries again, and its connection is made when there is room.
func TestOverflowingAcceptQueueCostsNoConnection(t *testing.T) {
	for _, shape := range wireShapes {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) { queueOverflows(t, w, v6) })
		})
	}
}

func queueOverflows(t *testing.T, w *wireLab, v6 bool) {
	listener := w.listen(t, 1)
	defer listener.Close()
	for range 2 { // the kernel queues one more than it was told
		f := w.flow(t, v6)
		f.open()
		f.send(0, wireData, []byte("in the queue"))
		f.pump("an ACK", func() bool { return f.count > 0 })
	}
	f := w.flow(t, v6)
	f.open()
	before := w.verdicts(t)
	setup := f.send(0, wireData, []byte(wireRequest))
	for n := range uint64(3) {
		w.expect(t, before, wireVerdicts{"setup": n + 1, "pass_replayed": 0})
		w.awaitState(t, f, "")
		f.emit(setup)
	}
	before = w.verdicts(t)
	for range 2 {
		acceptOne(t, listener, "in the queue")
	}
	f.emit(setup)
	acceptOne(t, listener, wireRequest)
	f.emit(setup)
	w.expect(t, before, wireVerdicts{"setup": 1, "pass_repeated": 1, "pass_replayed": 0})
	if f.drain(); f.reset != nil {
		t.Fatal("a client that had to wait was sent a RST")
	}
}

// acceptOne accepts the next connection and aborts it at the test's end.
func acceptOne(t *testing.T, listener net.Listener, want string) {
	t.Helper()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := &wireConn{TCPConn: conn.(*net.TCPConn)}
	t.Cleanup(c.abort)
	got := make([]byte, len(want))
	if _, err := conn.Read(got); err != nil || string(got) != want {
		t.Fatalf("accepted a connection with %q (%v), want %q", got, err, want)
	}
}
