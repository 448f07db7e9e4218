package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
)

// FloodOptions say what a flood consists of.
type FloodOptions struct {
	Kind    Kind
	Profile Profile
	Rate    Rate
	IPv6    bool
	Target  netip.Addr    // the server's address if not valid
	Port    uint16        // of the target, 80 if 0
	Sources netip.Prefix  // FloodSources4 or FloodSources6 if not valid
	Limit   time.Duration // it ends by itself after this, an hour if 0
	Seed    uint64        // of the random fields, 1 if 0
	// Alone keeps all else from the generator's CPU as far as the kernel lets it.
	Alone bool
}

// Frames that one call sends at most: a bound that ends the generator even if
// nobody does. Each call costs 20 to 50 ms at its end, so it is a large one.
const floodRepeat = 1 << 31

// A veth ring holds 256 frames and a batch is flushed as a whole; half of it
// was measured the fastest.
const floodBatch = 128

// Flood is a running generator on a thread of its own.
type Flood struct {
	objects  floodObjects
	thread   atomic.Int64 // its id, 0 before it runs
	stopping atomic.Bool
	softirqs int // the thread of its CPU's softirqs
	begun    chan struct{}
	done     chan struct{}
	err      error // valid once done is closed
}

// StartFlood sends packets from the attacker to the server until Stop.
func (l *Lab) StartFlood(options FloodOptions) (*Flood, error) {
	config, err := l.floodConfig(&options)
	if err != nil {
		return nil, err
	}
	flood := &Flood{begun: make(chan struct{}), done: make(chan struct{})}
	if flood.softirqs, err = softirqThread(l.cpus.generator); err != nil {
		return nil, err
	}
	if err := flood.load(config, options.Seed); err != nil {
		return nil, err
	}
	alone := options.Alone && l.Apart()
	go flood.run(l.Attacker.Namespace, l.cpus.generator, alone, options.Limit)
	return flood, nil
}

func (l *Lab) floodConfig(options *FloodOptions) (floodConfig, error) {
	if options.Rate == 0 {
		return floodConfig{}, errors.New("a flood needs a rate above 0")
	}
	options.defaults()
	if !options.Target.IsValid() {
		options.Target = l.Server.Addr(options.IPv6)
	}
	link, err := l.Attacker.link.LinkByName(l.Attacker.Port)
	if err != nil {
		return floodConfig{}, fmt.Errorf("find the attacker's port: %w", err)
	}
	gateway, err := l.gatewayMAC()
	if err != nil {
		return floodConfig{}, err
	}
	frame := newTemplate(frameConfig{
		sourceMAC: link.Attrs().HardwareAddr,
		targetMAC: gateway,
		target:    netip.AddrPortFrom(options.Target, options.Port),
		kind:      options.Kind,
		profile:   options.Profile,
	})
	config := floodConfig{
		SourceBe:  words(options.Sources.Masked().Addr()),
		Length:    uint32(len(frame.bytes)),
		IpSum:     frame.ipSum,
		TcpSum:    frame.tcpSum,
		TcpAt:     uint32(frame.tcpAt),
		ControlBe: frame.controls,
		Interface: uint32(link.Attrs().Index),
		Interval:  options.Rate.interval(),
		Quantum:   options.Rate.quantum(),
	}
	config.describe(frame, options)
	return config, nil
}

