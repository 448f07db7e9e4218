package server

import (
	"smartcookie/internal/dataplane"
	"smartcookie/internal/metrics"
)

// shown is what this daemon has to show now.
func (d *daemon) shown() metrics.Sources {
	s := metrics.Sources{
		Pins: d.options.Pins, Agents: []string{dataplane.ServerAgent}, Epochs: d.keeper.Epochs(), Clocks: d.options.Clocks,
		Tables: map[string]func() []dataplane.Occupancy{dataplane.ServerAgent: d.agent.Occupancies},
	}
	if d.peers != nil {
		s.Skews = d.peers.endpoint.Skews
	}
	return s
}
