package dataplane

import (
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"
)

func TestThisKernelMissesNothing(t *testing.T) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("missing: the kernel's BTF: %v", err)
		}
		t.Skipf("missing: the kernel's BTF: %v", err)
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
