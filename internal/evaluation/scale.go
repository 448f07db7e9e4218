package evaluation

import (
	"math"

	"gonum.org/v1/plot"
)

// scale says where an axis has its values, and its ticks.
type scale struct {
	Axis
	// Where nothing stands on a logarithmic axis, which has no place for it, and
	// whether there is any.
	zero float64
	has  bool
}

// scales are the panel's own: nothing stands a decade, or a part of one, before
// the smallest figure.
func (p Panel) scales() (x, y scale) {
	x, y = scale{Axis: p.X, zero: math.Inf(1)}, scale{Axis: p.Y, zero: math.Inf(1)}
	for _, s := range p.Series {
		for _, point := range s.Points {
			x.see(point.X)
			y.see(point.Min)
		}
	}
	return x, y
}

func (s *scale) see(value float64) {
	if value <= 0 {
		s.has = true
	} else if s.Log {
		s.zero = min(s.zero, math.Ceil(math.Log10(value))-1)
	}
}

func (s scale) at(value float64) float64 {
	switch {
	case s.Log && value > 0:
		return math.Log10(value)
	case s.Log && math.IsInf(s.zero, 1): // nothing but nothing
		return 0
	case s.Log:
		return s.zero
	case s.Tail:
		return -math.Log10(1 - value/100)
	}
	return value
}

// Ticks are about five, with short numbers; of logarithms the powers of ten, of
// percentiles the nines.
func (s scale) Ticks(low, high float64) []plot.Tick {
	switch {
	case s.Log:
		return s.powers(low, high)
	case s.Tail:
		return s.nines(high)
	}
	return even(low, high, func(value float64) float64 { return value })
}

// even are round values, each as far from the next, that stand where at says.
func even(low, high float64, at func(float64) float64) (all []plot.Tick) {
	step := round((high - low) / 6)
	for n := math.Ceil(low/step - 1e-9); n*step <= high*(1+1e-9); n++ {
		all = append(all, plot.Tick{Value: at(n * step), Label: Short(n * step)})
	}
	return all
}

// round is the next of 1, 2, 5, 10, 20 and so on.
func round(x float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= x*(1-1e-9) {
			return digit * power
		}
	}
	return 10 * power
}

// powers have names as many as are read at a glance; within two decades there are
// names between them, within less than one those of an axis without logarithms.
func (s scale) powers(low, high float64) (all []plot.Tick) {
	if high > low && high-low < 0.9 && !(s.has && low <= s.zero) {
		return even(math.Pow(10, low), math.Pow(10, high), math.Log10)
	}
	first, last := math.Floor(low), math.Ceil(high)
	every := 1.0
	if n := last - first + 1; n > 8 {
		every = math.Ceil(n / 6)
	}
	few := high > low && math.Floor(high)-math.Ceil(low) < 1
	for power := first; power <= last; power++ {
		nothing := s.has && power == s.zero
		tick := plot.Tick{Value: power}
		switch {
		case nothing:
			tick.Label = "0"
		case math.Mod(power-first, every) == 0:
			tick.Label = Short(math.Pow(10, power))
		}
		all = append(all, tick)
		for step := 2.0; step < 10 && every == 1 && !nothing; step++ {
			tick := plot.Tick{Value: power + math.Log10(step)}
			if few && (step == 2 || step == 5) {
				tick.Label = Short(step * math.Pow(10, power))
			}
			all = append(all, tick)
		}
	}
	return all
}

func (s scale) nines(high float64) []plot.Tick {
	all := []plot.Tick{{Value: s.at(50), Label: number(50)}}
	for nines := 1.0; nines <= math.Ceil(high); nines++ {
		share := 100 - math.Pow(10, 2-nines)
		all = append(all, plot.Tick{Value: nines, Label: number(math.Round(share*1e9) / 1e9)})
	}
	return all
}

// name is a value of the axis as tables head their columns: of percentiles no
// digit is too many.
func (s scale) name(value float64) string {
	if s.Tail {
		return number(value)
	}
	return Short(value)
}
