package dataplane

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smartcookie/internal/policy"
)

// ErrNoService means that no agent protects a service of that name.
var ErrNoService = errors.New("no such service")

// Figures are what a detector sees of the last second.
type Figures struct {
	SYNs       uint32 `json:"syns"`
	Unfinished uint32 `json:"unfinished"` // percent
	HalfOpen   uint32 `json:"half_open"`
	Cause      string `json:"cause,omitempty"` // limits that they cross
}

// ServiceState is how an agent stands to a service.
type ServiceState struct {
	Agent      string
	ID         uint32 // by which its programs know it
	Domain     int    // of its keys, by index
	Name       string
	Mode       policy.Mode // that holds now
	Configured policy.Mode
	Phase      Phase // of an edge's service in mode auto
	Since      time.Duration
	Figures    Figures
	On, Off    Figures       // when it last began to be defended, and when that ended
	OnAt       time.Duration // monotonic, as Since
	OffAt      time.Duration
	TimesOn    uint32
	TimesOff   uint32
	Calm       time.Duration // T2 now
}

// Phase is what a detector makes of a service.
type Phase uint32

// The phases, as in contract.h.
const (
	Passive = Phase(edgeDetectorPhaseDETECTOR_PASSIVE)
	Grace   = Phase(edgeDetectorPhaseDETECTOR_GRACE)
	Active  = Phase(edgeDetectorPhaseDETECTOR_ACTIVE)
	Leaving = Phase(edgeDetectorPhaseDETECTOR_LEAVING)
)

var phaseNames = [...]string{Passive: "passive", Grace: "grace", Active: "active", Leaving: "leaving"}

func (p Phase) String() string { return phaseNames[p&3] }

// PhaseNames lists the phases by number.
func PhaseNames() []string { return phaseNames[:] }

// Enforces says whether every SYN is answered and every stranger is lost.
func (s *ServiceState) Enforces() bool {
	return s.Mode == policy.Always || s.Mode == policy.Adaptive && s.Phase == Active
}

// State says in one word what becomes of the service's packets.
func (s *ServiceState) State() string {
	if s.Mode == policy.Adaptive && s.Agent == EdgeAgent {
		return s.Phase.String()
	}
	return ""
}

func label(s *policy.Service) edgeServiceLabel {
	l := edgeServiceLabel{Mode: uint8(s.Mode)}
	copy(l.Name[:policy.MaxName], s.Name)
	return l
}

func nameOf(l *edgeServiceLabel) string { return string(bytes.TrimRight(l.Name[:], "\x00")) }

func detectLimits(d policy.Detect) edgeDetectLimits {
	return edgeDetectLimits{
		Syns: uint32(d.SYNs), Unfinished: uint32(d.Unfinished), HalfOpen: uint32(d.HalfOpen),
		CalmMs: uint32(d.Calm.Milliseconds()),
	}
}

// labelGroup is what an agent knows of its services' modes.
var labelGroup = []string{"labels", "services"}

// eachLabel goes over the services that there are, by their ids.
func eachLabel(labels *ebpf.Map, each func(id uint32, l *edgeServiceLabel) error) error {
	var cursor ebpf.MapBatchCursor
	ids, all := make([]uint32, policy.MaxServices+1), make([]edgeServiceLabel, policy.MaxServices+1)
	n, err := labels.BatchLookup(&cursor, ids, all, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // the end
		return fmt.Errorf("read names of services: %w", err)
	}
	for i := range n {
		if all[i].Name[0] == 0 {
			continue
		}
		if err := each(ids[i], &all[i]); err != nil {
			return err
		}
	}
	return nil
}

// former is what an earlier agent has left of a service.
type former struct {
	id               uint16
	mode, configured policy.Mode
	detector         edgeDetector
}

// formerModes reads it, by name: the order of services may have changed.
func formerModes(pins *Pins, spec *ebpf.CollectionSpec) map[string]former {
	if pins == nil {
		return nil
	}
	group := labelGroup
	if spec.Maps["detectors"] != nil {
		group = append(slices.Clone(labelGroup), "detectors")
	}
	found, ok := pins.reusable(spec, group)
	if !ok {
		return nil
	}
	left := make(map[string]former)
	_ = eachLabel(found["labels"], func(id uint32, l *edgeServiceLabel) error {
		var s edgeService
		if err := found["services"].Lookup(id, &s); err != nil {
			return err
		}
		f := former{id: uint16(id), mode: policy.Mode(s.Mode), configured: policy.Mode(l.Mode)}
		if m := found["detectors"]; m != nil {
			_ = m.Lookup(id, &f.detector) // without, it begins anew
		}
		left[nameOf(l)] = f
		return nil
	}) // what cannot be read begins anew
	for _, m := range found {
		m.Close()
	}
	return left
}

// resume takes over a mode that an operator has chosen, until the configuration
// says something new, and what the detector knew.
func (f *former) resume(s *policy.Service, nowNS uint64) (policy.Mode, edgeDetector) {
	d := f.detector
	d.Limits = detectLimits(s.Detect)
	d.Syns, d.Finished, d.Slot = 0, 0, 0 // the tallies begin anew
	if f.configured == s.Mode {
		return f.mode, d
	}
	return change(f.mode, s.Mode, &d, nowNS), d
}

