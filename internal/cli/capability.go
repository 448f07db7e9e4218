package cli

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// capability is one that an agent does not work without.
type capability struct {
	name string
	bit  uint
}

var agentCapabilities = []capability{
	{"CAP_BPF", unix.CAP_BPF},             // maps and programs
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}, // programs on devices
	{"CAP_PERFMON", unix.CAP_PERFMON},     // programs that trace, and arithmetic of pointers
}

// needCapabilities says in one line what would otherwise fail in many ways. Root has
// them, unless a container or a service manager has taken them away.
func needCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // of 32 capabilities each
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read own capabilities: %w", err)
	}
	return missing(uint64(sets[1].Effective)<<32 | uint64(sets[0].Effective))
}

func missing(effective uint64) error {
	var all, lacks []string
	for _, c := range agentCapabilities {
		all = append(all, c.name)
		if effective&(1<<c.bit) == 0 {
			lacks = append(lacks, c.name)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("this needs root, or the capabilities %s: %s missing", strings.Join(all, ", "), strings.Join(lacks, ", "))
}
