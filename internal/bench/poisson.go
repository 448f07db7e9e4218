package bench

import "math"

// confidence is how often an interval holds what it is about.
const confidence = 0.95

// poissonInterval is where the mean of a Poisson distribution is that has shown k
// events (Garwood 1936): as far down and up as leaves a fortieth each for more, or
// fewer, than there were.
func poissonInterval(k uint64) (low, high float64) {
	const tail = (1 - confidence) / 2
	most := 10 + 2*float64(k) + 10*math.Sqrt(float64(k))
	if k > 0 {
		low = bisect(most, func(mean float64) bool { return 1-poissonUpTo(k-1, mean) < tail })
	}
	return low, bisect(most, func(mean float64) bool { return poissonUpTo(k, mean) > tail })
}

// bisect finds where in 0..most a property ends that holds at 0.
func bisect(most float64, holds func(float64) bool) float64 {
	low, high := 0.0, most
	for range 60 {
		if middle := (low + high) / 2; holds(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// poissonUpTo is the probability of k events or fewer.
func poissonUpTo(k uint64, mean float64) (sum float64) {
	if mean == 0 {
		return 1
	}
	for i := range k + 1 {
		n := float64(i)
		logFactorial, _ := math.Lgamma(n + 1)
		sum += math.Exp(n*math.Log(mean) - mean - logFactorial)
	}
	return sum
}
