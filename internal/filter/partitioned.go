package filter

import (
	"encoding/binary"
	"math"

	"smartcookie/internal/cookie"
)

// What the paper's filter consists of (SmartCookie 6.3 and 8.1).
const (
	// Arrays each have one bit of a flow: its k.
	Arrays = 3
	// PaperArrayBits are those of each of its arrays.
	PaperArrayBits = 1 << 20
	// PaperBytes is its size.
	PaperBytes = Arrays * PaperArrayBits / 8
	// PaperFlows are in it in the paper's experiments: its n.
	PaperFlows = 579_600
)

// Partitioned is the paper's filter, made from its text: k arrays with a hash
// function each. The hash functions are ours, and keyed.
type Partitioned struct {
	Key    Key
	Arrays [Arrays][]uint64
	size   uint64 // bits of an array
}

// NewPartitioned is an empty filter.
func NewPartitioned(key Key, arrayBits int) *Partitioned {
	f := &Partitioned{Key: key, size: uint64(arrayBits)}
	for i := range f.Arrays {
		f.Arrays[i] = make([]uint64, (arrayBits+63)/64)
	}
	return f
}

// index is the bit of a flow in an array.
func (f *Partitioned) index(sum uint64, array int) uint64 {
	return scale(mix(sum+uint64(array)<<56), f.size)
}

// Add puts a flow into the filter.
func (f *Partitioned) Add(flow cookie.Flow) {
	sum := f.Key.sum(flow)
	for i, bits := range f.Arrays {
		at := f.index(sum, i)
		bits[at/64] |= 1 << (at % 64)
	}
}

// Has tells whether a flow seems to be in the filter.
func (f *Partitioned) Has(flow cookie.Flow) bool {
	sum := f.Key.sum(flow)
	for i, bits := range f.Arrays {
		at := f.index(sum, i)
		if bits[at/64]>>(at%64)&1 == 0 {
			return false
		}
	}
	return true
}

// Bytes are the arrays, one behind the other.
func (f *Partitioned) Bytes() []byte {
	var all []byte
	for _, bits := range f.Arrays {
		for _, word := range bits {
			all = binary.NativeEndian.AppendUint64(all, word)
		}
	}
	return all
}

// PartitionedRate is the paper's equation 1: the share of strangers that a filter
// of m bits lets in with n flows.
func PartitionedRate(n, m float64) float64 {
	return math.Pow(1-math.Pow(1-Arrays/m, n), Arrays)
}
