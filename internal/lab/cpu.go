package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpus says who runs where: the generator, with all the softirq work that it
// causes, has a CPU of its own, if there are two.
type cpus struct {
	generator int
	others    []int
}

func splitCPUs() (cpus, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return cpus{}, fmt.Errorf("read CPU affinity: %w", err)
	}
	var all []int
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	last := len(all) - 1
	return cpus{generator: all[last], others: all[:max(1, last)]}, nil
}

// onCPUs runs fn with the affinity of the thread, which the caller has locked.
func onCPUs(cpus []int, fn func() error) error {
	if len(cpus) == 0 {
		return fn()
	}
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read CPU affinity: %w", err)
	}
	set := cpuSet(cpus)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("set CPU affinity to %v: %w", cpus, err)
	}
	defer unix.SchedSetaffinity(0, &before)
	return fn()
}

// goFirst puts the thread, which the caller has locked, before all that has no
// real-time priority, until the returned function is called. A kernel that does not
// allow it leaves everything as it is: what is measured then takes longer.
func goFirst() (goLast func()) {
	set := func(policy, priority uint32) error {
		return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority}, 0)
	}
	if set(unix.SCHED_FIFO, 1) != nil {
		return func() {}
	}
	// It cannot fail: anybody may give priority up.
	return func() { _ = set(unix.SCHED_NORMAL, 0) }
}

func cpuSet(cpus []int) unix.CPUSet {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	return set
}

// LoadCPU is where programs run that shall share one CPU: not the generator's.
func (l *Lab) LoadCPU() int { return l.cpus.others[0] }

// Apart tells whether the generator has a CPU of its own.
func (l *Lab) Apart() bool { return l.cpus.generator != l.cpus.others[0] }

// The kinds of clock that a number of a process makes (clock_getcpuclockid(3), and
// posix-timers_types.h of the kernel).
const (
	clockOfProcess = 2
	clockOfThread  = 6
)

// cpuClock is what a process or thread has taken of the CPUs.
func cpuClock(id int, kind int32) (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(^int32(id)<<3|kind, &t); err != nil {
		return 0, fmt.Errorf("read the CPU time of %d: %w", id, err)
	}
	return time.Duration(t.Nano()), nil
}

// softirqThread finds the kernel's thread for what is left over on a CPU.
func softirqThread(cpu int) (int, error) {
	all, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	want := fmt.Sprintf("ksoftirqd/%d", cpu)
	for _, path := range all {
		name, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(name)) == want { // it may have ended
			return strconv.Atoi(filepath.Base(filepath.Dir(path)))
		}
	}
	return 0, fmt.Errorf("find %s: no such thread", want)
}
