package badwire

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// frameRoom is above every MTU that a veth can have.
	frameRoom = 64<<10 + ethernetBytes
	// controlRoom is for one time stamp.
	controlRoom = 64
	// receiveRoom holds what comes while the wire waits for a CPU.
	receiveRoom = 16 << 20
	// burst is how many frames are read before those due are looked at again.
	burst = 32
	// lateAfter is when a delivery counts as late.
	lateAfter = time.Millisecond
)

// Wire joins two devices of one network namespace. Both should have nothing
// else to do: no address, no offload that merges frames.
type Wire struct {
	ways    [2]*run
	cpus    unix.CPUSet // of the thread that has opened it
	ports   [2]int      // packet sockets
	outages atomic.Pointer[outages]
	stop    [2]int // a pipe: what is closed at its end wakes both ways
	running sync.WaitGroup
	closed  sync.Once
	mu      sync.Mutex
	dropped [2]uint64 // frames that found no room at a port, so far
}

// run is a direction at work, on a thread of its own.
type run struct {
	wire     *Wire
	way      *Way
	from, to int // sockets
	begin    time.Time
	room     []byte // for a frame
	control  []byte // for what the kernel says of it
	counts   tally
	err      error // valid once the wire has stopped
}

// tally is Counts while a thread writes it and others read.
type tally struct {
	passed, lost, duplicated, reordered, outage, late, overload atomic.Uint64
}

// Open joins two devices of the namespace that the calling thread is in, on the
// CPUs that this thread may use, until Close.
func Open(first, second string, faults Faults) (*Wire, error) {
	if err := faults.Check(); err != nil {
		return nil, err
	}
	w := &Wire{ports: [2]int{-1, -1}, stop: [2]int{-1, -1}}
	if err := unix.SchedGetaffinity(0, &w.cpus); err != nil {
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	for i, device := range []string{first, second} {
		port, err := openPort(device)
		if err != nil {
			w.release()
			return nil, err
		}
		w.ports[i] = port
	}
	if err := unix.Pipe2(w.stop[:], unix.O_CLOEXEC); err != nil {
		w.release()
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	begin := time.Now()
	for i := range w.ways {
		r := &run{
			wire: w, way: NewWay(faults, uint64(i)), from: w.ports[i], to: w.ports[1-i], begin: begin,
			room: make([]byte, frameRoom), control: make([]byte, controlRoom),
		}
		w.ways[i] = r
		w.running.Go(r.loop)
	}
	return w, nil
}

// openPort makes a packet socket that sees what comes in by a device.
func openPort(device string) (int, error) {
	found, err := net.InterfaceByName(device)
	if err != nil {
		return -1, fmt.Errorf("find %s: %w", device, err)
	}
	port, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(port, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(port, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptInt(port, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveRoom),
		unix.SetsockoptInt(port, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, receiveRoom),
		// Not before it is set up: what comes earlier would be from any device.
		unix.Bind(port, &unix.SockaddrLinklayer{Protocol: everyProtocol, Ifindex: found.Index}),
	)
	if err != nil {
		unix.Close(port)
		return -1, fmt.Errorf("listen at %s: %w", device, err)
	}
	return port, nil
}

// everyProtocol is ETH_P_ALL in the byte order of the network.
const everyProtocol = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8

// loop moves frames until the wire is closed, and gives its thread back as it was.
// With the thread would die what it has started: children that end with their
// parent, which is a thread.
func (r *run) loop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r.err = r.exactly(r.move)
}

// exactly runs fn on the wire's CPUs, with timers that are exact.
func (r *run) exactly(fn func() error) (err error) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read CPU affinity: %w", err)
	}
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read the timer slack: %w", err)
	}
	defer func() {
		err = errors.Join(err, unix.SchedSetaffinity(0, &before), unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0))
	}()
	if err := unix.SchedSetaffinity(0, &r.wire.cpus); err != nil {
		return fmt.Errorf("set CPU affinity: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("ask for exact timers: %w", err)
	}
	return fn()
}

// move moves frames until the wire is closed.
func (r *run) move() error {
	for {
		open, err := r.wait()
		if err == nil && open {
			err = r.read()
		}
		if err != nil || !open {
			return err
		}
		r.deliver()
	}
}

func (r *run) now() time.Duration { return time.Since(r.begin) }

