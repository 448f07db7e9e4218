package server

import (
	"smartcookie/internal/dataplane"
	"smartcookie/internal/metrics"
	"smartcookie/internal/upkeep"
)

// metricsOf is what this daemon has to show.
func metricsOf(o Options, keeper *upkeep.Keeper, agent *dataplane.Server, peers *speaker) metrics.Sources {
	s := metrics.Sources{
		Pins: o.Pins, Agents: []string{dataplane.ServerAgent}, Epochs: keeper.Epochs(), Clocks: o.Clocks,
		Tables: map[string]func() []dataplane.Occupancy{dataplane.ServerAgent: agent.Occupancies},
	}
	if peers != nil {
		s.Skews = peers.endpoint.Skews
	}
	return s
}
