package evaluation

import (
	"bufio"
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

// build is the revision that this program was built from, "+" if changed since.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, changed := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			changed = map[string]string{"true": "+"}[s.Value]
		}
	}
	if revision == "" {
		return "unknown"
	}
	return revision[:min(12, len(revision))] + changed
}