// change goes from one mode to another so that nobody is cut off, and returns
// the mode to begin with.
func change(from, to policy.Mode, d *edgeDetector, nowNS uint64) policy.Mode {
	learns := from == policy.Starting || from == policy.Adaptive && Phase(d.Phase) == Grace
	acts := from == policy.Always || from == policy.Adaptive && (Phase(d.Phase) == Active || Phase(d.Phase) == Leaving)
	switch {
	case from == to || from == policy.Starting && to == policy.Always:
		return from
	case to == policy.Adaptive:
		d.CalmMs, d.SinceNs, d.CalmFromNs = d.Limits.CalmMs, nowNS, 0
		d.Phase = uint32(Passive)
		if acts {
			d.Phase = uint32(Active)
		} else if learns {
			d.Phase = uint32(Grace)
		}
	case to == policy.Always && !acts:
		d.SinceNs = nowNS
		return policy.Starting
	}
	return to
}

// writeModes writes names, modes and limits, before the first packet. To a
// service that is new to a filter which has been there, and to no other,
// unknown packets pass for a time.
func (e *Edge) writeModes(pins *Pins, left map[string]former) error {
	now, isNew := monotonicNS(), e.newGround(pins)
	for i := range e.config.Services {
		s, id := &e.config.Services[i], e.id(i)
		mode, d := s.Mode, edgeDetector{Limits: detectLimits(s.Detect)}
		if f, ok := left[s.Name]; ok {
			mode, d = f.resume(s, now)
		}
		if isNew[i] {
			mode = learn(mode, &d, now, e.config.Learn)
		}
		if err := errors.Join(e.writeMode(id, s, mode), e.objects.Detectors.Put(id, d)); err != nil {
			return fmt.Errorf("write mode of service %q: %w", s.Name, err)
		}
	}
	return nil
}

// learn has a service that would lose unknown packets let them pass for so long,
// and for the grace of every switch after that.
func learn(mode policy.Mode, d *edgeDetector, nowNS uint64, lasts time.Duration) policy.Mode {
	switch {
	case mode == policy.Always || mode == policy.Starting:
		d.SinceNs = nowNS + uint64(lasts)
		return policy.Starting
	case mode == policy.Adaptive && Phase(d.Phase) != Passive:
		d.Phase, d.SinceNs = uint32(Grace), nowNS+uint64(lasts)
	}
	return mode
}

func (s *Server) writeModes(left map[string]former) error {
	if s.config.Proxy != nil {
		return nil // the edge has written them
	}
	for i := range s.config.Services {
		service, mode := &s.config.Services[i], s.config.Services[i].Mode
		if f, ok := left[service.Name]; ok && f.configured == mode {
			mode = f.mode
		}
		if err := s.writeMode(s.id(i), service, mode); err != nil {
			return fmt.Errorf("write mode of service %q: %w", service.Name, err)
		}
	}
	return nil
}

func (t *tables) writeMode(id uint32, s *policy.Service, mode policy.Mode) error {
	return errors.Join(t.labels.Put(id, label(s)), putMode(t.services, id, mode))
}

func putMode(services *ebpf.Map, id uint32, mode policy.Mode) error {
	var v edgeService
	if err := services.Lookup(id, &v); err != nil {
		return err
	}
	v.Mode = uint8(mode)
	return services.Put(id, v)
}

// States returns how the agent stands to each of its services.
func (e *Edge) States() ([]ServiceState, error) {
	return readStates(EdgeAgent, e.labels, e.services, e.objects.Detectors)
}

// States returns which mode holds for each service.
func (s *Server) States() ([]ServiceState, error) {
	return readStates(ServerAgent, s.labels, s.services, nil)
}

func readStates(agent string, labels, services, detectors *ebpf.Map) ([]ServiceState, error) {
	var all []ServiceState
	err := eachLabel(labels, func(id uint32, l *edgeServiceLabel) error {
		var v edgeService
		var d edgeDetector
		if err := services.Lookup(id, &v); err != nil {
			return fmt.Errorf("read services: %w", err)
		}
		if detectors != nil {
			if err := detectors.Lookup(id, &d); err != nil {
				return fmt.Errorf("read detectors: %w", err)
			}
		}
		s := stateOf(&d)
		s.Agent, s.ID, s.Domain, s.Name, s.Mode, s.Configured = agent, id, int(v.Domain), nameOf(l), policy.Mode(v.Mode), policy.Mode(l.Mode)
		all = append(all, s)
		return nil
	})
	return all, err
}

func stateOf(d *edgeDetector) ServiceState {
	return ServiceState{
		Phase: Phase(d.Phase), Since: time.Duration(d.SinceNs),
		Figures: figuresOf(d.Now), On: figuresOf(d.On), Off: figuresOf(d.Off),
		OnAt: time.Duration(d.OnNs), OffAt: time.Duration(d.OffNs), TimesOn: d.TimesOn, TimesOff: d.TimesOff,
		Calm: time.Duration(cmp.Or(d.CalmMs, d.Limits.CalmMs)) * time.Millisecond,
	}
}

