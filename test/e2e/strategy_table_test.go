package e2e

import (
	"slices"
	"testing"

	"smartcookie/internal/lab"
)

// contact is what a client's first connection meets at a defence that does not
// know its address yet.
type contact int

const (
	// served: the first connection is like any other.
	served contact = iota
	// reset: the first connection is reset, the next one is served.
	reset
	// delayed: the client has to repeat its first SYN.
	delayed
)

// keeping is what reaches the server of the options of a client's SYN.
type keeping int

const (
	// asked: all, since the client's own SYN does.
	asked keeping = iota
	// encoded: what contract/cookie.md has room for.
	encoded
	// stamped: all of a client with timestamps, next to nothing of another, as
	// with the kernel's own cookies.
	stamped
)

// strategy is what the tests expect of a defence.
type strategy struct {
	defence string // as the lab calls it
	contact contact
	keeping keeping
	open    bool // it is no defence: nothing works beside a flood
}

// strategies are all defences that the lab has or will have. One that is not
// here fails TestEveryDefenceIsExpected; one that the lab does not have is not
// run.
var strategies = []strategy{
	{defence: "none", keeping: asked, open: true},
	{defence: "kernel", keeping: stamped},
	{defence: "split", keeping: encoded},
	{defence: "host", keeping: encoded},
	{defence: "host-kernel", keeping: stamped},
	{defence: "proxy", keeping: encoded},
	{defence: "auth-cookie", keeping: asked, contact: reset},
	{defence: "auth-full", keeping: asked, contact: reset},
	{defence: "auth-rst", keeping: asked, contact: delayed},
}

// built are the strategies that the lab has.
func built() (all []strategy) {
	for _, s := range strategies {
		if slices.Contains(lab.Defences(), s.defence) {
			all = append(all, s)
		}
	}
	return all
}

func TestEveryDefenceIsExpected(t *testing.T) {
	for _, name := range lab.Defences() {
		if !slices.ContainsFunc(strategies, func(s strategy) bool { return s.defence == name }) {
			t.Errorf("the tests do not know what to expect of defence %s: add it to the table of strategies", name)
		}
	}
}
