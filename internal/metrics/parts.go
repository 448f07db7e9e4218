package metrics

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"smartcookie/internal/control"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

// part is what is read together, and fails together.
type part struct {
	name   string
	agents []string // that have it
	read   func(*scrape) error
}

func (p part) of(agent string) bool { return slices.Contains(p.agents, agent) }

var (
	everyAgent = []string{dataplane.EdgeAgent, dataplane.ServerAgent, dataplane.HostAgent, dataplane.ProxyAgent}
	halves     = []string{dataplane.EdgeAgent, dataplane.ServerAgent}
	senders    = []string{dataplane.EdgeAgent, dataplane.HostAgent}
)

var parts = []part{
	{"verdicts", everyAgent, readVerdicts},
	{"services", []string{dataplane.EdgeAgent, dataplane.ServerAgent, dataplane.HostAgent}, readServices},
	{"detector", []string{dataplane.EdgeAgent}, readDetector},
	{"ports", []string{dataplane.HostAgent}, readPorts},
	{"keys", halves, readKeys},
	{"filter", []string{dataplane.EdgeAgent}, readFilter},
	{"tables", everyAgent, readTables},
	{"transmit", senders, readTransmit},
	{"peers", halves, readPeers},
	{"control", halves, readControl},
	{"programs", everyAgent, readPrograms},
}

// services are those of the agent; a translator has its edge's.
func (s *scrape) services() ([]dataplane.ServiceState, error) {
	if s.agent == dataplane.ProxyAgent {
		return dataplane.NewSurvey(s.sources.Pins, dataplane.EdgeAgent).Services()
	}
	return s.survey.Services()
}

func last(states []dataplane.ServiceState) (id uint32) {
	for i := range states {
		id = max(id, states[i].ID)
	}
	return id
}

func readVerdicts(s *scrape) error {
	states, err := s.services()
	if err != nil {
		return err
	}
	names := map[uint32]string{}
	for i := range states {
		names[states[i].ID] = states[i].Name
	}
	counts := make(map[uint32]map[string]uint64)
	err = s.survey.Verdicts(last(states), func(service uint32, verdict int, count uint64) {
		name, known := names[service]
		if !known && service != 0 { // gone
			return
		}
		verdictName := dataplane.VerdictNames()[verdict]
		s.emit(verdicts, float64(count), name, verdictName)
		if counts[service] == nil {
			counts[service] = make(map[string]uint64)
		}
		counts[service][verdictName] = count
	})
	if err != nil {
		return err
	}
	for id, name := range names {
		s.tell(name, counts[id])
	}
	return nil
}

// tell hands out what the verdicts of a service mean together.
func (s *scrape) tell(service string, counts map[string]uint64) {
	for _, m := range meanings {
		if !slices.Contains(m.agents, s.agent) {
			continue
		}
		var sum uint64
		for _, verdict := range m.verdicts {
			sum += counts[verdict]
		}
		labels := []string{service}
		if m.label != "" {
			labels = append(labels, m.label)
		}
		s.emit(m.family, float64(sum), labels...)
	}
}

func readServices(s *scrape) error {
	states, err := s.services()
	if err != nil {
		return err
	}
	for i := range states {
		one := &states[i]
		s.oneOf(serviceMode, policy.ModeNames(), func(name string) bool { return name == one.Mode.String() }, one.Name)
		if s.agent == dataplane.EdgeAgent {
			s.emit(serviceDefends, number(one.Enforces()), one.Name)
		}
	}
	return nil
}

// readDetector shows services that are not always defended: of the others nothing
// is counted.
func readDetector(s *scrape) error {
	states, err := s.services()
	if err != nil {
		return err
	}
	tallies, err := s.survey.Tallies(last(states))
	if err != nil {
		return err
	}
	for i := range states {
		one, tally := &states[i], tallies[states[i].ID]
		s.emit(detectorSYNs, float64(tally.SYNs), one.Name)
		s.emit(detectorFinished, float64(tally.Finished), one.Name)
		s.emit(floods, float64(one.TimesOn), one.Name)
		s.emit(floodsEnded, float64(one.TimesOff), one.Name)
		if one.Mode != policy.Adaptive && one.Mode != policy.Monitor {
			continue
		}
		s.emit(detectorRate, float64(one.Figures.SYNs), one.Name)
		s.emit(detectorUnfinished, float64(one.Figures.Unfinished)/100, one.Name)
		s.emit(detectorHalfOpen, float64(one.Figures.HalfOpen), one.Name)
		if one.Mode == policy.Adaptive {
			s.oneOf(detectorPhase, dataplane.PhaseNames(), func(name string) bool { return name == one.Phase.String() }, one.Name)
		}
	}
	return nil
}