func figuresOf(f edgeDetectFigures) Figures {
	out := Figures{SYNs: f.Syns, Unfinished: f.Unfinished, HalfOpen: f.HalfOpen}
	for _, c := range []struct {
		bit  uint32
		name string
	}{
		{uint32(edgeDetectorCauseCAUSE_SYNS), "syns"},
		{uint32(edgeDetectorCauseCAUSE_UNFINISHED), "unfinished"},
		{uint32(edgeDetectorCauseCAUSE_HALF_OPEN), "half_open"},
	} {
		if f.Cause&c.bit == 0 {
			continue
		}
		if out.Cause != "" {
			out.Cause += ","
		}
		out.Cause += c.name
	}
	return out
}

// modeMaps are the pinned maps of an agent that modes are in.
type modeMaps struct{ labels, services, detectors, clock *ebpf.Map }

func openModes(root, agent string) (*modeMaps, error) {
	p := Pins{path: filepath.Join(root, agent)}
	if _, err := os.Stat(p.mapPath("labels")); errors.Is(err, fs.ErrNotExist) {
		return nil, fs.ErrNotExist
	}
	if !p.sameContract() {
		return nil, fmt.Errorf("the %s agent was %w", agent, ErrOtherVersion)
	}
	m := &modeMaps{}
	for name, to := range map[string]**ebpf.Map{"labels": &m.labels, "services": &m.services, "detectors": &m.detectors, "clock": &m.clock} {
		if (name == "detectors" || name == "clock") && agent != EdgeAgent {
			continue
		}
		var err error
		if *to, err = ebpf.LoadPinnedMap(p.mapPath(name), nil); err != nil {
			m.close()
			return nil, fmt.Errorf("open map %s of %s: %w", name, agent, err)
		}
	}
	return m, nil
}

func (m *modeMaps) close() {
	for _, one := range []*ebpf.Map{m.labels, m.services, m.detectors, m.clock} {
		if one != nil {
			one.Close()
		}
	}
}

// eachAgent runs f for every agent that is pinned below root.
func eachAgent(root string, f func(agent string, m *modeMaps) error) error {
	some := false
	for _, agent := range []string{EdgeAgent, ServerAgent, HostAgent} {
		m, err := openModes(root, agent)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		some = true
		err = f(agent, m)
		m.close()
		if err != nil {
			return err
		}
	}
	if !some {
		return fmt.Errorf("%w (looked at %s)", ErrNoAgent, root)
	}
	return nil
}

// ReadStates returns how the agents pinned below root stand to their services.
func ReadStates(root string) ([]ServiceState, error) {
	var all []ServiceState
	err := eachAgent(root, func(agent string, m *modeMaps) error {
		states, err := readStates(agent, m.labels, m.services, m.detectors)
		all = append(all, states...)
		return err
	})
	return all, err
}

// SetMode changes what the agents pinned below root do for a service. It needs no
// daemon. It returns what held before, of each agent that has the service.
func SetMode(root, service string, mode policy.Mode) ([]ServiceState, error) {
	var before []ServiceState
	err := eachAgent(root, func(agent string, m *modeMaps) error {
		states, err := readStates(agent, m.labels, m.services, m.detectors)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(states, func(s ServiceState) bool { return s.Name == service })
		if i < 0 {
			return nil
		}
		before = append(before, states[i])
		return m.set(states[i].ID, states[i].Mode, mode)
	})
	if err == nil && len(before) == 0 {
		err = fmt.Errorf("%w: %q", ErrNoService, service)
	}
	return before, err
}

// SetMode does the same for one service of an edge.
func (e *Edge) SetMode(id int, mode policy.Mode) error {
	var s edgeService
	if err := e.services.Lookup(uint32(id), &s); err != nil {
		return fmt.Errorf("read mode: %w", err)
	}
	m := modeMaps{e.labels, e.services, e.objects.Detectors, e.clock}
	return m.set(uint32(id), policy.Mode(s.Mode), mode)
}

func (m *modeMaps) set(id uint32, from, to policy.Mode) error {
	if m.detectors != nil {
		var d edgeDetector
		if err := m.detectors.Lookup(id, &d); err != nil {
			return fmt.Errorf("read detector: %w", err)
		}
		to = change(from, to, &d, monotonicNS())
		if err := m.detectors.Put(id, d); err != nil {
			return fmt.Errorf("write detector: %w", err)
		}
	}
	if err := putMode(m.services, id, to); err != nil {
		return fmt.Errorf("write mode: %w", err)
	}
	if m.clock == nil {
		return nil
	}
	// Whether other ports are lost at a prefix is remembered with its services.
	return (&tables{clock: m.clock}).raiseVersion()
}

// monotonicNS is the clock of the kernel's timer.
func monotonicNS() uint64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // exists on every Linux
	return uint64(now.Nano())
}
