package host

import (
	"smartcookie/internal/dataplane"
	"smartcookie/internal/metrics"
	"smartcookie/internal/upkeep"
)

// metricsOf is what a host with its own cookies has to show. The kernel makes its
// keys, and there are no peers.
func metricsOf(pins string, a *agents) metrics.Sources {
	return metrics.Sources{
		Pins: pins, Agents: []string{dataplane.EdgeAgent, dataplane.ServerAgent}, Clocks: upkeep.SystemClocks,
		Tables: map[string]func() []dataplane.Occupancy{
			dataplane.EdgeAgent: a.edge.Occupancies, dataplane.ServerAgent: a.server.Occupancies,
		},
	}
}
