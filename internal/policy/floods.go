package policy

import "net/netip"

// Limits of the data plane's tables (contract.h).
const (
	MaxListed   = 1_000_000 // prefixes of each list and family
	MaxPlaces   = 65536
	MaxBypasses = 256
)

// Floods is what an edge does about floods of anything but SYNs, and about
// whose packets come in at all. The zero value is none of it.
type Floods struct {
	DropOther  bool // TCP to other ports of protected addresses
	Answers    int  // a second for each network; 0: no limit
	Network4   int  // bits of a network's prefix
	Network6   int
	Deny       []netip.Prefix
	Allow      []netip.Prefix
	InsideOnly []netip.Prefix // sources that are never outside
	Bypass     []Bypass
}

// Bypass lets the SYNs of some sources through unproven.
type Bypass struct {
	Sources   []netip.Prefix
	Interface string
	Port      int // index of the interface
	SYNs      int // a second
}

// Places counts the prefixes that have a place.
func (f *Floods) Places() int {
	n := len(f.InsideOnly)
	for i := range f.Bypass {
		n += len(f.Bypass[i].Sources)
	}
	return n
}
