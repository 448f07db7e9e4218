package edge

import (
	"smartcookie/internal/dataplane"
	"smartcookie/internal/metrics"
)

// shown is what this daemon has to show now.
func (d *daemon) shown() metrics.Sources {
	s := metrics.Sources{
		Pins: d.options.Pins, Agents: []string{dataplane.EdgeAgent, dataplane.ProxyAgent},
		Epochs: d.keeper.Epochs(), Clocks: d.options.Clocks,
		Tables: map[string]func() []dataplane.Occupancy{dataplane.EdgeAgent: d.agent.Occupancies},
	}
	if d.proxy != nil {
		s.Tables[dataplane.ProxyAgent] = d.proxy.proxy.Occupancies
	}
	if d.peers != nil {
		s.Skews = d.peers.endpoint.Skews
	}
	return s
}
