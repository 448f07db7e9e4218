package bench

import (
	"encoding/binary"
	"math/bits"

	"smartcookie/internal/cookie"
)

// search tries so many keys, from the first one on, against T of a message of
// IPv4, in a loop that does nothing else; it returns those that make it. A T has 31
// bits that a cookie shows: of a search these would be the candidates, for which two
// or four cookies more decide.
type search func(message []byte, t uint32, first uint64, keys int) (found []uint64)

// searches are those by which a key is looked for. SipHash's keys have another 64
// bits, which stay zero: as many are never tried.
var searches = map[cookie.Hash]search{cookie.SipHash: searchSipHash, cookie.HalfSipHash: searchHalfSipHash}

// shownBits are those of T that are in a cookie: the epoch's parity takes the place
// of the top one.
const shownBits = 1<<31 - 1

func searchSipHash(message []byte, t uint32, first uint64, keys int) (found []uint64) {
	m0, m1 := binary.LittleEndian.Uint64(message), binary.LittleEndian.Uint64(message[8:])
	for k0 := first; k0 < first+uint64(keys); k0++ {
		var v0, v1, v2, v3 uint64 = k0 ^ 0x736f6d6570736575, 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, 0x7465646279746573 ^ m0
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v3 = v0^m0, v3^m1
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v2 = v0^m1, v2^0xff
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		if (uint32(v0^v1^v2^v3)^t)&shownBits == 0 {
			found = append(found, k0)
		}
	}
	return found
}

func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v2 += v3
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v2 += v1
	v0 = bits.RotateLeft64(v0, 32) + v3
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	return v0, v1, bits.RotateLeft64(v2, 32), v3
}

func searchHalfSipHash(message []byte, t uint32, first uint64, keys int) (found []uint64) {
	var m [4]uint32
	for i := range m {
		m[i] = binary.LittleEndian.Uint32(message[4*i:])
	}
	m0, m1, m2, m3 := m[0], m[1], m[2], m[3]
	for key := first; key < first+uint64(keys); key++ {
		k0, k1 := uint32(key), uint32(key>>32)
		v0, v1, v2, v3 := k0, k1, k0^0x6c796765, k1^0x74656462^m0
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v3 = v0^m0, v3^m1
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v3 = v0^m1, v3^m2
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v3 = v0^m2, v3^m3
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v2 = v0^m3, v2^0xff
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = halfSipRound(v0, v1, v2, v3)
		_, v1, _, v3 = halfSipRound(v0, v1, v2, v3)
		if (v1^v3^t)&shownBits == 0 {
			found = append(found, key)
		}
	}
	return found
}

func halfSipRound(v0, v1, v2, v3 uint32) (uint32, uint32, uint32, uint32) {
	v0 += v1
	v2 += v3
	v1 = bits.RotateLeft32(v1, 5) ^ v0
	v3 = bits.RotateLeft32(v3, 8) ^ v2
	v2 += v1
	v0 = bits.RotateLeft32(v0, 16) + v3
	v1 = bits.RotateLeft32(v1, 13) ^ v2
	v3 = bits.RotateLeft32(v3, 7) ^ v0
	return v0, v1, bits.RotateLeft32(v2, 16), v3
}
