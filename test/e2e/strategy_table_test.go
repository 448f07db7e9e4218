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

// strategies are all defences that the lab has. One that is not here, and one that
// is here alone, fails TestEveryDefenceIsExpected.
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

func TestEveryDefenceIsExpected(t *testing.T) {
	var expected []string
	for _, s := range strategies {
		expected = append(expected, s.defence)
	}
	slices.Sort(expected)
	if has := lab.Defences(); !slices.Equal(has, expected) {
		t.Errorf("the lab has the defences %q, the table of strategies %q", has, expected)
	}
}
