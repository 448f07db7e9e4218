package dataplane

import (
	"fmt"
	"testing"

	"smartcookie/internal/policy"
)

// verifierBudget leaves room for kernels whose verifier walks more: it gives up
// at a million.
const verifierBudget = 800_000

// A verifier's bounds (stack of a chain of calls, instructions) depend on what is
// configured: every strategy loads with every way of forwarding.
func TestEveryStrategyLoadsInEveryForwarding(t *testing.T) {
	for _, strategy := range everyStrategy {
		for _, forward := range []Forwarding{Bridge, Route, Local} {
			if forward == Local && strategy != policy.Split {
				continue // the host shape has no other
			}
			for _, mtu := range []int{1500, 9000} {
				t.Run(fmt.Sprintf("strategy %d, forwarding %d, MTU %d", strategy, forward, mtu), func(t *testing.T) {
					e := newEdge(t, inMode(policy.Adaptive, func(s *policy.Service) { s.Strategy = strategy }), func(c *EdgeConfig) {
						c.Forward = forward
						c.Outside = []Interface{{Name: "lo", Index: 1, MTU: mtu}}
						c.Inside = c.Outside
					})
					info, err := e.EdgeOutside.Info()
					if err != nil {
						t.Fatal(err)
					}
					if n, ok := info.VerifiedInstructions(); ok && n > verifierBudget {
						t.Errorf("the verifier walked %d instructions", n)
					} else {
						t.Logf("%d instructions walked", n)
					}
				})
			}
		}
	}
}
