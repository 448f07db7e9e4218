package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/vishvananda/netns"
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

// setDevice writes what /sys has of a port, from a thread that sees the
// namespace's.
func (n *Namespace) setDevice(port string, s setting) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		done <- func() error {
			if err := netns.Set(n.handle); err != nil {
				return fmt.Errorf("enter namespace %s: %w", n.Name, err)
			}
			if err := ownSys(); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join("/sys/class/net", port, s.name), []byte(s.value), 0); err != nil {
				return fmt.Errorf("set %s of %s in %s: %w", s.name, port, n.Name, err)
			}
			return nil
		}()
	}()
	return <-done
}
