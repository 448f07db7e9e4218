package server

import (
	"log/slog"
	"slices"

	"smartcookie/internal/policy"
)

// Watch reports obstacles when the agent starts and whenever they change, and
// settles how connections are made.
type Watch struct {
	host     *Host
	services []policy.Service
	log      *slog.Logger
	known    []Obstacle
	settled  []policy.Service
	ticks    int
}

// watchTicks is how many ticks (seconds) pass between two looks: walking all
// sockets once a second would cost more than it tells.
const watchTicks = 10

// NewWatch watches this host.
func NewWatch(services []policy.Service, log *slog.Logger) *Watch {
	return &Watch{host: ThisHost(), services: services, log: log}
}

// look is what of this host stands in the way of its own services.
func (w *Watch) look() []Obstacle {
	own := Own(w.services)
	if len(own) == 0 {
		return nil
	}
	return w.host.Obstacles(own)
}

// Start reports what is there, and refuses what makes every setup fail.
func (w *Watch) Start() error {
	now := w.look()
	w.settle(now)
	w.known = InTheWay(w.services, now)
	for _, o := range w.known {
		if o.Fatal {
			return &ObstacleError{o}
		}
		w.log.Warn(o.Problem, "mend", o.Mend)
	}
	return nil
}

// Services are those that are watched, with what is settled of their setup.
func (w *Watch) Services() []policy.Service { return w.settled }

// Tick looks again every few times and reports what is new and what is gone.
// It says whether Services has changed.
func (w *Watch) Tick() bool {
	if w.ticks++; w.ticks%watchTicks != 0 {
		return false
	}
	all := w.look()
	before := w.settled
	w.settle(all)
	now := InTheWay(w.services, all)
	for _, o := range now {
		if !slices.Contains(w.known, o) {
			w.log.Warn(o.Problem, "mend", o.Mend)
		}
	}
	for _, o := range w.known {
		if !slices.Contains(now, o) {
			w.log.Info("mended: " + o.Problem)
		}
	}
	w.known = now
	return !slices.EqualFunc(before, w.settled, func(a, b policy.Service) bool { return a.Setup == b.Setup })
}

// settle chooses for the services that leave it open: translation where the
// host does not let native connections live. What the kernel refuses for single
// listeners, MPTCP's, the programs see for themselves.
func (w *Watch) settle(found []Obstacle) {
	settled := slices.Clone(w.services)
	at := slices.IndexFunc(found, func(o Obstacle) bool { return o.Native && !o.Listener })
	for i := range settled {
		s := &settled[i]
		if s.Setup == policy.Auto && at >= 0 {
			s.Setup = policy.Translate
		}
		was := policy.Auto
		if w.settled != nil {
			was = w.settled[i].Setup
		}
		if s.Setup == was || w.services[i].Setup != policy.Auto {
			continue
		}
		if s.Setup == policy.Translate {
			w.log.Info("connections are translated", "service", s.Name, "because", found[at].Problem)
		} else {
			w.log.Info("connections are native again", "service", s.Name)
		}
	}
	w.settled = settled
}

// Agent is the data plane, as far as it needs a daemon.
type Agent interface {
	SetServices([]policy.Service) error
	SweepFlows() (seen, removed int, err error)
}

// sweepTicks is how often ended translations are removed. Reading a million
// takes a good part of a second.
const sweepTicks = 5

// Keep is Tick with what follows from it in the data plane.
func (w *Watch) Keep(agent Agent) {
	if w.Tick() {
		if err := agent.SetServices(w.settled); err != nil {
			w.log.Error("services are not changed", "error", err)
		}
	}
	if w.ticks%sweepTicks != 0 {
		return
	}
	if _, _, err := agent.SweepFlows(); err != nil {
		w.log.Error("ended translations are not removed", "error", err)
	}
}
