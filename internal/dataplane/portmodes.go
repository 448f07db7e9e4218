package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"smartcookie/internal/policy"
)

// PortMode is how a port of a host with the kernel's own cookies stands.
type PortMode struct {
	Port     uint16        `json:"port"`
	Mode     string        `json:"mode"` // off, passive, flood, always
	Monitor  bool          `json:"monitor,omitempty"`
	SYNs     uint64        `json:"syns"`
	Answered uint64        `json:"answered"`
	Changes  uint32        `json:"changes"` // of mode
	Calm     time.Duration `json:"-"`       // T2 of its last flood
	CalmS    float64       `json:"calm_seconds"`
}

// PortModes reads the modes that are pinned below root; none where no such host
// is attached. It needs no daemon.
func PortModes(root string) ([]PortMode, error) {
	pins := &Pins{path: filepath.Join(root, HostAgent)}
	if _, err := os.Stat(pins.mapPath("port_modes")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if !pins.sameContract() {
		return nil, fmt.Errorf("the %s agent was %w", HostAgent, ErrOtherVersion)
	}
	found := make(map[string]*ebpf.Map)
	defer func() {
		for _, m := range found {
			m.Close()
		}
	}()
	for _, name := range []string{"port_modes", "port_syns", "port_ranges", "counters", "services"} {
		m, err := ebpf.LoadPinnedMap(pins.mapPath(name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("open map %s: %w", name, err)
		}
		found[name] = m
	}
	return readModes(found)
}

func readModes(from map[string]*ebpf.Map) ([]PortMode, error) {
	ranges, err := readRanges(from["port_ranges"])
	if err != nil {
		return nil, err
	}
	var all []PortMode
	for _, r := range ranges {
		mode, err := readMode(from, uint32(r.Service))
		if err != nil {
			return nil, err
		}
		mode.Port = r.Low
		if err := mode.heed(from["services"], uint32(r.Service)); err != nil {
			return nil, err
		}
		all = append(all, mode)
	}
	return all, nil
}

// heed lets the service's mode have the last word.
func (m *PortMode) heed(services *ebpf.Map, id uint32) error {
	var v edgeService
	if err := services.Lookup(id, &v); err != nil {
		return fmt.Errorf("read services: %w", err)
	}
	switch policy.Mode(v.Mode) {
	case policy.Off:
		m.Mode = "off"
	case policy.Always, policy.Starting:
		m.Mode = "always"
	case policy.Monitor:
		m.Monitor = true
	}
	return nil
}

func readMode(from map[string]*ebpf.Map, id uint32) (m PortMode, err error) {
	var b hostKernelBimodal
	if err := from["port_modes"].Lookup(id, &b); err != nil {
		return m, fmt.Errorf("read modes: %w", err)
	}
	m.Mode, m.Changes, m.Calm = "passive", b.Changes, time.Duration(b.CalmNs)
	m.CalmS = m.Calm.Seconds()
	now, err := coarseNow()
	if err != nil {
		return m, err
	}
	// The next packet ends a flood whose calm time is over.
	if b.Mode == uint32(hostKernelBimodalModeBIMODAL_FLOOD) && int64(now-b.PressedNs) < int64(b.CalmNs) {
		m.Mode = "flood"
	}
	if m.SYNs, err = sumPerCPU(from["port_syns"], id); err != nil {
		return m, err
	}
	m.Answered, err = sumPerCPU(from["counters"], answersOf(id))
	return m, err
}

// answersOf is the counter of a service's answers.
func answersOf(id uint32) uint32 {
	return id*uint32(edgeVerdictVERDICT_STRIDE) + uint32(edgeVerdictVERDICT_ANSWER_SYN)
}

// Answered is how many SYNs to a port were answered since the agent was attached.
func (h *HostKernel) Answered(port uint16) (uint64, error) {
	for i := range h.config.Services {
		if h.config.Services[i].Ports[0].Low == port {
			return sumPerCPU(h.objects.Counters, answersOf(h.id(i)))
		}
	}
	return 0, fmt.Errorf("port %d: %w", port, ErrNoService)
}

func sumPerCPU(m *ebpf.Map, key uint32) (total uint64, err error) {
	var perCPU []uint64
	if err := m.Lookup(key, &perCPU); err != nil {
		return 0, fmt.Errorf("read counters: %w", err)
	}
	for _, n := range perCPU {
		total += n
	}
	return total, nil
}

// ModeCause is why a port has changed its mode.
type ModeCause uint32

// The causes, as in bpf/port_mode.h.
const (
	ManySYNs  = ModeCause(hostKernelChangeCauseCHANGE_SYNS)
	FullQueue = ModeCause(hostKernelChangeCauseCHANGE_QUEUE)
	CalmOver  = ModeCause(hostKernelChangeCauseCHANGE_CALM)
	Ordered   = ModeCause(hostKernelChangeCauseCHANGE_ORDERED)
)

// ModeChange is a change of a port's mode, with the figures that caused it.
type ModeChange struct {
	Port   uint16
	Cause  ModeCause
	SYNs   uint32        // that came
	Within time.Duration // this time
	Calm   time.Duration // T2 of the flood
	Lasted time.Duration // the mode before; 0: since the agent was attached
}

// ErrChangesClosed says that no more changes come.
var ErrChangesClosed = errors.New("changes of mode are closed")

// ModeChanges gives out the changes of mode.
type ModeChanges struct {
	reader *ringbuf.Reader
	ports  []uint16 // by service, less one
}

// OpenModeChanges begins to take them.
func (h *HostKernel) OpenModeChanges() (*ModeChanges, error) {
	reader, err := ringbuf.NewReader(h.objects.ModeChanges)
	if err != nil {
		return nil, fmt.Errorf("read map mode_changes: %w", err)
	}
	c := &ModeChanges{reader: reader}
	for i := range h.config.Services {
		c.ports = append(c.ports, h.config.Services[i].Ports[0].Low)
	}
	return c, nil
}

// Read waits for the next change.
func (c *ModeChanges) Read() (ModeChange, error) {
	record, err := c.reader.Read()
	if errors.Is(err, os.ErrClosed) {
		return ModeChange{}, ErrChangesClosed
	}
	if err != nil {
		return ModeChange{}, fmt.Errorf("read map mode_changes: %w", err)
	}
	var v hostKernelModeChange
	if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &v); err != nil {
		return ModeChange{}, fmt.Errorf("read map mode_changes: %d bytes, want %d", len(record.RawSample), unsafe.Sizeof(v))
	}
	if v.Service == 0 || int(v.Service) > len(c.ports) {
		return ModeChange{}, fmt.Errorf("read map mode_changes: service %d", v.Service)
	}
	return ModeChange{
		Port: c.ports[v.Service-1], Cause: ModeCause(v.Cause), SYNs: v.Syns, Within: time.Duration(v.WindowNs),
		Calm: time.Duration(v.CalmNs), Lasted: time.Duration(v.LastedNs),
	}, nil
}

// Close ends a Read.
func (c *ModeChanges) Close() error { return c.reader.Close() }
