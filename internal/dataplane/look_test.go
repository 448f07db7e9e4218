package dataplane

import (
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"

	"smartcookie/internal/cookie"
	"smartcookie/internal/filter"
)

func TestThisKernelMissesNothing(t *testing.T) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Skipf("this kernel does not tell its types: %v", err)
	}
	for _, agent := range []string{EdgeAgent, ServerAgent, HostAgent} {
		if missing, err := MissingHelpers(types, agent); err != nil || len(missing) > 0 {
			t.Errorf("%s: %v, %v", agent, missing, err)
		}
	}
}

// olderTypes are those of a kernel with few helpers, no iterator and no tracepoint.
func olderTypes(t *testing.T) *btf.Spec {
	t.Helper()
	builder, err := btf.NewBuilder([]btf.Type{
		&btf.Enum{Name: "bpf_func_id", Size: 4, Values: []btf.EnumValue{
			{Name: "BPF_FUNC_unspec"}, {Name: "BPF_FUNC_map_lookup_elem", Value: 1}, {Name: "__BPF_FUNC_MAX_ID", Value: 2},
		}},
		&btf.Enum{Name: "bpf_attach_type", Size: 4, Values: []btf.EnumValue{{Name: "__MAX_BPF_ATTACH_TYPE", Value: 46}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := builder.Spec()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestOlderKernelsMissWhatTheyLack(t *testing.T) {
	types := olderTypes(t)
	missing, err := MissingHelpers(types, ServerAgent)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"FnLoop", "tp_btf/inet_sock_set_state", "iter/tcp"} {
		if !slices.Contains(missing, want) {
			t.Errorf("%s is not missed: %v", want, missing)
		}
	}
	if slices.Contains(missing, "FnMapLookupElem") || HasTCX(types) {
		t.Errorf("tcx: %t, missing: %v", HasTCX(types), missing)
	}
}

func TestLockIsFoundByItsFile(t *testing.T) {
	const locks = "1: FLOCK  ADVISORY  WRITE 100 00:1d:77 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 101 00:1d:78 0 EOF\n2: POSIX  ADVISORY  WRITE 102 00:1d:79 0 EOF\n"
	for file, want := range map[string]bool{"00:1d:77": true, "00:1d:78": false, "00:1d:79": false, "00:1d:7": false} {
		if got := holdsLock(locks, file); got != want {
			t.Errorf("%s: %t, want %t", file, got, want)
		}
	}
}

// The estimate is for deciding on a size: a tenth off does no harm.
func TestFlowsOfAFilterAreEstimated(t *testing.T) {
	const lines, key = 4096, 3
	for _, flows := range []int{1000, 20_000, 60_000} {
		model := filter.NewBlocked(filter.Key{key, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37}, lines)
		for i := range flows {
			model.Add(cookie.Flow{
				Source:      netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1024),
				Destination: netip.MustParseAddrPort("192.0.2.1:80"),
			})
		}
		var set int
		for _, line := range model.Lines {
			for _, w := range line.Word[0] {
				set += bits.OnesCount64(w)
			}
		}
		if got := flowsIn(set, lines, lines); math.Abs(float64(got-flows)) > float64(flows)/10 {
			t.Errorf("%d flows, estimated %d", flows, got)
		}
	}
}
