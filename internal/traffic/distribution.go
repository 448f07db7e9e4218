package traffic

import (
	_ "embed" // the distribution that experiments use by themselves
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

//go:embed default.yaml
var defaultText []byte

// Default is what experiments use if nobody gives them a file.
func Default() Source {
	d, err := readDistribution(defaultText)
	if err != nil {
		panic(err) // part of the program, and tested
	}
	return d
}

// description is a distribution as the file has it.
type description struct {
	Name  string                    `yaml:"name"`
	Rate  float64                   `yaml:"rate"`
	Sizes map[float64]float64       `yaml:"sizes"`
	Gaps  map[float64]time.Duration `yaml:"gaps"`
}

// distribution draws flows one by one.
type distribution struct {
	name  string
	rate  float64
	sizes quantiles // bytes
	gaps  quantiles // seconds; empty: flows begin independently of each other
}

// Limits of what a file may ask for.
const (
	sizeLimit = 1 << 40 // bytes of a flow
	gapLimit  = 1 << 20 // seconds
	rateLimit = 1e9
)

func readDistribution(text []byte) (Source, error) {
	var file description
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		return nil, errors.New(oneLine(err))
	}
	d := &distribution{name: file.Name, rate: file.Rate}
	var err error
	if d.sizes, err = quantilesOf(file.Sizes, sizeLimit); err != nil {
		return nil, fmt.Errorf("sizes: %w", err)
	}
	if d.name == "" {
		return nil, errors.New("name: missing; the report names the traffic by it")
	}
	if file.Gaps == nil {
		if !(d.rate > 0 && d.rate <= rateLimit) {
			return nil, fmt.Errorf("rate: %v flows per second; want more than 0, at most %.0f, or gaps in its place", d.rate, rateLimit)
		}
		return d, nil
	}
	if file.Rate != 0 {
		return nil, errors.New("rate, gaps: give one of both: gaps say how often flows begin")
	}
	seconds := make(map[float64]float64)
	for share, gap := range file.Gaps {
		seconds[share] = gap.Seconds()
	}
	if d.gaps, err = quantilesOf(seconds, gapLimit); err != nil {
		return nil, fmt.Errorf("gaps: %w", err)
	}
	if d.rate = 1 / d.gaps.mean(); !(d.rate <= rateLimit) {
		return nil, errors.New("gaps: all are next to nothing")
	}
	return d, nil
}

// oneLine is the first line of the parser's error, which shows the place below.
func oneLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func (d *distribution) Name() string       { return d.name }
func (d *distribution) Rate() float64      { return d.rate }
func (d *distribution) MeanBytes() float64 { return d.sizes.mean() }

func (d *distribution) Schedule(w Want) (Schedule, error) {
	rate, err := w.check(d.rate)
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(w.Seed, 0x7261666669632e)) // the second half only has to stay
	var schedule Schedule
	for at := 0.0; len(schedule) < flowsLimit; {
		if d.gaps != nil {
			at += d.gaps.at(random.Float64()) * d.rate / rate
		} else {
			at += random.ExpFloat64() / rate
		}
		if at >= w.Duration.Seconds() {
			break
		}
		bytes := int64(math.Round(d.sizes.at(random.Float64())))
		schedule = append(schedule, Flow{time.Duration(at * float64(time.Second)), bytes})
	}
	return schedule, nil
}

// quantile is what a share of all does not exceed.
type quantile struct{ share, value float64 }

// quantiles are in the order of the share, from 0 to 1. Between them values grow by
// a factor, as sizes and times do that lie orders of magnitude apart; from 0 they
// grow by a step.
type quantiles []quantile

func quantilesOf(points map[float64]float64, most float64) (quantiles, error) {
	var all quantiles
	for _, share := range slices.Sorted(maps.Keys(points)) {
		value := points[share]
		switch {
		case !(share >= 0 && share <= 1):
			return nil, fmt.Errorf("%v: a share is from 0 to 1", share)
		case !(value >= 0 && value <= most):
			return nil, fmt.Errorf("%v: %v; want at least 0, at most %v", share, value, most)
		case len(all) > 0 && value < all[len(all)-1].value:
			return nil, fmt.Errorf("%v: less than at %v", share, all[len(all)-1].share)
		}
		all = append(all, quantile{share, value})
	}
	if len(all) < 2 || all[0].share != 0 || all[len(all)-1].share != 1 {
		return nil, errors.New("want the least at 0, the most at 1, and what is known between")
	}
	return all, nil
}

// at is the value that a share of all does not exceed.
func (q quantiles) at(share float64) float64 {
	i, found := slices.BinarySearchFunc(q, share, func(p quantile, share float64) int {
		switch {
		case p.share < share:
			return -1
		case p.share > share:
			return 1
		}
		return 0
	})
	if found {
		return q[i].value
	}
	low, high := q[i-1], q[i]
	part := (share - low.share) / (high.share - low.share)
	if low.value == 0 {
		return part * high.value
	}
	return low.value * math.Pow(high.value/low.value, part)
}

// mean is exact for what at returns.
func (q quantiles) mean() (total float64) {
	for i := 1; i < len(q); i++ {
		low, high := q[i-1], q[i]
		middle := (low.value + high.value) / 2
		if low.value > 0 && high.value > low.value*(1+1e-9) {
			middle = (high.value - low.value) / math.Log(high.value/low.value)
		}
		total += (high.share - low.share) * middle
	}
	return total
}
