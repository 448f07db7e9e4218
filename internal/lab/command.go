package lab

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Command is an exec.Cmd whose process begins in a namespace. It dies with
// this process unless Standing is set.
type Command struct {
	*exec.Cmd
	Standing  bool
	CPUs      []int // where the process may run; empty: anywhere
	namespace *Namespace
}

// Command prepares a process in the namespace.
func (n *Namespace) Command(ctx context.Context, name string, args ...string) *Command {
	return &Command{Cmd: exec.CommandContext(ctx, name, args...), namespace: n}
}

// Start starts the process: a fork inherits namespace and CPUs of its thread.
func (c *Command) Start() error {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	// A group of its own: a Ctrl-C is for the lab, which ends its children.
	c.SysProcAttr.Setpgid = true
	if !c.Standing {
		c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	return c.namespace.Do(func() error {
		return onCPUs(c.CPUs, c.Cmd.Start)
	})
}

// Run starts the process and waits for its end.
func (c *Command) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the process and returns what it printed.
func (c *Command) Output() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the process and returns all that it printed.
func (c *Command) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
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

// splitCPUs gives the generator, with all the softirq work that it causes, a
// CPU of its own and the rest to everything else.
func splitCPUs() (generator int, others []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	for cpu := 0; len(others) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			others = append(others, cpu)
		}
	}
	last := len(others) - 1
	if last == 0 {
		return others[0], others, nil
	}
	return others[last], others[:last], nil
}
