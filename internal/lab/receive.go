package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Receiver is the kernel's threads in which a port's packets are received, with
// all that the kernel does for them: answers too.
type Receiver struct {
	name    string
	threads []int
}

// ReceiveApart lets the server's port, and the edge's that is its peer, receive in
// threads of their own, on the load's CPU. Otherwise a packet's receiver works in
// its sender's name: the server in that of the flood, the edge in the server's. The
// threads are as they are until the ports are changed, or are gone.
func (l *Lab) ReceiveApart() (*Receiver, error) {
	peer, port := l.serverPeer()
	if _, err := peer.receiveOn(port, l.LoadCPU()); err != nil {
		return nil, err
	}
	return l.Server.receiveOn(l.Server.Port, l.LoadCPU())
}

// first is the priority of threads that do what goes before all processes
// elsewhere.
const first = -20

func (n *Namespace) receiveOn(port string, cpu int) (*Receiver, error) {
	before, err := receiverThreads(port)
	if err != nil {
		return nil, err
	}
	if err := n.setDevice(port, setting{"threaded", "1"}); err != nil {
		return nil, err
	}
	after, err := receiverThreads(port)
	if err != nil {
		return nil, err
	}
	r := &Receiver{name: n.Name + ", " + port}
	for _, id := range after {
		if !slices.Contains(before, id) {
			r.threads = append(r.threads, id)
		}
	}
	if r.threads == nil {
		return nil, fmt.Errorf("%s: the kernel has made no thread for it (threaded NAPI, Linux 5.12)", r.name)
	}
	set := cpuSet([]int{cpu})
	for _, id := range r.threads {
		err := errors.Join(unix.SchedSetaffinity(id, &set), unix.Setpriority(unix.PRIO_PROCESS, id, first))
		if err != nil {
			return nil, fmt.Errorf("%s: place its thread: %w", r.name, err)
		}
	}
	return r, nil
}

// receiverThreads are those of all ports of this name.
func receiverThreads(port string) (all []int, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(text), "napi/"+port+"-") {
			continue // it has ended, or is another one
		}
		id, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		all = append(all, id)
	}
	return all, nil
}

// Busy is the CPU time that the threads have taken so far.
func (r *Receiver) Busy() (total time.Duration, err error) {
	for _, id := range r.threads {
		busy, err := threadBusy(fmt.Sprintf("/proc/%d", id))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", r.name, err)
		}
		total += busy
	}
	return total, nil
}

// threadBusy is in nanoseconds, where stat has hundredths of a second.
func threadBusy(dir string) (time.Duration, error) {
	text, err := os.ReadFile(dir + "/schedstat")
	if err != nil {
		return 0, fmt.Errorf("read a thread's CPU time: %w", err)
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read a thread's CPU time: %w", err)
	}
	return time.Duration(ns), nil
}

// Busy is the CPU time that the process has taken so far, of threads that live.
func (p *Process) Busy() (total time.Duration, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.Pid()))
	if err != nil {
		return 0, err
	}
	for _, dir := range tasks {
		busy, err := threadBusy(dir)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", p.Name, err)
		}
		total += busy
	}
	return total, nil
}
