package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// wireFamilies runs a test once for each family.
func wireFamilies(t *testing.T, test func(*testing.T, bool)) {
	t.Helper()
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) { test(t, v6) })
	}
}

// What reaches the server first may be any of a client's packets: the ones
// before it were lost.
func TestAnyFirstPacketSetsUp(t *testing.T) {
	for _, shape := range wireServers {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				for _, stamps := range []bool{true, false} {
					for name, first := range wireFirsts {
						t.Run(fmt.Sprintf("%s,timestamps=%v", name, stamps), func(t *testing.T) {
							s := w.serve(t, wireEcho)
							f := w.flow(t, v6)
							f.stamps = stamps
							before := w.verdicts(t)
							f.open()
							first(f, s)
							f.expectCookieIsISN()
							w.expect(t, before, wireVerdicts{"setup": 1, "drop_bad_cookie": 0, "drop_refused": 0})
						})
					}
				}
			})
		})
	}
}

const wireRequest = "a request of the client"

var wireFirsts = map[string]func(*wireFlow, *wireServer){
	"bare ACK": func(f *wireFlow, s *wireServer) {
		f.send(0, wireACK, nil)
		s.expectOnly("")
		f.send(0, wireData, []byte(wireRequest))
		f.expectStream(wireRequest)
		s.expectOnly(wireRequest)
	},
	"ACK with data": func(f *wireFlow, s *wireServer) {
		f.send(0, wireData, []byte(wireRequest))
		f.expectStream(wireRequest)
		s.expectOnly(wireRequest)
	},
	"ACK with data and FIN": func(f *wireFlow, s *wireServer) {
		f.send(0, wireFlags{ack: true, psh: true, fin: true}, []byte(wireRequest))
		f.expectStream(wireRequest)
		s.expectOnly(wireRequest)
		s.expectEOF(s.conn(0))
	},
	"bare FIN": func(f *wireFlow, s *wireServer) {
		f.send(0, wireFINACK, nil)
		s.expectOnly("")
		s.expectEOF(s.conn(0))
		f.pump("the FIN's acknowledgement", func() bool { return f.first != nil })
	},
}

// A first flight of ten segments: whatever the network does to it, the server
// sees one connection and every byte in its place.
func TestMangledFirstFlightStaysIntact(t *testing.T) {
	for _, shape := range wireServers {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				for _, c := range wireFlights {
					t.Run(c.name, func(t *testing.T) { flightArrives(t, w, v6, c) })
				}
			})
		})
	}
}

// wireFlight is what becomes of a flight of segments 0 to 9, then of its
// retransmissions; -1 is the bare ACK. Numbers are in the order of arrival.
type wireFlight struct {
	name   string
	arrive []int
}

var wireFlights = []wireFlight{
	{"whole", []int{-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
	{"ACK lost", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
	{"ACK and first lost", []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
	{"ACK and first two lost", []int{2, 3, 4, 5, 6, 7, 8, 9, 0, 2, 1, 3, 4, 5, 6, 7, 8, 9}},
	{"first lost", []int{-1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0}},
	{"first two lost", []int{-1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1}},
	{"ACK late", []int{0, 1, -1, 2, 3, 4, 5, 6, 7, 8, 9}},
	{"ACK last", []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1}},
	{"reversed", []int{-1, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}},
	{"first late, no ACK", []int{1, 2, 0, 3, 4, 5, 6, 7, 8, 9, 1, 2}},
	{"everything twice", []int{-1, -1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9}},
	{"repeated as a whole", []int{-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
}

// wireSegment is the n-th segment of a flight.
func wireSegment(n int) []byte {
	return []byte(strings.Repeat(fmt.Sprintf("segment %d ", n), 130)) // 1300 bytes
}

func flightArrives(t *testing.T, w *wireLab, v6 bool, c wireFlight) {
	s := w.serve(t, wireEcho)
	f := w.flow(t, v6)
	f.open()
	before := w.verdicts(t)
	frames := map[int][]byte{-1: f.frame(0, wireACK, nil)}
	var stream []byte
	for i := range 10 {
		frames[i] = f.frame(len(stream), wireData, wireSegment(i))
		stream = append(stream, wireSegment(i)...)
	}
	for _, n := range c.arrive {
		f.emit(frames[n])
	}
	f.expectStream(string(stream))
	s.expectOnly(string(stream))
	f.expectCookieIsISN()
	w.expect(t, before, wireVerdicts{"setup": 1, "requeue_stale": 0, "requeue_timewait": 0})
	s.expectOnly(string(stream))
}

// Random orders, with losses and copies, as long as each segment arrives after
// something has set up.
func TestShuffledFirstFlightStaysIntact(t *testing.T) {
	w := newWire(t, wireRoute, wireSettings{})
	rounds := 40
	if long() {
		rounds = 2000
	}
	wireFamilies(t, func(t *testing.T, v6 bool) {
		for range rounds {
			c := wireFlight{name: "shuffled"}
			for range 1 + w.random.IntN(3) {
				c.arrive = append(c.arrive, w.random.Perm(11)...)
			}
			for i := range c.arrive {
				c.arrive[i]--
			}
			// The last round of retransmissions is whole.
			c.arrive = append(c.arrive, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
			arrive := slices.Clone(c.arrive)
			if !t.Run(fmt.Sprint(arrive), func(t *testing.T) { flightArrives(t, w, v6, c) }) {
				return
			}
		}
	})
}