// readPorts shows the ports of a host with the kernel's own cookies, which are its
// services.
func readPorts(s *scrape) error {
	ports, err := dataplane.PortModes(s.sources.Pins)
	if err != nil {
		return err
	}
	for _, p := range ports {
		name := strconv.Itoa(int(p.Port))
		s.emit(syns, float64(p.SYNs), name)
		s.emit(portChanges, float64(p.Changes), name)
		s.emit(portFlooded, number(!p.Monitor && (p.Mode == "flood" || p.Mode == "always")), name)
	}
	return nil
}

func readKeys(s *scrape) error {
	clock, err := s.survey.Clock()
	if err != nil {
		return err
	}
	if clock.EpochNS == 0 {
		return fmt.Errorf("the clock of %s is not set", s.agent)
	}
	now := s.sources.Clocks()
	epochs := uint64(max(now.MonotonicNS+clock.OffsetNS, 0)) // their clock, in nanoseconds
	s.emit(keyEpoch, float64(epochs/clock.EpochNS))
	s.emit(epochLength, time.Duration(clock.EpochNS).Seconds())
	if s.agent == dataplane.EdgeAgent {
		s.emit(learning, max(time.Duration(int64(clock.LearnUntilNS)-now.MonotonicNS), 0).Seconds())
	}
	if s.sources.Epochs == 0 {
		return nil
	}
	s.emit(clockError, time.Duration(now.RealNS-now.MonotonicNS-clock.OffsetNS).Seconds())
	return s.readKeysLeft(epochs, clock.EpochNS)
}

func (s *scrape) readKeysLeft(nowNS, epochNS uint64) error {
	states, err := s.services()
	if err != nil {
		return err
	}
	left := make(map[int]float64) // by domain
	for i := range states {
		domain := states[i].Domain
		if _, ok := left[domain]; !ok {
			until, err := s.survey.KeysUntil(domain, nowNS/epochNS, s.sources.Epochs)
			if err != nil {
				return err
			}
			left[domain] = max(time.Duration(int64(until*epochNS-nowNS)), 0).Seconds()
		}
		s.emit(keysLeft, left[domain], states[i].Name)
	}
	return nil
}

func readFilter(s *scrape) error {
	f, err := s.survey.Filter()
	if err != nil {
		return err
	}
	for name, share := range map[string]float64{"current": f.Current, "older": f.Older} {
		s.emit(filterFill, share, name)
		s.emit(filterFlows, f.Flows(share), name)
	}
	s.emit(filterCapacity, float64(f.Capacity()))
	s.emit(filterFalse, f.FalsePositive)
	return nil
}

func readTables(s *scrape) error {
	count := s.sources.Tables[s.agent]
	if count == nil {
		return nil
	}
	for _, o := range count() {
		s.emit(tableEntries, float64(o.Entries), o.Table)
		s.emit(tableCapacity, float64(o.Capacity), o.Table)
	}
	return nil
}

func readTransmit(s *scrape) error {
	failures, err := s.survey.TransmitFailures()
	for cause, n := range failures {
		s.emit(lost, float64(n), cause)
	}
	return err
}

func readPeers(s *scrape) error {
	if s.sources.Skews == nil {
		return nil
	}
	peers, err := s.survey.Peers()
	if err != nil {
		return err
	}
	now := time.Duration(s.sources.Clocks().MonotonicNS)
	for id, p := range peers {
		peer := strconv.FormatUint(uint64(id), 10)
		if s.agent == dataplane.EdgeAgent {
			s.oneOf(peerPhase, control.PhaseNames(), func(name string) bool { return name == p.Phase.String() }, peer)
		}
		s.oneOf(peerDisagrees, control.DisagreementNames(), func(name string) bool { return slices.Contains(p.Disagreements.Names(), name) }, peer)
		if p.Heard > 0 {
			s.emit(peerAge, max(now-p.Heard, 0).Seconds(), peer)
		}
	}
	for id, skew := range s.sources.Skews() {
		s.emit(peerSkew, skew.Seconds(), strconv.FormatUint(uint64(id), 10))
	}
	return nil
}

// flowEvents count flows, all others messages.
var flowEvents = []control.Event{control.Announced, control.Learned, control.Confirmed, control.RefusedUnprotected, control.RefusedUnasked}

func readControl(s *scrape) error {
	counts, err := s.survey.ControlCounts()
	for i, n := range counts {
		switch event := control.Event(i); {
		case event == control.SentBytes:
			s.emit(controlBytes, float64(n))
		case slices.Contains(flowEvents, event):
			s.emit(controlFlows, float64(n), event.String())
		default:
			s.emit(controlEvents, float64(n), event.String())
		}
	}
	return err
}

func readPrograms(s *scrape) error {
	programs, err := s.survey.Programs()
	for _, p := range programs {
		s.emit(programTime, p.Time.Seconds(), p.Hook)
		s.emit(programRuns, float64(p.Runs), p.Hook)
	}
	return err
}
