package evaluation

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is where a run ran: figures of another one are another run's.
type Machine struct {
	Kernel       string `json:"kernel"`
	CPU          string `json:"cpu"`
	Cores        int    `json:"cores"`
	Virtual      bool   `json:"virtual"` // the CPU says that it is a virtual machine's
	Architecture string `json:"architecture"`
	Build        string `json:"build"` // of this program
}

// ThisMachine describes itself.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Architecture: runtime.GOARCH, Build: build()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch strings.TrimSpace(key) {
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "flags":
			m.Virtual = strings.Contains(value, " hypervisor")
		}
	}
	return m
}

// build is the revision that this program was built from. If that says too little,
// as there were changes, what the program is to the bit says it.
func build() string {
	revision, changed := "", false
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value[:min(12, len(s.Value))]
			case "vcs.modified":
				changed = s.Value == "true"
			}
		}
	}
	if revision != "" && !changed {
		return revision
	}
	sum, err := sumOf("/proc/self/exe")
	if err != nil {
		return cmp.Or(revision, "unknown") + "+"
	}
	return revision + "+" + sum
}

// sumOf is the beginning of a file's SHA-256.
func sumOf(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:6]), nil
}
