package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/edge"
	"smartcookie/internal/metrics"
	"smartcookie/internal/policy"
	"smartcookie/internal/server"
	"smartcookie/internal/upkeep"
)

// Flood says when a port is in flood mode, with the kernel's own cookies.
type Flood struct {
	SYNs   int           // a second that are one
	Window time.Duration // T1: in which they are counted
	Calm   time.Duration // T2: so long after the last sign of one it is over
}

// calmDoublings bounds T2: each flood that comes back at once doubles it.
const calmDoublings = 4

func (f Flood) limits() dataplane.FloodLimits {
	within := min(max(int64(f.SYNs)*int64(f.Window)/int64(time.Second), 1), math.MaxInt32)
	return dataplane.FloodLimits{SYNs: int(within), Window: f.Window, Calm: f.Calm, CalmMost: f.Calm << calmDoublings}
}

// kernelHost is the agent with the kernel's own cookies.
type kernelHost struct {
	*dataplane.HostKernel
	pins     *dataplane.Pins
	services []policy.Service // by id, less one
	own      []netip.Prefix
	ports    policy.PortSet
	log      *slog.Logger
	lost     *edge.LossReport
	terms    *terms
	answered map[uint16]uint64 // when a port's flood began, or this daemon
}

func runKernel(ctx context.Context, c Config, o Options) error {
	if err := edge.RefuseVRF(c.Interface.Name); err != nil {
		return err
	}
	if err := edge.CheckDevice(c.Interface.Name, c.Generic, false, o.Log); err != nil {
		return err
	}
	h := &kernelHost{log: o.Log, answered: make(map[uint16]uint64), lost: edge.NewLossReport(o.Log)}
	if err := h.serve(c); err != nil {
		return err
	}
	h.terms = newTerms(server.ThisHost(), c.Ports, c.Mode == policy.Always, o.Log)
	if err := h.terms.start(); err != nil {
		return err
	}
	scrapes, err := metrics.Listen(c.Metrics, o.Log)
	if err != nil {
		return err
	}
	defer scrapes.Close()
	if err := h.attach(c, o.Pins); err != nil {
		return err
	}
	defer h.close()
	scrapes.Show(metrics.Sources{Pins: o.Pins, Agents: []string{dataplane.HostAgent}, Clocks: upkeep.SystemClocks})
	h.beginCounting()
	changes, err := h.OpenModeChanges()
	if err != nil {
		return err
	}
	defer changes.Close()
	upkeep.Ready(o.Log, "interface", c.Interface.Name, "ports", portNames(c.Ports), "cookies", "kernel")
	if err := confirm(ctx, c, o); err != nil {
		_, detachErr := dataplane.Detach(o.Pins)
		return errors.Join(err, detachErr)
	}
	return h.watch(ctx, changes)
}

// serve makes a service of every port, at the host's own addresses.
func (h *kernelHost) serve(c Config) error {
	own, err := ownAddresses()
	if err != nil {
		return err
	}
	h.own = own
	for _, r := range c.Ports {
		for port := int(r.Low); port <= int(r.High); port++ {
			h.services = append(h.services, policy.Service{
				Name: strconv.Itoa(port), Domain: domain, Mode: c.Mode, Prefixes: own[:1],
				Ports: []policy.PortRange{{Low: uint16(port), High: uint16(port)}},
			})
		}
	}
	return nil
}

// table holds the ports once, and all addresses lead to them.
func (h *kernelHost) table() (*policy.Table, error) {
	table, err := policy.Compile(h.services)
	if err != nil {
		return nil, err
	}
	h.ports = table.Prefixes[h.own[0]]
	for _, address := range h.own {
		table.Prefixes[address] = h.ports
	}
	return table, nil
}