func (o *FloodOptions) defaults() {
	if o.Port == 0 {
		o.Port = 80
	}
	if o.Limit == 0 {
		o.Limit = time.Hour
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if !o.Sources.IsValid() {
		o.Sources = FloodSources4
		if o.IPv6 {
			o.Sources = FloodSources6
		}
	}
}

// describe fills in the template and which of its fields the program writes.
func (c *floodConfig) describe(frame template, options *FloodOptions) {
	var room [len(c.Frame) * 8]byte
	copy(room[:], frame.bytes)
	for i := range c.Frame {
		c.Frame[i] = binary.NativeEndian.Uint64(room[8*i:])
	}
	fixed := words(mask(options.Sources))
	for i := range fixed {
		c.SpreadBe[i] = ^fixed[i]
	}
	if options.IPv6 {
		c.Ipv6 = 1
	}
	if options.Profile == Linux {
		c.Timestamps = 1
	}
	if options.Kind.acknowledges() {
		c.RandomAck = 1
	}
}

func (f *Flood) load(config floodConfig, seed uint64) error {
	spec, err := loadFlood()
	if err != nil {
		return fmt.Errorf("read the flood program: %w", err)
	}
	var specs floodVariableSpecs
	if err := spec.Assign(&specs); err != nil {
		return fmt.Errorf("find the flood's configuration: %w", err)
	}
	if err := errors.Join(specs.Flood.Set(config), specs.RandomState.Set(seed)); err != nil {
		return fmt.Errorf("configure the flood: %w", err)
	}
	if err := spec.LoadAndAssign(&f.objects, nil); err != nil {
		return fmt.Errorf("load the flood program: %w", err)
	}
	return nil
}

// run gives its thread back as it was. With the thread would die what it has
// started: children of the lab end with their parent, which is a thread.
func (f *Flood) run(namespace *Namespace, cpu int, alone bool, limit time.Duration) {
	defer close(f.done)
	f.err = namespace.Do(func() error {
		return onCPUs([]int{cpu}, func() error {
			if alone {
				defer goFirst()()
			}
			return f.sendAll(limit)
		})
	})
}

func (f *Flood) sendAll(limit time.Duration) error {
	f.thread.Store(int64(unix.Gettid()))
	defer f.thread.Store(0)
	close(f.begun)
	timer := time.AfterFunc(limit, f.end)
	defer timer.Stop()
	for !f.stopping.Load() {
		if err := f.send(); err != nil {
			return err
		}
	}
	return nil
}

// send is one BPF_PROG_TEST_RUN. The library's own restarts what a signal has
// interrupted, and a signal is how this one ends.
func (f *Flood) send() error {
	var frame [len(floodConfig{}.Frame)*8 + 1]byte // FLOOD_ROOM of the program
	attr := testRun{
		program:  uint32(f.objects.LabFlood.FD()),
		dataSize: uint32(len(frame)),
		data:     unsafe.Pointer(&frame[0]),
		repeat:   floodRepeat,
		flags:    unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		batch:    floodBatch,
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(f)
	switch errno {
	case 0, unix.EINTR:
		return nil
	case unix.EINVAL:
		return ErrNoLiveFrames
	}
	return fmt.Errorf("run the flood program: %w", errno)
}

// testRun is the part of union bpf_attr that BPF_PROG_TEST_RUN reads.
type testRun struct {
	program  uint32
	_        uint32 // return value
	dataSize uint32
	_        uint32 // size of the output
	data     unsafe.Pointer
	_        unsafe.Pointer // output
	repeat   uint32
	_        uint32    // duration
	_        [2]uint32 // sizes of the contexts
	_        [2]uint64 // contexts
	flags    uint32
	_        uint32 // CPU
	batch    uint32
	_        uint32
}

// halt interrupts the system call. The Go runtime itself uses SIGURG to
// interrupt threads and ignores any that it did not send.
func (f *Flood) halt() {
	f.stopping.Store(true)
	if thread := int(f.thread.Load()); thread != 0 {
		// A thread that is done needs no signal.
		_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG)
	}
}

// end halts until it is over: a signal that comes just before the system call
// is lost.
func (f *Flood) end() {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		f.halt()
		select {
		case <-f.done:
			return
		case <-ticker.C:
		}
	}
}

// Stop ends the flood and returns what it failed with, if it did.
func (f *Flood) Stop() error {
	f.end()
	return errors.Join(f.err, f.objects.Close())
}

// Begun is closed when the generator runs, which it may never do: see Done.
func (f *Flood) Begun() <-chan struct{} { return f.begun }

// Done is closed when the flood has ended, by itself or by Stop.
func (f *Flood) Done() <-chan struct{} { return f.done }

// Offered returns how many packets the generator has given to its port.
func (f *Flood) Offered() (uint64, error) {
	var sent uint64
	if err := f.objects.Sent.Get(&sent); err != nil {
		return 0, fmt.Errorf("read the flood's counter: %w", err)
	}
	return sent, nil
}

// CPUTime is what the flood has taken of its CPU, with all that the kernel did there
// on its way: softirqs run in the generator's name, and what is left of them in their
// own thread's. It does not matter who else wants the CPU.
func (f *Flood) CPUTime() (time.Duration, error) {
	thread := int(f.thread.Load())
	if thread == 0 {
		return 0, errors.New("read the flood's CPU time: it does not run")
	}
	own, err := cpuClock(thread, clockOfThread)
	if err != nil {
		return 0, err
	}
	rest, err := cpuClock(f.softirqs, clockOfProcess)
	return own + rest, err
}

// gatewayMAC is where the attacker's frames go: the router, or the server
// itself behind a bridge.
func (l *Lab) gatewayMAC() ([]byte, error) {
	if l.options.Topology == Bridge {
		return l.Server.HardwareAddr(l.Server.Port)
	}
	if l.fabric() {
		return l.front.HardwareAddr("out1")
	}
	return l.Edge.HardwareAddr(l.Edge.Outside[1])
}

// LinkLost counts the packets of floods that the attacker's link has lost so far,
// since its other end was late: no program has seen them.
func (l *Lab) LinkLost() (lost uint64, err error) {
	return lost, l.Attacker.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open ethtool: %w", err)
		}
		defer tool.Close()
		stats, err := tool.Stats(l.Attacker.Port)
		if err != nil {
			return fmt.Errorf("read the statistics of %s: %w", l.Attacker.Port, err)
		}
		for name, n := range stats {
			if strings.HasPrefix(name, "tx_queue_") && strings.HasSuffix(name, "_xdp_xmit_errors") {
				lost += n
			}
		}
		return nil
	})
}
