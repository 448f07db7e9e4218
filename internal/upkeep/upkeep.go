// Package upkeep keeps the keys and the clock in the kernel ahead of what is
// needed, so that the data plane goes on for three days when no daemon runs.
package upkeep

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/keys"
)

// Ahead is how long keys are in the kernel before they are needed.
const Ahead = 72 * time.Hour

// behind is how many past epochs a receiver may still accept.
const behind = 3

// Kernel is where keys and clock go.
type Kernel interface {
	WriteKeys(domain int, slots []cookie.Slot) error
	SetOffset(offsetNS int64) error
}

// Keeper does the upkeep of one agent.
type Keeper struct {
	path string
	read func() keys.Reading
	log  *slog.Logger

	supply
	clock   *keys.Clock
	stepped bool   // a refused step has been reported
	broken  string // the last error with the key file, reported once

	control Control
}

// supply is what is kept where.
type supply struct {
	domains []string
	kernel  Kernel
	file    *keys.File
	stamp   stamp
	until   uint64 // first epoch whose keys are not yet in the kernel
}

// DomainError is a key domain that a service needs and the key file lacks.
type DomainError struct {
	Domain, File string
}

func (e *DomainError) Error() string {
	return fmt.Sprintf("no key domain %q in %s", e.Domain, e.File)
}

// ExitCode is that of wrong input.
func (e *DomainError) ExitCode() int { return 2 }

// stamp tells whether a file has changed.
type stamp struct {
	modified time.Time
	size     int64
	inode    uint64
}

// New reads the key file, which must know every domain. Start must follow.
func New(path string, domains []string, read func() keys.Reading, log *slog.Logger) (*Keeper, error) {
	k := &Keeper{path: path, read: read, log: log}
	k.domains = domains
	file, stamp, err := k.load(domains)
	if err != nil {
		return nil, err
	}
	k.file, k.stamp = file, stamp
	k.control.read = read
	return k, nil
}

// Epoch is the length of an epoch.
func (k *Keeper) Epoch() time.Duration {
	return time.Duration(k.file.EpochSeconds) * time.Second
}

// Epochs is for how many epochs ahead there must be room.
func (k *Keeper) Epochs() uint64 {
	return uint64(Ahead/k.Epoch()) + 1
}

func (k *Keeper) load(domains []string) (*keys.File, stamp, error) {
	st, err := stampOf(k.path)
	if err != nil {
		return nil, st, &keys.FileError{File: k.path, Err: cause(err)}
	}
	file, err := keys.Read(k.path)
	if err != nil {
		return nil, st, err
	}
	for _, domain := range domains {
		if _, ok := file.Domains[domain]; !ok {
			return nil, st, &DomainError{Domain: domain, File: k.path}
		}
	}
	if k.file != nil && file.EpochSeconds != k.file.EpochSeconds {
		err = fmt.Errorf("epoch length changed from %d to %d s: start the agent anew", k.file.EpochSeconds, file.EpochSeconds)
		return nil, st, &keys.FileError{File: k.path, Err: err}
	}
	return file, st, nil
}

func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

func stampOf(path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	st := stamp{modified: info.ModTime(), size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.inode = sys.Ino
	}
	return st, nil
}

// Start writes all keys. The clock goes on from that of an earlier daemon, if
// there was one (offsetNS not zero).
func (k *Keeper) Start(kernel Kernel, offsetNS int64) error {
	k.kernel = kernel
	now := k.read()
	if offsetNS == 0 {
		k.clock = keys.NewClock(k.Epoch(), now)
	} else {
		k.clock = keys.ResumeClock(k.Epoch(), uint64(offsetNS), now)
	}
	k.tickClock(now)
	k.control.publish(k.file, k.OffsetNS())
	return k.refill(now)
}

// Check says whether the key file, as it is now, does for these domains.
func (k *Keeper) Check(domains []string) error {
	_, _, err := k.load(domains)
	return err
}

