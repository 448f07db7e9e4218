package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"smartcookie/internal/badwire"
)

// badWire is one of a lab's bad wires: between two ports of a namespace that
// has nothing else, so that both neighbours keep plain veths with native XDP.
type badWire struct {
	Name   string // of its ports and its process
	Faults badwire.Faults
	wire   **badwire.Wire
}

func (b *badWire) ports() (first, second string) { return b.Name + "0", b.Name + "1" }

// badWires returns the client's and the server's wire; nil is a good one.
func (l *Lab) badWires() (outside, inside *badWire) {
	if l.options.Wire != nil {
		outside = &badWire{"wire", *l.options.Wire, &l.Wire}
	}
	if l.options.InsideWire != nil {
		inside = &badWire{"inner", *l.options.InsideWire, &l.InsideWire}
	}
	return outside, inside
}

// lay joins the wire's two ports. A program that passes everything makes them
// take what their neighbours send by XDP, which GRO does elsewhere.
func (l *Lab) lay(b *badWire) error {
	first, second := b.ports()
	if err := l.wires.Sysctl("net.ipv6.conf.all.disable_ipv6", "1"); err != nil {
		return err
	}
	for _, port := range []string{first, second} {
		if err := errors.Join(l.wires.change(port, wireOffloads), l.wires.Pass(port)); err != nil {
			return err
		}
	}
	if l.options.Standing {
		return l.startWire(b)
	}
	return l.open(b, nil)
}

// open lets the wire's faults be; without CPUs it may use any.
func (l *Lab) open(b *badWire, cpus []int) error {
	first, second := b.ports()
	if err := l.wires.Do(func() error {
		return onCPUs(cpus, func() (err error) {
			*b.wire, err = badwire.Open(first, second, b.Faults)
			return err
		})
	}); err != nil {
		return fmt.Errorf("make a bad wire: %w", err)
	}
	l.onClose((*b.wire).Close)
	return nil
}

// Rewire changes the faults of the client's wire, in a lab that has one and does
// not stand. Without any, the kernel joins its ports, and Wire is nil: it takes
// some microseconds more than no wire. With some, it stays out of the generator's
// way, and that out of its.
func (l *Lab) Rewire(faults badwire.Faults) error {
	b, _ := l.badWires()
	if b == nil || l.options.Standing {
		return errors.New("this lab has no wire of its own to change")
	}
	if l.Wire != nil {
		if err := l.Wire.Close(); err != nil {
			return fmt.Errorf("end a bad wire: %w", err)
		}
		l.Wire = nil
	} else if err := l.wires.unbridge(); err != nil {
		return err
	}
	if b.Faults = faults; faults.Bad() {
		return l.open(b, l.cpus.others)
	}
	first, second := b.ports()
	return l.wires.bridge(first, second)
}

// wireCounts returns what the lab's bad wires have done, from the outside first.
func (l *Lab) wireCounts() map[string][2]badwire.Counts {
	counts := map[string][2]badwire.Counts{}
	if l.Wire != nil {
		counts["outside"] = l.Wire.Counts()
	}
	if l.InsideWire != nil {
		both := l.InsideWire.Counts() // its first port is the server's
		counts["inside"] = [2]badwire.Counts{both[1], both[0]}
	}
	return counts
}

// startWire gives the wire of a standing lab to a process.
func (l *Lab) startWire(b *badWire) error {
	encoded, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("encode a wire: %w", err)
	}
	_, err = l.Start(context.Background(), l.wires, b.Name, childCommand, childGroup, childWire, string(encoded))
	return err
}

// runWire is the life of that process; its log ends with the counts.
func runWire(ctx context.Context, encoded string, log *slog.Logger) error {
	var b badWire
	if err := json.Unmarshal([]byte(encoded), &b); err != nil {
		return fmt.Errorf("read the wire: %w", err)
	}
	first, second := b.ports()
	wire, err := badwire.Open(first, second, b.Faults)
	if err != nil {
		return err
	}
	log.Info("ready", "wire", b.Name)
	<-ctx.Done()
	err = wire.Close()
	counts := wire.Counts()
	log.Info("ended", "first", counts[0], "second", counts[1])
	return err
}
