package bench

import (
	"smartcookie/internal/evaluation"
	"smartcookie/internal/traffic"
)

// Experiments are those of the papers, in the report's order. Those that need
// benign traffic at scale take it from the source.
func Experiments(benign traffic.Source) []evaluation.Experiment {
	return []evaluation.Experiment{
		Rate(),
		Latency(),
		ServerCPU(benign),
		Filters(),
		Requests(),
		Linux(),
		Forgery(),
	}
}
