package lab

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Rate is packets per second.
type Rate uint64

// MaxRate is as fast as the generator can.
const MaxRate Rate = math.MaxUint64

// More than a packet a nanosecond is a typing error.
const rateLimit = 1_000_000_000

// String makes Rate a flag value.
func (r Rate) String() string {
	if r == MaxRate {
		return "max"
	}
	return strconv.FormatUint(uint64(r), 10)
}

// Set reads "max", or a number with k or M behind it.
func (r *Rate) Set(text string) error {
	if text == "max" {
		*r = MaxRate
		return nil
	}
	digits, factor := text, uint64(1)
	if rest, ok := strings.CutSuffix(text, "k"); ok {
		digits, factor = rest, 1_000
	} else if rest, ok := strings.CutSuffix(text, "M"); ok {
		digits, factor = rest, 1_000_000
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n*factor > rateLimit {
		return fmt.Errorf("want max, 0 or packets per second up to %d, also as 200k or 2M", rateLimit)
	}
	*r = Rate(n * factor)
	return nil
}

// Type names the value in a command's help.
func (r *Rate) Type() string { return "RATE" }

// interval returns nanoseconds << 10 between packets; 0 means no pause.
func (r Rate) interval() uint64 {
	if r == MaxRate {
		return 0
	}
	return 1_000_000_000 << 10 / uint64(r)
}

// quantum is how many packets the token bucket waits for: looking at the clock
// costs as much as a packet, so at high rates it is worth less often.
func (r Rate) quantum() uint32 {
	return uint32(min(16, max(1, uint64(r)/20_000)))
}
