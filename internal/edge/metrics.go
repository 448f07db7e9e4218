package edge

import (
	"smartcookie/internal/dataplane"
	"smartcookie/internal/metrics"
	"smartcookie/internal/upkeep"
)

// metricsOf is what this daemon has to show.
func metricsOf(o Options, keeper *upkeep.Keeper, agent *dataplane.Edge, proxy *translator, peers *speaker) metrics.Sources {
	s := metrics.Sources{
		Pins: o.Pins, Agents: []string{dataplane.EdgeAgent, dataplane.ProxyAgent},
		Epochs: keeper.Epochs(), Clocks: o.Clocks,
		Tables: map[string]func() []dataplane.Occupancy{dataplane.EdgeAgent: agent.Occupancies},
	}
	if proxy != nil {
		s.Tables[dataplane.ProxyAgent] = proxy.proxy.Occupancies
	}
	if peers != nil {
		s.Skews = peers.endpoint.Skews
	}
	return s
}