func (h *kernelHost) attach(c Config, root string) error {
	table, err := h.table()
	if err != nil {
		return err
	}
	device := edge.InterfaceOf(c.Interface)
	if device.VRF != nil {
		return &edge.DeviceError{
			Name: "device-vrf", Device: device.Name, Problem: "it is a port of the VRF " + device.VRF.Name + ", whose listeners the look-up of this program does not find",
			Mend: "leave out --cookies kernel",
		}
	}
	if h.pins, err = dataplane.OpenPins(root, dataplane.HostAgent); err != nil {
		return err
	}
	mss4, mss6 := mssOf(c.Interface.MTU)
	h.HostKernel, err = dataplane.LoadHostKernel(h.pins, dataplane.HostKernelConfig{
		Services: h.services, Table: table, Interface: device, Generic: c.Generic,
		MSS4: mss4, MSS6: mss6, Limits: c.Flood.limits(),
	})
	if err != nil {
		h.pins.Close()
		return err
	}
	for _, step := range []func() error{
		func() error { return h.SetReceiveMost(receiveMost()) },
		func() error { return h.Attach(h.pins) },
		h.TryTransmit,
	} {
		if err := step(); err != nil {
			h.Undo(h.pins)
			h.close()
			return err
		}
	}
	return nil
}

func (h *kernelHost) close() {
	h.Close()
	h.pins.Close()
}

// receiveMost is net.core.rmem_max, 0 if it cannot be read: it matters only
// where it is above tcp_rmem's.
func receiveMost() uint32 {
	text, err := os.ReadFile("/proc/sys/net/core/rmem_max")
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// watch reports; the modes change without it.
func (h *kernelHost) watch(ctx context.Context, changes *dataplane.ModeChanges) error {
	news, failed := make(chan dataplane.ModeChange), make(chan error, 1)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for {
			change, err := changes.Read()
			if err != nil {
				failed <- err
				return
			}
			select {
			case news <- change:
			case <-ctx.Done():
				return
			}
		}
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			h.log.Info("the daemon ends, the protection goes on; to end it: smartcookie detach")
			return nil
		case change := <-news:
			h.tell(change)
		case err := <-failed:
			return err
		case <-tick.C:
			if h.pins.Gone() {
				h.log.Info("detached")
				return nil
			}
			if err := h.tick(); err != nil {
				return err
			}
		}
	}
}

func (h *kernelHost) tick() (err error) {
	if h.own, err = followAddresses(h.log, h.own, h.ports, h); err != nil {
		return err
	}
	h.lost.Tick(h)
	h.terms.tick()
	return errors.Join(h.EndFloods(), h.SetReceiveMost(receiveMost()))
}

// tell logs a change of mode with what has caused it.
func (h *kernelHost) tell(c dataplane.ModeChange) {
	answered := h.answeredOf(c.Port)
	if c.Cause == dataplane.CalmOver {
		h.log.Info("passive mode", "port", c.Port, "because", fmt.Sprintf("calm for %s", c.Calm),
			"lasted", c.Lasted.Round(time.Millisecond).String(), "answered", answered-h.answered[c.Port])
		return
	}
	h.answered[c.Port] = answered
	because := fmt.Sprintf("%d SYNs within %s", c.SYNs, c.Within.Round(time.Millisecond))
	switch c.Cause {
	case dataplane.FullQueue:
		because = "the kernel's queue is full"
	case dataplane.Ordered:
		because = "its mode is always"
	}
	h.log.Info("flood mode", "port", c.Port, "because", because, "calm", c.Calm.String())
}

// beginCounting has floods that go on from an earlier daemon counted from here.
func (h *kernelHost) beginCounting() {
	for i := range h.services {
		port := h.services[i].Ports[0].Low
		h.answered[port] = h.answeredOf(port)
	}
}

// answeredOf is how many SYNs to a port were answered so far.
func (h *kernelHost) answeredOf(port uint16) uint64 {
	n, err := h.Answered(port)
	if err != nil {
		h.log.Warn(err.Error())
	}
	return n
}
