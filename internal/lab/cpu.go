package lab

import (
	"fmt"

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
