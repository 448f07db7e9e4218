package cookie

import (
	"encoding/binary"
	"math/bits"
)

// SipHash24 is SipHash-2-4 with 64 bits of output (Aumasson and Bernstein,
// 2012). Key and message are read in little-endian order.
func SipHash24(key [16]byte, message []byte) uint64 {
	k0 := binary.LittleEndian.Uint64(key[:8])
	k1 := binary.LittleEndian.Uint64(key[8:])
	s := sipState{
		k0 ^ 0x736f6d6570736575,
		k1 ^ 0x646f72616e646f6d,
		k0 ^ 0x6c7967656e657261,
		k1 ^ 0x7465646279746573,
	}
	last := uint64(len(message)) << 56
	for ; len(message) >= 8; message = message[8:] {
		s.absorb(binary.LittleEndian.Uint64(message))
	}
	for i, b := range message {
		last |= uint64(b) << (8 * i)
	}
	s.absorb(last)
	s[2] ^= 0xff
	for range 4 {
		s.round()
	}
	return s[0] ^ s[1] ^ s[2] ^ s[3]
}

type sipState [4]uint64

func (s *sipState) absorb(word uint64) {
	s[3] ^= word
	s.round()
	s.round()
	s[0] ^= word
}

func (s *sipState) round() {
	s[0] += s[1]
	s[2] += s[3]
	s[1] = bits.RotateLeft64(s[1], 13) ^ s[0]
	s[3] = bits.RotateLeft64(s[3], 16) ^ s[2]
	s[0] = bits.RotateLeft64(s[0], 32)
	s[2] += s[1]
	s[0] += s[3]
	s[1] = bits.RotateLeft64(s[1], 17) ^ s[2]
	s[3] = bits.RotateLeft64(s[3], 21) ^ s[0]
	s[2] = bits.RotateLeft64(s[2], 32)
}

// HalfSipHash24 is HalfSipHash-2-4 with 32 bits of output: SipHash on 32-bit
// words, for a switch. Key and message are read in little-endian order.
func HalfSipHash24(key [8]byte, message []byte) uint32 {
	k0 := binary.LittleEndian.Uint32(key[:4])
	k1 := binary.LittleEndian.Uint32(key[4:])
	s := halfSipState{k0, k1, k0 ^ 0x6c796765, k1 ^ 0x74656462}
	last := uint32(len(message)) << 24
	for ; len(message) >= 4; message = message[4:] {
		s.absorb(binary.LittleEndian.Uint32(message))
	}
	for i, b := range message {
		last |= uint32(b) << (8 * i)
	}
	s.absorb(last)
	s[2] ^= 0xff
	for range 4 {
		s.round()
	}
	return s[1] ^ s[3]
}

type halfSipState [4]uint32

func (s *halfSipState) absorb(word uint32) {
	s[3] ^= word
	s.round()
	s.round()
	s[0] ^= word
}

func (s *halfSipState) round() {
	s[0] += s[1]
	s[2] += s[3]
	s[1] = bits.RotateLeft32(s[1], 5) ^ s[0]
	s[3] = bits.RotateLeft32(s[3], 8) ^ s[2]
	s[0] = bits.RotateLeft32(s[0], 16)
	s[2] += s[1]
	s[0] += s[3]
	s[1] = bits.RotateLeft32(s[1], 13) ^ s[2]
	s[3] = bits.RotateLeft32(s[3], 7) ^ s[0]
	s[2] = bits.RotateLeft32(s[2], 16)
}
