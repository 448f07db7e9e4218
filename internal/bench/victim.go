package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// victim is an edge in a lab, with somebody who attacks it.
type victim struct {
	lab      *lab.Lab
	intruder *intruder
	// verdicts are the edge's counts by name.
	verdicts func() (map[string]uint64, error)
	// rekey begins another epoch at once; nil: the edge has its own clock.
	rekey func() error
	// batches of flows that have been attacked with: each is another one.
	batches int
	undo    []func() error
}

// newVictim makes a lab and defends it.
func newVictim(ctx context.Context, defend func(context.Context, *victim) error) (*victim, error) {
	v := &victim{}
	steps := []func() error{v.build, func() error { return defend(ctx, v) }}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, errors.Join(err, v.close())
		}
	}
	return v, nil
}

func (v *victim) build() (err error) {
	if v.lab, err = lab.New(lab.Options{}); err != nil {
		return err
	}
	v.undo = append(v.undo, v.lab.Close)
	if v.intruder, err = newIntruder(v.lab); err != nil {
		return err
	}
	v.undo = append(v.undo, v.intruder.close)
	return nil
}

func (v *victim) close() error {
	var errs []error
	for _, undo := range slices.Backward(v.undo) {
		errs = append(errs, undo())
	}
	v.undo = nil
	return errors.Join(errs...)
}

// defendVictim runs the real agents with keys for this hash.
func defendVictim(hash cookie.Hash) func(context.Context, *victim) error {
	return func(ctx context.Context, v *victim) error {
		path, err := v.lab.Keys()
		if err != nil {
			return err
		}
		if err := rekey(path, hash); err != nil {
			return err
		}
		server, err := v.lab.StartServer(ctx)
		if err != nil {
			return err
		}
		v.undo = append(v.undo, server.Stop)
		guard, err := v.lab.Defend(ctx, "split")
		if err != nil {
			return err
		}
		v.undo = append(v.undo, guard.Stop)
		v.verdicts = guard.EdgeVerdicts
		return nil
	}
}

// crcEdge is our edge with the CRC's cookies, for which no daemon exists.
type crcEdge struct {
	*testBench
	epoch uint64
}

func defendVictimByCRC(_ context.Context, v *victim) error {
	ports, err := devicesOf(v.lab.Edge)
	if err != nil {
		return err
	}
	b, err := newTestBench(cookie.SipHash, func(c *dataplane.EdgeConfig) {
		c.Services[0].Prefixes = []netip.Prefix{netip.PrefixFrom(v.lab.Server.IPv4, 32)}
		c.Outside, c.Inside, c.Forward = ports[:2], ports[2:], dataplane.Route
	})
	if err != nil {
		return err
	}
	v.undo = append(v.undo, func() error { b.close(); return nil })
	e := &crcEdge{b, benchEpoch}
	if err := e.rekey(); err != nil {
		return err
	}
	spec, err := crcSpec()
	if err != nil {
		return err
	}
	for name := range spec.Programs { // the verifier takes its time over each
		if name != "edge" {
			delete(spec.Programs, name)
		}
	}
	programs, err := b.edge.LoadBeside(spec)
	if err != nil {
		return err
	}
	v.undo = append(v.undo, func() error { programs.Close(); return nil })
	v.verdicts, v.rekey = e.verdicts, e.rekey
	return v.attach(programs.Programs["edge"])
}

// crcSpec is the edge whose cookies are of a CRC32.
func crcSpec() (*ebpf.CollectionSpec, error) {
	spec, err := loadCrc()
	if err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	if err := spec.Variables["crc_table"].Set(crcSlices()); err != nil {
		return nil, fmt.Errorf("write the CRC's table: %w", err)
	}
	return spec, nil
}

// devicesOf are the edge's ports: to the client, to the attacker, to the server.
func devicesOf(edge lab.EdgeHost) (ports []dataplane.Interface, err error) {
	err = edge.Do(func() error {
		for _, name := range []string{edge.Outside[0], edge.Outside[1], edge.Inside} {
			device, err := net.InterfaceByName(name)
			if err != nil {
				return fmt.Errorf("find %s: %w", name, err)
			}
			ports = append(ports, dataplane.Interface{Name: name, Index: device.Index, MTU: device.MTU, Veth: true})
		}
		return nil
	})
	return ports, err
}

func (v *victim) attach(program *ebpf.Program) error {
	return v.lab.Edge.Do(func() error {
		port, err := net.InterfaceByName(v.lab.Edge.Outside[1])
		if err != nil {
			return fmt.Errorf("find the attacker's port: %w", err)
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: port.Index, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("attach XDP: %w", err)
		}
		v.undo = append(v.undo, l.Close)
		return nil
	})
}

// rekey goes on to the next epoch, whose key nobody knows.
func (e *crcEdge) rekey() error {
	e.epoch++
	slot := cookie.Slot{Epoch: e.epoch, Hash: cookie.SipHash, WindowScale: 7}
	if _, err := rand.Read(slot.Key[:]); err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	if err := e.edge.WriteKeys(0, []cookie.Slot{slot}); err != nil {
		return err
	}
	return e.edge.SetClock(dataplane.Clock{OffsetNS: int64(e.epoch) * benchEpochNS, EpochNS: benchEpochNS})
}

func (e *crcEdge) verdicts() (map[string]uint64, error) {
	all := make(map[string]uint64)
	for service := range 2 { // none, and the one
		counts, err := e.edge.ServiceVerdicts(service)
		if err != nil {
			return nil, err
		}
		for number, name := range dataplane.VerdictNames() {
			all[name] += counts[number]
		}
	}
	return all, nil
}

// judged are the verdicts on an ACK that claims to finish a handshake, or to
// belong to one that was finished.
var judged = []string{"pass_cookie", "pass_verified", "drop_bad_cookie"}

// judgeLimit is how long the edge may take for what it was sent.
const judgeLimit = 2 * time.Second

// count sends packets and returns how many came to each of the judgements. Where
// not all have come to one, the figures say nothing.
func (v *victim) count(ctx context.Context, packets int, send func() error) (map[string]uint64, error) {
	before, err := v.verdicts()
	if err != nil {
		return nil, err
	}
	if err := send(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(judgeLimit); ; {
		after, err := v.verdicts()
		if err != nil {
			return nil, err
		}
		sum, counts := uint64(0), make(map[string]uint64)
		for _, name := range judged {
			counts[name] = after[name] - before[name]
			sum += counts[name]
		}
		if sum >= uint64(packets) {
			return counts, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the edge has judged %d of %d ACKs", sum, packets)
		}
		if err := wait(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
}
