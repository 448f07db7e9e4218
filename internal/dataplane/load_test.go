package dataplane

import (
	"fmt"
	"testing"

	"smartcookie/internal/policy"
)

// verifierBudget leaves room for kernels whose verifier walks more: it gives up
// at a million.
const verifierBudget = 700_000

// A verifier's bounds (stack of a chain of calls, instructions) depend on what is
// configured: every strategy, and all together, load with every way of forwarding
// and all that can be set besides.
func TestEveryStrategyLoadsInEveryForwarding(t *testing.T) {
	for _, forward := range []Forwarding{Bridge, Route, Local} {
		for _, mtu := range []int{1500, 9000} {
			load := func(strategies string, change func(*policy.Service)) {
				t.Run(fmt.Sprintf("%s, forwarding %d, MTU %d", strategies, forward, mtu), func(t *testing.T) {
					walkWithinBudget(t, newEdge(t, inMode(policy.Adaptive, change), func(c *EdgeConfig) {
						c.Forward = forward
						c.Outside = []Interface{{Name: "lo", Index: 1, MTU: mtu}}
						c.Inside = c.Outside
						c.Floods.DropOther, c.Floods.Answers, c.Floods.Network4, c.Floods.Network6 = true, 1000, 24, 48
						for i := range c.Services {
							c.Services[i].MinTTL, c.Services[i].PacketsPerFlow = 5, 5
						}
					}))
				})
			}
			load("split and those that challenge", func(*policy.Service) {})
			for _, strategy := range everyStrategy {
				if forward == Local && strategy != policy.Split {
					continue // the host shape has no other
				}
				load(fmt.Sprintf("strategy %d", strategy), func(s *policy.Service) { s.Strategy = strategy })
			}
			if forward != Local {
				load("all strategies", func(s *policy.Service) {
					if s.Name == services[web-1].Name {
						s.Strategy = policy.Proxy
					}
				})
			}
		}
	}
}

func walkWithinBudget(t *testing.T, e edgeAgent) {
	t.Helper()
	info, err := e.EdgeOutside.Info()
	if err != nil {
		t.Fatal(err)
	}
	n, told := info.VerifiedInstructions()
	if !told { // every kernel does from 5.16 on, and the edge needs a later one
		t.Fatal("the kernel does not say how many instructions its verifier walked")
	}
	t.Logf("%d instructions walked", n)
	if n > verifierBudget {
		t.Errorf("that is more than %d", verifierBudget)
	}
}
