package dataplane

import (
	"encoding/binary"
	"math"
	"net/netip"
	"testing"

	"smartcookie/internal/cookie"
)

// filterTwin does in Go what filter.h does in the kernel, with the same key.
type filterTwin struct {
	state edgeFilterState
	lines []edgeFilterLine
}

// newFilterTwin takes an edge's key and the size of its filter.
func newFilterTwin(e edgeAgent) filterTwin {
	e.t.Helper()
	twin := filterTwin{lines: make([]edgeFilterLine, e.FilterLines.MaxEntries())}
	if err := e.Filter.Lookup(uint32(0), &twin.state); err != nil {
		e.t.Fatal(err)
	}
	return twin
}

// hash is the multilinear hash of filter.h, a product for each pair of words
// and the ports with a word of their own, and the bijection behind it.
func (f filterTwin) hash(flow cookie.Flow) uint64 {
	key := f.state.Key
	from, to := flow.Source.Addr().AsSlice(), flow.Destination.Addr().AsSlice()
	ports := uint64(flow.Source.Port())<<16 | uint64(flow.Destination.Port())
	h := key[0] + (key[3]+ports)*key[4]
	pairs := [][]uint64{key[1:3], key[5:7], key[7:9], key[9:11]}
	for i := 0; i < len(from); i += 4 {
		a, b := binary.BigEndian.Uint32(from[i:]), binary.BigEndian.Uint32(to[i:])
		h += (pairs[i/4][0] + uint64(a)) * (pairs[i/4][1] + uint64(b))
	}
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// bits are those that a flow has in the words of a generation.
func (f filterTwin) bits(hash uint64) (words [4]uint64) {
	for i := range words {
		low, high := hash>>(10*i)&31, hash>>(10*i+5)&31
		words[i] = 1<<low | 1<<(32+high)
	}
	return words
}

func (f filterTwin) line(hash uint64) (*edgeFilterLine, int) {
	index := hash >> 32 * uint64(len(f.lines)) >> 32
	round, next := f.state.Position>>32, f.state.Position&math.MaxUint32
	if index < next {
		round++ // swept once more than the lines behind it
	}
	return &f.lines[index], int(round & 1)
}

// after sets the sweep to where it is once it has passed so many lines.
func (f *filterTwin) after(lines uint64) {
	n := uint64(len(f.lines))
	f.state.Position = lines/n<<32 | lines%n
}

func (f filterTwin) add(flow cookie.Flow) {
	hash := f.hash(flow)
	line, current := f.line(hash)
	for i, bits := range f.bits(hash) {
		line.Word[current][i] |= bits
	}
}

func (f filterTwin) has(flow cookie.Flow) bool {
	hash := f.hash(flow)
	line, _ := f.line(hash)
	return within(line.Word[0], f.bits(hash)) || within(line.Word[1], f.bits(hash))
}

func within(words, bits [4]uint64) bool {
	for i := range bits {
		if words[i]&bits[i] != bits[i] {
			return false
		}
	}
	return true
}

// sweep does what the kernel's sweep does with so many lines.
func (f *filterTwin) sweep(lines int) {
	for range lines {
		round, index := f.state.Position>>32, f.state.Position&math.MaxUint32
		f.lines[index].Word[(round+1)&1] = [4]uint64{}
		f.after(round*uint64(len(f.lines)) + index + 1)
	}
}

func (f filterTwin) clear() { clear(f.lines) }

// bytes is the content of the map.
func (f filterTwin) bytes(t testing.TB) []byte {
	t.Helper()
	b, err := binary.Append(nil, binary.NativeEndian, f.lines)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// numberedFlow is one of 2^48 flows to web, all different.
func numberedFlow(n uint64, v6 bool) cookie.Flow {
	if v6 {
		a := client6.Addr().As16()
		binary.BigEndian.PutUint32(a[8:], uint32(n>>16))
		return cookie.Flow{Source: netip.AddrPortFrom(netip.AddrFrom16(a), uint16(n)), Destination: web6}
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(n>>16)+10<<24)
	return cookie.Flow{Source: netip.AddrPortFrom(netip.AddrFrom4(a), uint16(n)), Destination: web4}
}
