package bench

import (
	"encoding/binary"
	"slices"
	"testing"

	"smartcookie/internal/cookie"
)

func TestSearchFindsTheKey(t *testing.T) {
	own := labFlows()[0]
	message := forgedMessage(own.Flow, own.isn)
	for hash, search := range searches {
		for _, number := range []uint64{0x1234, 0xfedc_ba98_7654_3210} {
			var key cookie.Key
			binary.LittleEndian.PutUint64(key[:], number)
			mac := cookie.MAC(hash, key, own.Flow, own.isn)
			for _, shown := range []uint32{mac, mac ^ 1<<31} { // the top bit is not seen
				if found := search(message, shown, number-300, 1000); !slices.Contains(found, number) || len(found) > 2 {
					t.Errorf("%s, key %x: found %x", hash, number, found)
				}
			}
			if found := search(message, mac^1, number-300, 1000); slices.Contains(found, number) {
				t.Errorf("%s: a key is found that makes another T", hash)
			}
		}
	}
}

func BenchmarkSearch(b *testing.B) {
	own := labFlows()[0]
	message := forgedMessage(own.Flow, own.isn)
	for hash, search := range searches {
		b.Run(hash.String(), func(b *testing.B) { search(message, 0, 0, b.N) })
	}
}
