package lab

import (
	"bytes"
	"context"
	"os/exec"
	"syscall"
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
	if c.Standing {
		c.SysProcAttr.Setsid = true
	} else {
		// A Ctrl-C is for the lab, which ends its children.
		c.SysProcAttr.Setpgid = true
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
