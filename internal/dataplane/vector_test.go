package dataplane

import (
	"bytes"
	"os"
	"testing"

	"smartcookie/internal/cookie"
	"smartcookie/internal/cookie/vector"
	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// everywhere protects the addresses of all vectors.
var everywhere = []policy.Service{{
	Name: "vectors", Domain: "main", Mode: policy.Always, Options: policy.AllOptions,
	Prefixes: prefixes("198.51.100.0/24", "2001:db8::/32"),
	Ports:    []policy.PortRange{{Low: 0, High: 65535}}, MSS4: 1410, MSS6: 1390, Window: 4321,
}}

func readVectors(t *testing.T) []vector.Vector {
	t.Helper()
	text, err := os.ReadFile("../../contract/vectors/cookie.json")
	if err != nil {
		t.Fatal(err)
	}
	f, err := vector.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Vectors) < 80 {
		t.Fatalf("only %d vectors", len(f.Vectors))
	}
	return f.Vectors
}

func keySlot(t *testing.T, epoch uint64, hash string, key []byte) cookie.Slot {
	t.Helper()
	h, err := cookie.ParseHash(hash)
	if err != nil {
		t.Fatal(err)
	}
	s := cookie.Slot{Epoch: epoch, Hash: h, WindowScale: 5}
	copy(s.Key[:], key)
	return s
}

// onlyKeys gives the agent these keys and the epoch.
func (a agent) onlyKeys(epoch uint64, slots ...cookie.Slot) {
	a.t.Helper()
	a.clearKeys()
	a.writeKeys(domainMain, slots...)
	a.setEpoch(epoch, shortEpoch)
}

func vectorSYN(v vector.Vector) wire.Packet {
	p := wire.Packet{
		Source: v.Flow().Source, To: v.Flow().Destination,
		Flags: wire.SYN, Seq: uint32(v.ISN), Options: v.SYNOptions, Window: 64240,
	}
	if v.SYN.ECN {
		p.Flags |= wire.ECE | wire.CWR
	}
	return p
}

func vectorACK(v vector.Vector) wire.Packet {
	p := wire.Packet{
		Source: v.Flow().Source, To: v.Flow().Destination,
		Flags: wire.ACK, Seq: uint32(v.Packet.Seq), Ack: uint32(v.Packet.Ack),
	}
	if v.Packet.TSecr != nil {
		echo := uint32(*v.Packet.TSecr)
		p.Options = []byte{1, 1, 8, 10, 1, 2, 3, 4, byte(echo >> 24), byte(echo >> 16), byte(echo >> 8), byte(echo)}
	}
	return p
}

func (e edgeAgent) offer(o vector.Offer) {
	e.t.Helper()
	s := edgeService{Mode: uint8(policy.Always), Mss4: 1410, Mss6: 1390, Window: 4321}
	for bit, offered := range []bool{o.Timestamps, o.SACK, o.WindowScale, o.ECN} {
		if offered {
			s.Options |= 1 << bit
		}
	}
	if err := e.Services.Put(uint32(1), s); err != nil {
		e.t.Fatal(err)
	}
}

// wantAnswer builds the whole answer from the vector's own values.
func wantAnswer(v vector.Vector, tsval uint32) []byte {
	p := wire.Packet{
		Source: v.Flow().Destination, To: v.Flow().Source, Seq: uint32(v.Cookie), Ack: uint32(v.ISN) + 1,
		Flags: wire.SYN | wire.ACK, Window: 4321,
	}
	agreed := wire.Options{TSval: tsval, TSecr: 0x12345678} // which all vectors with timestamps send
	agreed.MSS = map[string]uint16{"ipv4": 1410, "ipv6": 1390}[v.Family]
	agreed.Timestamps = v.TSvalBits != nil
	agreed.SACK = v.SYN.SACK && v.Offer.SACK
	agreed.HasScale, agreed.Scale = v.SYN.WindowScale != nil && v.Offer.WindowScale, 5
	if agreed.HasScale && !agreed.Timestamps { // a class must be near the client's scale
		scale := min(*v.SYN.WindowScale, 14)
		agreed.HasScale = scale == 0 || agreed.SACK && scale <= 10
	}
	if agreed.Timestamps && v.SYN.ECN && v.Offer.ECN {
		p.Flags |= wire.ECE
	}
	p.Options = wire.AnswerOptions(agreed)
	answer := p.Frame()
	copy(answer, answer[6:12])
	copy(answer[6:12], p.Frame())
	return answer
}

