package cli

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMissingCapabilitiesAreNamed(t *testing.T) {
	const bpf, admin, perfmon = 1 << unix.CAP_BPF, 1 << unix.CAP_NET_ADMIN, 1 << unix.CAP_PERFMON
	for effective, want := range map[uint64]string{
		bpf | admin | perfmon:         "",
		bpf | perfmon:                 "CAP_PERFMON: CAP_NET_ADMIN missing",
		1<<unix.CAP_SYS_ADMIN | admin: "CAP_PERFMON: CAP_BPF, CAP_PERFMON missing",
	} {
		switch err := missing(effective); {
		case err == nil && want != "":
			t.Errorf("%#x: nothing is missing", effective)
		case err != nil && (want == "" || !strings.HasSuffix(err.Error(), want)):
			t.Errorf("%#x: %v, want %q", effective, err, want)
		}
	}
}
