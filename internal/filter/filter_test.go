package filter_test

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"smartcookie/internal/cookie"
	"smartcookie/internal/filter"
)

// newKey is the same in every run.
func newKey(t *testing.T) filter.Key {
	t.Helper()
	key, err := filter.NewKey(rand.NewChaCha8([32]byte{1}))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// numbered is one of 2^48 flows, all different, half of them of each family.
func numbered(n uint64) cookie.Flow {
	v4 := netip.AddrFrom4([4]byte{byte(n >> 40), byte(n >> 32), byte(n >> 24), byte(n >> 16)})
	if n%2 == 0 {
		return cookie.Flow{Source: netip.AddrPortFrom(v4, uint16(n)), Destination: netip.MustParseAddrPort("198.51.100.2:80")}
	}
	v6 := netip.MustParseAddr("2001:db8::").As16()
	copy(v6[8:], v4.AsSlice())
	return cookie.Flow{
		Source:      netip.AddrPortFrom(netip.AddrFrom16(v6), uint16(n)),
		Destination: netip.MustParseAddrPort("[2001:db8:1::2]:80"),
	}
}

// filterOf is what both kinds do.
type filterOf interface {
	Add(cookie.Flow)
	Has(cookie.Flow) bool
}

// rate is the share of strangers that a filter lets in; it lets in all that were
// added.
func rate(t *testing.T, f filterOf, flows, probes uint64) float64 {
	t.Helper()
	for n := range flows {
		f.Add(numbered(n))
	}
	for n := range flows {
		if !f.Has(numbered(n)) {
			t.Fatalf("%v was added and is not there", numbered(n))
		}
	}
	found := 0.0
	for n := range probes {
		if f.Has(numbered(1<<40 + n)) {
			found++
		}
	}
	return found / float64(probes)
}

func TestEquationOneIsThePapersFigure(t *testing.T) {
	if got := 100 * filter.PartitionedRate(filter.PaperFlows, 8*filter.PaperBytes); math.Abs(got-7.66) > 0.005 {
		t.Errorf("%.3f%%, the paper has 7.66%%", got)
	}
}

// Chance moves what is measured by one in a hundred.
func TestFiltersLetInWhatTheFormulasSay(t *testing.T) {
	const probes = 300_000
	for _, flows := range []uint64{20_000, 50_000, 200_000} {
		const bits = 3 << 16
		paper := rate(t, filter.NewPartitioned(newKey(t), bits/filter.Arrays), flows, probes)
		if want := filter.PartitionedRate(float64(flows), bits); math.Abs(paper/want-1) > 0.05 {
			t.Errorf("partitioned, %d flows: %.4f, the formula says %.4f", flows, paper, want)
		}
		const lines = 2000
		ours := rate(t, filter.NewBlocked(newKey(t), lines), flows, probes)
		if want := filter.BlockedRate(float64(flows), lines, 1); math.Abs(ours/want-1) > 0.05 {
			t.Errorf("blocked, %d flows: %.4f, the formula says %.4f", flows, ours, want)
		}
	}
}

func TestTwoFullGenerationsLetInTwiceAsMany(t *testing.T) {
	one, two := filter.BlockedRate(8000, 1000, 1), filter.BlockedRate(8000, 1000, 2)
	if one < 3e-5 || one > 4e-5 || math.Abs(two/one-2) > 1e-4 {
		t.Errorf("one generation %.3g, two %.3g", one, two)
	}
}

func TestFlowsOfAPartitionedFilterAreApart(t *testing.T) {
	f := filter.NewPartitioned(newKey(t), 1<<16)
	f.Add(numbered(0))
	set := make(map[int]int)
	for at, b := range f.Bytes() {
		for ; b != 0; b &= b - 1 {
			set[at/(1<<13)]++
		}
	}
	if len(set) != filter.Arrays || set[0] != 1 || set[1] != 1 || set[2] != 1 {
		t.Errorf("bits of one flow by array: %v", set)
	}
}
