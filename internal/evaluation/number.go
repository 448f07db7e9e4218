package evaluation

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Short is a figure with three digits, as people read it: 1.23 M, 0.0456, 7.1e-5,
// 5.4e21.
func Short(x float64) string {
	size := math.Abs(x)
	switch {
	case x == 0:
		return "0"
	case size < 1e-3, size >= 999.5e12:
		mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', 1, 64), "e")
		return strings.TrimSuffix(mantissa, ".0") + "e" + strings.NewReplacer("+", "", "-0", "-").Replace(exponent)
	case size < 999.5:
		return trimmed(x)
	}
	for _, unit := range []struct {
		size float64
		name string
	}{{1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e3, " k"}} {
		if size >= unit.size*0.9995 {
			return trimmed(x/unit.size) + unit.name
		}
	}
	return trimmed(x)
}

// trimmed has three digits, and no more zeros than it needs.
func trimmed(x float64) string {
	digits := 2 - int(math.Floor(math.Log10(math.Abs(x))))
	scale := math.Pow(10, float64(digits))
	return strconv.FormatFloat(math.Round(x*scale)/scale, 'f', -1, 64)
}

func sortedKeys(set map[float64]bool) []float64 { return slices.Sorted(maps.Keys(set)) }
