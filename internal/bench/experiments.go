package bench

import "smartcookie/internal/evaluation"

// Experiments are those of the papers, in the report's order.
func Experiments() []evaluation.Experiment {
	return []evaluation.Experiment{
		Filters(),
	}
}
