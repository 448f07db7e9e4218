package dataplane

import (
	"encoding/binary"
	"net/netip"

	"smartcookie/internal/cookie"
	"smartcookie/internal/filter"
)

// newFilterTwin takes an edge's key and the size of its filter.
func newFilterTwin(e edgeAgent) *filter.Blocked {
	e.t.Helper()
	twin := filter.NewBlocked(filter.Key{}, int(e.FilterLines.MaxEntries()))
	var state edgeFilterState
	if err := e.Filter.Lookup(uint32(0), &state); err != nil {
		e.t.Fatal(err)
	}
	twin.Key, twin.Position = state.Key, state.Position
	return twin
}

// writePosition lets the kernel's sweep be where the twin's is.
func (e edgeAgent) writePosition(f *filter.Blocked) {
	e.t.Helper()
	if err := e.Filter.Put(uint32(0), edgeFilterState{Key: f.Key, Position: f.Position}); err != nil {
		e.t.Fatal(err)
	}
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