// tsvalOf checks the TSval of an answer, if it has one, and returns it.
func tsvalOf(t *testing.T, v vector.Vector, answer []byte, from, to uint64) uint32 {
	t.Helper()
	if v.TSvalBits == nil {
		return 0
	}
	tsval := wire.ReadOptions(wire.Read(answer).Options, 0).TSval
	if tsval&63 != uint32(*v.TSvalBits) {
		t.Errorf("low bits of TSval are %#x, want %#x", tsval&63, *v.TSvalBits)
	}
	checkTicks(t, tsval, from, to)
	return tsval
}

// checkTicks says whether a TSval was made between two times of the clock.
func checkTicks(t testing.TB, tsval uint32, from, to uint64) {
	t.Helper()
	first, last := uint32(from>>20)&^63, uint32(to>>20)&^63
	if tsval&^63-first > last-first {
		t.Errorf("TSval ticks at %#x, not from %#x to %#x", tsval&^63, first, last)
	}
}

func TestEdgeAnswersTheSYNOfEveryVector(t *testing.T) {
	e := newEdge(t, func(c *EdgeConfig) { c.Services = everywhere })
	for _, v := range readVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
			e.onlyKeys(v.Epoch, keySlot(t, v.Epoch, v.Hash, v.Key))
			e.offer(v.Offer)
			from := e.clockNow()
			got := e.outside(vectorSYN(v).Frame())
			if got.action != xdpTX || got.verdict != "answer_syn" {
				t.Fatalf("action %d, %s", got.action, got.verdict)
			}
			tsval := tsvalOf(t, v, got.out, from, e.clockNow())
			if want := wantAnswer(v, tsval); !bytes.Equal(got.out, want) {
				t.Errorf("got  %x\nwant %x", got.out, want)
			}
		})
	}
}

func receiverSlots(t *testing.T, v vector.Vector) (slots []cookie.Slot) {
	t.Helper()
	for _, s := range v.Receiver.Slots {
		slots = append(slots, keySlot(t, s.Epoch, s.Hash, s.Key))
	}
	return slots
}

func TestEdgeAcceptsWhatEachVectorExpects(t *testing.T) {
	e := newEdge(t, func(c *EdgeConfig) { c.Services = everywhere })
	for _, v := range readVectors(t) {
		if v.Receiver.Role != "edge" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
			e.forget()
			e.onlyKeys(v.Receiver.Epoch, receiverSlots(t, v)...)
			frame := vectorACK(v).Frame()
			got := e.outside(frame)
			if !bytes.Equal(got.out, frame) {
				t.Error("the packet was changed")
			}
			if (got.verdict == "pass_cookie") != v.Valid() {
				t.Errorf("%s, want %s", got.verdict, v.Expect)
			}
			if refused := got.verdict == "drop_bad_cookie" || got.verdict == "drop_no_key"; !v.Valid() && !refused {
				t.Errorf("an invalid cookie is lost as %s", got.verdict)
			}
			if again := e.outside(frame); (again.verdict == "pass_verified") != v.Valid() {
				t.Errorf("the same packet again: %s", again.verdict)
			}
		})
	}
}

// serverAccepts is what the model says of a vector's packet at a server.
func serverAccepts(t *testing.T, v vector.Vector) bool {
	t.Helper()
	slots := make(map[uint64]cookie.Slot)
	for _, s := range receiverSlots(t, v) {
		slots[s.Epoch] = s
	}
	r := cookie.Receiver{
		Epoch: v.Receiver.Epoch, Window: cookie.ServerWindow,
		Slot: func(e uint64) (cookie.Slot, bool) { s, ok := slots[e]; return s, ok },
	}
	_, _, ok := r.Check(uint32(v.Packet.Ack-1), v.Flow(), uint32(v.Packet.Seq-1))
	if v.Receiver.Role == "server" && ok != v.Valid() {
		t.Fatal("the model contradicts the vector")
	}
	return ok
}

// Nobody listens in the tests' namespace: a valid cookie meets a closed port.
func TestServerAcceptsWhatEachVectorExpects(t *testing.T) {
	s := newServer(t, func(c *ServerConfig) { c.Services = everywhere })
	for _, v := range readVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			s := serverAgent{agent{s.tables, t}, s.serverObjects}
			s.onlyKeys(v.Receiver.Epoch, receiverSlots(t, v)...)
			frame := vectorACK(v).Frame()
			got := s.ingress(frame)
			want, action := "drop_bad_cookie", uint32(tcDrop)
			if serverAccepts(t, v) {
				want, action = "pass_closed_port", tcNext
			}
			if got.verdict != want || got.action != action || !bytes.Equal(got.out, frame) {
				t.Errorf("%s, action %d; want %s, %d and the packet as it was", got.verdict, got.action, want, action)
			}
		})
	}
}