// Move goes on with other tables, for other domains, and writes all keys there;
// the clock goes on as it is. What is returned moves back.
func (k *Keeper) Move(kernel Kernel, domains []string) (back func(), err error) {
	was := k.supply
	back = func() {
		k.supply = was
		k.control.publish(k.file, k.OffsetNS())
	}
	file, st, err := k.load(domains)
	if err != nil {
		return back, err
	}
	k.supply, k.broken = supply{domains: domains, kernel: kernel, file: file, stamp: st}, ""
	if err := k.refill(k.read()); err != nil {
		back()
		return back, err
	}
	k.control.publish(k.file, k.OffsetNS())
	return back, nil
}

// OffsetNS is the clock's offset to coarse monotonic time.
func (k *Keeper) OffsetNS() int64 { return int64(k.clock.OffsetNS()) }

// Tick does what is due; it is called about once a second. Keys come before the
// clock that asks for them.
func (k *Keeper) Tick() error {
	now := k.read()
	k.tickClock(now)
	k.reload()
	k.control.publish(k.file, k.OffsetNS())
	if err := k.refill(now); err != nil {
		return err
	}
	return k.kernel.SetOffset(k.OffsetNS())
}

// Confirm believes a step of real time that was refused.
func (k *Keeper) Confirm() error {
	k.clock.Confirm()
	k.log.Warn("the clock's step is confirmed", "offset_ns", k.OffsetNS())
	k.until = 0
	return k.Tick()
}

// tickClock reports a refused step once, and once that it is over.
func (k *Keeper) tickClock(now keys.Reading) {
	err := k.clock.Update(now)
	if (err != nil) == k.stepped {
		return
	}
	k.stepped = err != nil
	if err != nil {
		k.log.Error("clock: "+err.Error(), "mend", "set the clock right, or confirm it: kill -USR1 (this process)")
		return
	}
	k.log.Info("clock agrees with real time again")
}

// reload takes a changed key file over; a bad one changes nothing.
func (k *Keeper) reload() {
	st, err := stampOf(k.path)
	if err == nil && st == k.stamp {
		return
	}
	file, st, err := k.load(k.domains)
	if err != nil {
		if err.Error() != k.broken {
			k.broken = err.Error()
			k.log.Error("key file not taken over, the keys before it go on: " + k.broken)
		}
		return
	}
	k.file, k.stamp, k.broken, k.until = file, st, "", 0
	k.log.Info("key file taken over", "file", k.path)
}

// refill writes the keys that are missing, the oldest that can still be
// accepted first if all are.
func (k *Keeper) refill(now keys.Reading) error {
	epoch := k.clock.Epoch(now.MonotonicNS)
	first, end := k.until, epoch+k.Epochs()
	if first == 0 || first > end || first < epoch {
		first = epoch - min(behind, epoch)
	}
	if first == end {
		return nil
	}
	for i, domain := range k.domains {
		if err := k.write(i, domain, first, end); err != nil {
			return err
		}
	}
	k.until = end
	return nil
}

func (k *Keeper) write(index int, domain string, first, end uint64) error {
	slots := make([]cookie.Slot, 0, end-first)
	defer clear(slots)
	for e := first; e < end; e++ {
		if slot, ok := k.file.EpochKey(domain, e); ok {
			slots = append(slots, slot)
		} else {
			slots = append(slots, cookie.Slot{Epoch: e}) // an empty slot: no key
		}
	}
	return k.kernel.WriteKeys(index, slots)
}

// Clock returns the data plane's clock to begin with.
func (k *Keeper) Clock(learn time.Duration) dataplane.Clock {
	return dataplane.Clock{
		OffsetNS: k.OffsetNS(), EpochNS: uint64(k.Epoch()),
		LearnUntilNS: uint64(k.read().MonotonicNS) + uint64(learn),
	}
}

// SystemClocks reads the host's clocks.
func SystemClocks() keys.Reading {
	var mono, real unix.Timespec
	// Neither call can fail: both clocks exist on every Linux.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &mono)
	_ = unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &real)
	return keys.Reading{MonotonicNS: mono.Nano(), RealNS: real.Nano()}
}