// wait returns when a frame has come or one is due; false: the wire is closed.
func (r *run) wait() (open bool, err error) {
	var timeout *unix.Timespec
	if due, any := r.way.Due(); any {
		left := unix.NsecToTimespec(int64(max(due-r.now(), 0)))
		timeout = &left
	}
	sources := []unix.PollFd{{Fd: int32(r.from), Events: unix.POLLIN}, {Fd: int32(r.wire.stop[0])}}
	if _, err := unix.Ppoll(sources, timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
		return false, fmt.Errorf("wait for frames: %w", err)
	}
	return sources[1].Revents == 0, nil
}

// read takes what has come, up to a burst.
func (r *run) read() error {
	for range burst {
		n, control, _, _, err := unix.Recvmsg(r.from, r.room, r.control, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			continue // the device may come up again
		case err != nil:
			return fmt.Errorf("read a frame: %w", err)
		}
		r.take(append([]byte(nil), r.room[:n]...), r.arrival(r.control[:control]))
	}
	return nil
}

// arrival is when a frame reached the port: how long it then waited for the
// wire is no part of its delay.
func (r *run) arrival(control []byte) time.Duration {
	now := time.Now() // by both clocks, the real one first: an error is towards late
	header, data, _, err := unix.ParseOneSocketControlMessage(control)
	if err != nil || header.Type != unix.SCM_TIMESTAMPNS || len(data) < int(unsafe.Sizeof(unix.Timespec{})) {
		return now.Sub(r.begin)
	}
	stamp := time.Unix(0, (*unix.Timespec)(unsafe.Pointer(&data[0])).Nano())
	// The stamp is of a clock that can be set: a step of it shall not count.
	return now.Sub(r.begin) - min(max(now.Round(0).Sub(stamp), 0), delayLimit)
}

func (r *run) take(frame []byte, now time.Duration) {
	if o := r.wire.outages.Load(); o != nil && o.lost(frame, now) {
		r.counts.outage.Add(1)
		return
	}
	fate := r.way.Take(frame, now)
	if fate.Lost {
		r.counts.lost.Add(1)
	}
	if fate.Reordered {
		r.counts.reordered.Add(1)
	}
	r.counts.overload.Add(uint64(fate.Overload))
}

// deliver sends what is due.
func (r *run) deliver() {
	for {
		now := r.now()
		d, ok := r.way.Next(now)
		if !ok {
			return
		}
		if _, err := unix.Write(r.to, d.frame); err != nil {
			r.counts.overload.Add(1) // a full ring, or a device that is down
			continue
		}
		if now-d.due > lateAfter {
			r.counts.late.Add(1)
		}
		if d.copied {
			r.counts.duplicated.Add(1)
		} else {
			r.counts.passed.Add(1)
		}
	}
}

// Outage arms an outage in place of any earlier one.
func (w *Wire) Outage(o Outage) { w.outages.Store(newOutages(o)) }

// Counts returns what has become of the frames of each direction: those that
// came in by the first device, and those by the second.
func (w *Wire) Counts() [2]Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all [2]Counts
	for i, r := range w.ways {
		// Reading resets the kernel's counter; a closed socket has none.
		if stats, err := unix.GetsockoptTpacketStats(w.ports[i], unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			w.dropped[i] += uint64(stats.Drops)
		}
		c := &r.counts
		all[i] = Counts{
			Passed: c.passed.Load(), Lost: c.lost.Load(), Duplicated: c.duplicated.Load(),
			Reordered: c.reordered.Load(), Outage: c.outage.Load(), Late: c.late.Load(),
			Overload: c.overload.Load() + w.dropped[i],
		}
	}
	return all
}

// Close ends the wire; what is under way is gone. It returns what a direction
// has stopped with before, if it has.
func (w *Wire) Close() error {
	w.closed.Do(func() {
		unix.Close(w.stop[1])
		w.stop[1] = -1
		w.running.Wait()
		w.Counts() // the last time that the kernel knows
		w.release()
	})
	return errors.Join(w.ways[0].err, w.ways[1].err)
}

func (w *Wire) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, file := range []*int{&w.ports[0], &w.ports[1], &w.stop[0], &w.stop[1]} {
		if *file >= 0 {
			unix.Close(*file)
			*file = -1
		}
	}
}
