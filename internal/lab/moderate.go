package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// A network card interrupts at most so often, in nanoseconds, and its host then
// takes all that has come. A veth holds 256 packets until then.
const moderation = 100_000

// Looks in vain before a port waits for interrupts again: never, since a veth's
// come from the CPU of whoever sends.
const looksInVain = 1<<31 - 1

// ModerateFlood makes the edge receive what comes from the attacker's side on the
// CPU of LoadCPU, as from a card whose interrupts are moderated: in the kernel's
// softirqs, which come before programs. Otherwise whoever sends does that work,
// on the generator's CPU. A port's own timer looks for packets from now on, on
// the CPU that did it last, which is that of the first packet. The port must have
// its XDP program already.
func (l *Lab) ModerateFlood() error {
	if err := l.Edge.moderate(l.Edge.Outside[1], moderation); err != nil {
		return err
	}
	return l.Attacker.Do(func() error {
		return onCPUs([]int{l.LoadCPU()}, l.sendFirst)
	})
}

// sendFirst sends a packet that nobody wants to the edge.
func (l *Lab) sendFirst() error {
	const discard = 9
	conn, err := net.Dial("udp", netip.AddrPortFrom(l.FloodedEdge(), discard).String())
	if err != nil {
		return fmt.Errorf("send a first packet to the edge: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{0}); err != nil {
		return fmt.Errorf("send a first packet to the edge: %w", err)
	}
	return nil
}

// FloodedEdge is the edge's own address at the attacker's link.
func (l *Lab) FloodedEdge() netip.Addr { return address4(attackerNetwork, 1) }

// moderate lets a timer look at a port.
func (n *Namespace) moderate(port string, nanoseconds int) error {
	for _, s := range []setting{
		{"gro_flush_timeout", strconv.Itoa(nanoseconds)},
		{"napi_defer_hard_irqs", strconv.Itoa(looksInVain)},
	} {
		if err := n.setDevice(port, s); err != nil {
			return err
		}
	}
	return nil
}

// setDevice writes what /sys has of a port. A /sys of our own, which is nowhere to
// be seen, shows the devices of the namespace in which it is made; so the thread
// need not have one, and goes back to what it was: with a thread would die the
// children that it has started.
func (n *Namespace) setDevice(port string, s setting) error {
	return n.Do(func() error {
		if err := writeSys(filepath.Join("class/net", port, s.name), s.value); err != nil {
			return fmt.Errorf("set %s of %s in %s: %w", s.name, port, n.Name, err)
		}
		return nil
	})
}

// writeSys writes a file of the thread's /sys.
func writeSys(path, value string) error {
	context, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open sysfs: %w", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return fmt.Errorf("make a sysfs: %w", err)
	}
	sys, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount a sysfs: %w", err)
	}
	defer unix.Close(sys)
	fd, err := unix.Openat(sys, path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	_, err = file.WriteString(value)
	return err
}
