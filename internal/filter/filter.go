// Package filter models filters of verified flows in Go, for tests and
// measurements: the one of bpf/filter.h, and the partitioned one of the paper. The
// data plane needs neither.
package filter

import (
	"encoding/binary"
	"fmt"
	"io"

	"smartcookie/internal/cookie"
)

// Key is that of a filter's hash.
type Key [11]uint64

// NewKey makes a key.
func NewKey(random io.Reader) (k Key, err error) {
	if err := binary.Read(random, binary.LittleEndian, &k); err != nil {
		return k, fmt.Errorf("make a filter's key: %w", err)
	}
	return k, nil
}

// sum is the multilinear hash of filter.h: a product for each pair of words, and
// the ports with a word of their own.
func (k *Key) sum(flow cookie.Flow) uint64 {
	ports := uint64(flow.Source.Port())<<16 | uint64(flow.Destination.Port())
	h := k[0] + (k[3]+ports)*k[4]
	if flow.Family() == cookie.IPv4 {
		from, to := flow.Source.Addr().As4(), flow.Destination.Addr().As4()
		return h + k.pair(1, from[:], to[:])
	}
	from, to := flow.Source.Addr().As16(), flow.Destination.Addr().As16()
	h += k.pair(1, from[:4], to[:4])
	for i := 4; i < len(from); i += 4 {
		h += k.pair(3+i/2, from[i:i+4], to[i:i+4])
	}
	return h
}

func (k *Key) pair(at int, from, to []byte) uint64 {
	return (k[at] + uint64(binary.BigEndian.Uint32(from))) * (k[at+1] + uint64(binary.BigEndian.Uint32(to)))
}

// mix is the bijection behind the sum.
func mix(h uint64) uint64 {
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// scale makes of a hash's high half a number below n.
func scale(hash, n uint64) uint64 { return hash >> 32 * n >> 32 }
