package edge

import (
	"log/slog"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

// ModeReport logs what has changed in the services' modes, once, with the
// figures that caused it. The kernel decides; this only tells.
type ModeReport struct {
	log  *slog.Logger
	last map[string]dataplane.ServiceState
}

// NewModeReport returns a report to log.
func NewModeReport(log *slog.Logger) *ModeReport { return &ModeReport{log: log} }

// Tick looks for changes. At first it says of a service whether it is not always
// defended.
func (r *ModeReport) Tick(agent interface {
	States() ([]dataplane.ServiceState, error)
}) {
	now, err := agent.States()
	if err != nil {
		r.log.Warn(err.Error())
		return
	}
	last := make(map[string]dataplane.ServiceState, len(now)) // services come and go
	for i := range now {
		r.tell(&now[i])
		last[now[i].Name] = now[i]
	}
	r.last = last
}

func (r *ModeReport) tell(s *dataplane.ServiceState) {
	was, known := r.last[s.Name]
	if !known {
		if s.Mode != policy.Always || s.Mode != s.Configured {
			r.log.Info("mode", "service", s.Name, "mode", s.Mode.String(), "configured", s.Configured.String(), "state", s.State())
		}
		return
	}
	if s.Mode != was.Mode {
		r.log.Info("mode has changed", "service", s.Name, "mode", s.Mode.String(), "was", was.Mode.String())
	}
	if s.TimesOn != was.TimesOn {
		r.log.Warn("flood: the service is defended from now on", "service", s.Name, "cause", s.On.Cause,
			"syns", s.On.SYNs, "unfinished", s.On.Unfinished, "half_open", s.On.HalfOpen, "times", s.TimesOn)
	}
	if s.TimesOff != was.TimesOff {
		r.log.Info("calm: the service is passive again", "service", s.Name, "after", (s.OffAt - s.OnAt).String(), "calm", s.Calm.String(),
			"syns", s.Off.SYNs, "unfinished", s.Off.Unfinished, "half_open", s.Off.HalfOpen, "times", s.TimesOff)
	}
}
