package check

import (
	"fmt"
	"strings"
)

// version is a kernel's, as far as features come by it.
type version struct{ major, minor int }

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

func (v version) before(w version) bool {
	return v.major < w.major || v.major == w.major && v.minor < w.minor
}

// oldest are the kernels that are tested, see docs/limits.md.
var oldest = map[Shape]version{Edge: {6, 9}, Server: {6, 1}, Host: {6, 9}, HostKernel: {6, 18}}

func judgeKernel(f *Facts) (found []Finding) {
	k, least := &f.Kernel, oldest[f.Shape]
	if k.NoTypes != nil {
		return []Finding{
			kernelBTF.finding(Error, fmt.Sprintf("this kernel does not tell its types: %s", k.NoTypes)),
			kernelHelpers.skip(), kernelTCX.skip(), topicOf("kernel-kfunc").skip(),
		}
	}
	if len(k.Missing) > 0 {
		found = append(found, kernelHelpers.finding(Error,
			fmt.Sprintf("this kernel (%s) lacks %s", k.Release, strings.Join(k.Missing, ", ")), "OLDEST", least.String()))
	}
	var running version
	if n, _ := fmt.Sscanf(k.Release, "%d.%d", &running.major, &running.minor); n == 2 && running.before(least) {
		found = append(found, kernelVersion.finding(Warning,
			fmt.Sprintf("Linux %s is older than %s, the oldest that is tested", k.Release, least), "OLDEST", least.String()))
	}
	if !k.TCX {
		found = append(found, kernelTCX.finding(Notice, "this kernel has no links for TC (tcx)"))
	}
	if k.JIT == "0" {
		found = append(found, kernelJIT.finding(Warning, "net.core.bpf_jit_enable is 0: programs are interpreted"))
	}
	return found
}
