package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// ErrTransmit means that XDP cannot send on a device.
var ErrTransmit = errors.New("XDP cannot transmit")

// transmitter is what tells the fate of frames after their verdict: every object
// that sends has one.
type transmitter struct {
	devices, failures                        *ebpf.Map
	exception, redirect, bulk, devmap, probe *ebpf.Program
}

func (e *Edge) transmitter() transmitter {
	o := &e.objects
	return transmitter{o.Devices, o.TransmitFailures, o.TransmitException, o.TransmitRedirect, o.TransmitBulk, o.TransmitDevmap, o.TransmitProbe}
}

// watchTransmit counts what the drivers lose of our devices' frames.
func (e *Edge) watchTransmit(pins *Pins) error {
	devices := append(e.config.Outside[:len(e.config.Outside):len(e.config.Outside)], e.config.Inside...)
	return e.transmitter().watch(pins, e.links, devices)
}

func (t transmitter) watch(pins *Pins, links map[string]link.Link, devices []Interface) error {
	for _, i := range devices {
		if err := t.devices.Put(uint32(i.Index), uint8(1)); err != nil {
			return fmt.Errorf("write device %s: %w", i.Name, err)
		}
	}
	for name, prog := range map[string]*ebpf.Program{
		"transmit_exception": t.exception, "transmit_redirect": t.redirect,
		"transmit_bulk": t.bulk, "transmit_devmap": t.devmap,
	} {
		if err := attachTracing(pins, links, name, prog); err != nil {
			return err
		}
	}
	return nil
}

// attachTracing attaches to the tracepoint that the program names. A tracing
// link cannot be updated: an older one goes.
func attachTracing(pins *Pins, links map[string]link.Link, name string, prog *ebpf.Program) error {
	l, err := pins.attach(name, prog,
		func(*link.Info) bool { return false },
		func() (link.Link, error) { return link.AttachTracing(link.TracingOptions{Program: prog}) })
	if err != nil {
		return fmt.Errorf("attach %s to its tracepoint: %w", name, err)
	}
	links[name] = l
	return nil
}

// TransmitFailures counts, by cause, the frames that were lost after their
// verdict.
func (e *Edge) TransmitFailures() (map[string]uint64, error) { return e.transmitter().lost() }

func (t transmitter) lost() (map[string]uint64, error) { return readFailures(t.failures) }

func readFailures(m *ebpf.Map) (map[string]uint64, error) {
	failures := make(map[string]uint64)
	perCPU := make([]uint64, ebpf.MustPossibleCPU())
	for i, name := range TransmitFailureNames() {
		if err := m.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read transmit failures: %w", err)
		}
		for _, n := range perCPU {
			failures[name] += n
		}
	}
	return failures, nil
}

// TryTransmit sends one frame out of every outside device, in the way that
// answers take.
func (e *Edge) TryTransmit() error { return e.transmitter().try(e.config.Outside, e.config.Generic) }

// try sends to a link-local multicast address that no switch forwards, with the
// Ethernet type for local experiments (IEEE 802).
func (t transmitter) try(devices []Interface, generic bool) error {
	if generic {
		return nil // the kernel's stack transmits, as it does everything
	}
	frame := append([]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e, 0x02, 0, 0, 0, 0, 0x01, 0x88, 0xb5}, make([]byte, 46)...)
	for _, i := range devices {
		before, err := t.lost()
		if err != nil {
			return err
		}
		if err := t.send(i, frame); err != nil {
			return fmt.Errorf("try XDP_TX on %s: %w", i.Name, err)
		}
		after, err := t.lost()
		if err != nil {
			return err
		}
		for cause, n := range after {
			if n > before[cause] {
				return fmt.Errorf("try XDP_TX on %s: %w (%s): its driver lacks it or has no queue for it; on a veth, switch GRO on at the other end (ethtool -K NAME gro on)", i.Name, ErrTransmit, cause)
			}
		}
	}
	return nil
}

func (t transmitter) send(i Interface, frame []byte) error {
	var context bytes.Buffer // struct xdp_md
	for _, field := range []uint32{0, uint32(len(frame)), 0, uint32(i.Index), 0, 0} {
		_ = binary.Write(&context, binary.NativeEndian, field) // a Buffer takes everything
	}
	const liveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES
	_, err := t.probe.Run(&ebpf.RunOptions{
		Data: frame, Context: context.Bytes(), Repeat: 1, Flags: liveFrames,
	})
	return err
}
