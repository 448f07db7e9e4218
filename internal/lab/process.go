package lab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	readyMark  = "msg=ready" // an agent logs it once it protects
	readyLimit = 15 * time.Second
	endLimit   = 5 * time.Second
)

// Process is a long-running child of the lab, which logs to a file.
type Process struct {
	Name string

	command *Command
	log     string
	within  time.Duration // of which it must be ready
	done    chan struct{}
	err     error // valid once done is closed
}

// Start runs the lab's own executable in a namespace and waits until it logs
// that it is ready. The lab stops it at the latest when it is closed.
func (l *Lab) Start(ctx context.Context, namespace *Namespace, name string, args ...string) (*Process, error) {
	return l.startOn(ctx, l.cpus.others, namespace, name, args...)
}

func (l *Lab) startOn(ctx context.Context, cpus []int, namespace *Namespace, name string, args ...string) (*Process, error) {
	command := namespace.Command(context.Background(), l.options.Executable, args...)
	command.Standing = l.options.Standing
	process := &Process{
		Name:    name,
		command: command,
		log:     filepath.Join(l.Dir(), name+".log"),
		within:  cmp.Or(l.options.ReadyWithin, readyLimit),
		done:    make(chan struct{}),
	}
	command.Args[0] = "smartcookie"
	command.CPUs = cpus
	if err := process.start(); err != nil {
		return nil, err
	}
	if !l.options.Standing {
		l.onClose(process.Stop)
	}
	if err := process.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, process.Stop())
	}
	return process, nil
}

func (p *Process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", p.Name, err)
	}
	defer log.Close()
	p.command.Stderr, p.command.Stdout = log, log
	if err := p.command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.done)
	}()
	return nil
}

func (p *Process) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-p.done:
			return fmt.Errorf("%s has ended (%v): %s", p.Name, p.err, p.lastLine())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to be ready: %w: %s", p.Name, context.Cause(ctx), p.lastLine())
		case <-ticker.C:
			if bytes.Contains(p.Log(), []byte(readyMark)) {
				return nil
			}
		}
	}
}

// Log returns what the process has logged so far.
func (p *Process) Log() []byte {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return nil
	}
	return text
}

func (p *Process) lastLine() []byte {
	text := bytes.TrimSpace(p.Log())
	if len(text) == 0 {
		return []byte("it has logged nothing")
	}
	return text[bytes.LastIndexByte(text, '\n')+1:]
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.command.Process.Pid }

// ticksPerSecond is USER_HZ, in which the kernel tells CPU times.
const ticksPerSecond = 100

// cpuTime is what processes have taken of the CPUs so far.
func cpuTime(processes []*Process) (total time.Duration, err error) {
	for _, process := range processes {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process.Pid()))
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of %s: %w", process.Name, err)
		}
		// Behind the name, which may contain anything: state, then numbers, of which
		// the 11th and 12th are user and system time (proc_pid_stat(5)).
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		for _, at := range []int{11, 12} {
			ticks, err := strconv.ParseUint(fields[at], 10, 63)
			if err != nil {
				return 0, fmt.Errorf("read the CPU time of %s: %w", process.Name, err)
			}
			total += time.Duration(ticks) * time.Second / ticksPerSecond
		}
	}
	return total, nil
}

// Stop asks the process to end, insists after a while, and returns once it has
// ended. How it ends is no error.
func (p *Process) Stop() error { return p.end(syscall.SIGTERM) }

// Kill ends the process as a crash would.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL) }

func (p *Process) end(signal os.Signal) error {
	if err := p.command.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.Name, err)
	}
	timer := time.AfterFunc(endLimit, func() { _ = p.command.Process.Kill() })
	defer timer.Stop()
	<-p.done
	return nil
}
