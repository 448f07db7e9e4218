package filter

import (
	"encoding/binary"
	"math"

	"smartcookie/internal/cookie"
)

// What a line of the kernel's filter has, see filter_layout in the contract.
const (
	// Generations are in each line.
	Generations = 2
	words       = 4 // of 64 bits, for each generation
	flowBits    = 2 * words
	half        = 32 // bits of which a flow has one
	// LineBytes is the size of a line.
	LineBytes = Generations * words * 8
)

// Line is a block of the filter in both generations.
type Line struct {
	Word [Generations][words]uint64
}

// Blocked does what filter.h does in the kernel.
type Blocked struct {
	Key      Key
	Position uint64 // of the sweep: its round << 32 | the next line
	Lines    []Line
}

// NewBlocked is an empty filter.
func NewBlocked(key Key, lines int) *Blocked { return &Blocked{Key: key, Lines: make([]Line, lines)} }

// bits are those that a flow has in the words of a generation.
func bits(hash uint64) (all [words]uint64) {
	for i := range all {
		low, high := hash>>(10*i)&31, hash>>(10*i+5)&31
		all[i] = 1<<low | 1<<(half+high)
	}
	return all
}

func (f *Blocked) line(hash uint64) (*Line, int) {
	index := scale(hash, uint64(len(f.Lines)))
	round, next := f.Position>>32, f.Position&math.MaxUint32
	if index < next {
		round++ // swept once more than the lines behind it
	}
	return &f.Lines[index], int(round & 1)
}

// After sets the sweep to where it is once it has passed so many lines.
func (f *Blocked) After(lines uint64) {
	n := uint64(len(f.Lines))
	f.Position = lines/n<<32 | lines%n
}

// Add puts a flow into the current generation.
func (f *Blocked) Add(flow cookie.Flow) {
	hash := mix(f.Key.sum(flow))
	line, current := f.line(hash)
	for i, b := range bits(hash) {
		line.Word[current][i] |= b
	}
}

// Has tells whether a flow seems to be in one of the generations.
func (f *Blocked) Has(flow cookie.Flow) bool {
	hash := mix(f.Key.sum(flow))
	line, _ := f.line(hash)
	b := bits(hash)
	return within(&line.Word[0], &b) || within(&line.Word[1], &b)
}

func within(all, bits *[words]uint64) bool {
	for i := range bits {
		if all[i]&bits[i] != bits[i] {
			return false
		}
	}
	return true
}

// Sweep does what the kernel's sweep does with so many lines.
func (f *Blocked) Sweep(lines int) {
	for range lines {
		round, index := f.Position>>32, f.Position&math.MaxUint32
		f.Lines[index].Word[(round+1)&1] = [words]uint64{}
		f.After(round*uint64(len(f.Lines)) + index + 1)
	}
}

// Clear empties both generations.
func (f *Blocked) Clear() { clear(f.Lines) }

// Bytes is the content of the kernel's map.
func (f *Blocked) Bytes() []byte {
	all := make([]byte, 0, LineBytes*len(f.Lines))
	for _, line := range f.Lines {
		for _, generation := range line.Word {
			for _, word := range generation {
				all = binary.NativeEndian.AppendUint64(all, word)
			}
		}
	}
	return all
}

// BlockedRate is the expected share of strangers that such a filter lets in with
// so many flows in each of its full generations, different ones.
//
// A line holds a Poisson number of flows; with j of them, a bit of a half is set
// with 1-(31/32)^j, and a stranger needs one in every half.
func BlockedRate(flows, lines float64, full int) float64 {
	mean, one := flows/lines, 0.0
	spread := 12*math.Sqrt(mean) + 12
	for j := math.Floor(max(mean-spread, 0)); j <= mean+spread; j++ {
		factorial, _ := math.Lgamma(j + 1)
		chance := math.Exp(j*math.Log(mean) - mean - factorial)
		one += chance * math.Pow(1-math.Pow(1-1.0/half, j), flowBits)
	}
	return 1 - math.Pow(1-one, float64(full))
}
