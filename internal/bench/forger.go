package bench

import (
	"encoding/binary"
	"hash/crc32"

	"smartcookie/internal/cookie"
)

// forger sees T of flows of its own, and says what it is of others. Messages are
// all of one length.
type forger interface {
	learn(message []byte, t uint32)
	// predict says T of a message; false: what was seen says nothing about it.
	predict(message []byte) (t uint32, ok bool)
	// rekeyed sees one flow of its own under another key, of which it needs no more.
	rekeyed(message []byte, t uint32)
}

// forgedMessage is what the MAC of a flow's cookie covers, padded as the hashes do
// it: whole words, of which the last byte is the length.
func forgedMessage(flow cookie.Flow, isn uint32) []byte {
	m := flow.Message(isn)
	return append(m, byte(len(m)))
}

// knownCRC forges a CRC32 whose polynomial it knows, by appendix A of SmartCookie:
// a CRC is affine, so that for messages of one length and a nonce n
//
//	CRC(n, x) = CRC(n, m) + CRC(0, m) + CRC(0, x)
//
// where + is exclusive or. One flow of its own is enough, wherever the nonce is.
type knownCRC struct {
	seen  bool
	nonce uint32 // CRC(n, m) + CRC(0, m), the same for every m
}

func (k *knownCRC) learn(message []byte, t uint32) {
	k.seen, k.nonce = true, t^crcOf(0, message)
}

func (k *knownCRC) predict(message []byte) (uint32, bool) {
	return k.nonce ^ crcOf(0, message), k.seen
}

func (k *knownCRC) rekeyed(message []byte, t uint32) { k.learn(message, t) }

// crcOf is T of the benchmark's CRC variant of the edge (bpf/bench_crc.bpf.c).
func crcOf(nonce uint32, message []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(binary.LittleEndian.AppendUint32(nil, nonce)), crc32.IEEETable, message)
}

// crcSlices are the tables by which a CRC32 takes a word at once: of a byte that
// is followed by none to three others.
func crcSlices() (slices [4][256]uint32) {
	slices[0] = *crc32.IEEETable
	for i := range slices[0] {
		for n := 1; n < len(slices); n++ {
			before := slices[n-1][i]
			slices[n][i] = before>>8 ^ slices[0][byte(before)]
		}
	}
	return slices
}

// affine forges any T whose bits are sums of bits of the message and constants,
// and knows no more of it: not that it is a CRC, nor the key, which is one of the
// constants. Each flow of its own is an equation; by elimination a message that is
// a sum of an odd number of seen ones has the sum of their Ts. So it needs one
// flow more than there are bits that shall differ.
type affine struct {
	rows []equation // each without the pivots of those before it
	key  uint32     // what the constants of another key add
}

// equation is a sum of messages, of which each has a bit more that is one, and the
// sum of their Ts.
type equation struct {
	bits  [6]uint64 // 40 bytes of IPv6 at most, and the one
	t     uint32
	pivot int // a bit that is one
}

func equationOf(message []byte, t uint32) equation {
	e := equation{t: t}
	for i, b := range message {
		e.bits[i/8] |= uint64(b) << (i % 8 * 8)
	}
	e.bits[len(e.bits)-1] = 1
	return e
}

func (e *equation) has(bit int) bool { return e.bits[bit/64]>>(bit%64)&1 == 1 }

func (e *equation) add(other equation) {
	for i := range e.bits {
		e.bits[i] ^= other.bits[i]
	}
	e.t ^= other.t
}

// reduce takes the pivots of all that is known out of an equation.
func (a *affine) reduce(e equation) equation {
	for _, row := range a.rows {
		if e.has(row.pivot) {
			e.add(row)
		}
	}
	return e
}

func (a *affine) learn(message []byte, t uint32) {
	e := a.reduce(equationOf(message, t))
	for e.pivot = 0; e.pivot < 64*len(e.bits); e.pivot++ {
		if e.has(e.pivot) {
			a.rows = append(a.rows, e)
			return
		}
	}
}

func (a *affine) predict(message []byte) (uint32, bool) {
	e := a.reduce(equationOf(message, 0))
	return e.t ^ a.key, e.bits == [6]uint64{}
}

// rekeyed uses that a key adds the same to every T: what the messages' bits do to it
// stays as it was.
func (a *affine) rekeyed(message []byte, t uint32) {
	if before, ok := a.predict(message); ok {
		a.key ^= t ^ before
	}
}
