package guest

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"smartcookie/internal/lab"
)

func TestNativeShapesServeBothFamilies(t *testing.T) {
	for _, test := range []struct {
		name, defence string
		topology      lab.Topology
	}{
		{"split, routing edge", "split", lab.Route},
		{"split, bridging edge", "split", lab.Bridge},
		{"host", "host", lab.Route},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, test.topology)
			serveEcho(t, l, "")
			guard := defend(t, l, test.defence)
			logVerifier(t)
			mustBeDefended(t, l, guard)
		})
	}
}

// logVerifier shows how far the largest programs are from the verifier's limit
// of a million instructions, which kernels count in different ways.
func logVerifier(t *testing.T) {
	t.Helper()
	var id ebpf.ProgramID
	for {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		id = next
		program, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has gone meanwhile
		}
		logInstructions(t, program)
		program.Close()
	}
}

func logInstructions(t *testing.T, program *ebpf.Program) {
	t.Helper()
	const few = 50_000
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := info.VerifiedInstructions(); ok && n > few {
		t.Logf("verifier: %s %d instructions", info.Name, n)
	}
}
