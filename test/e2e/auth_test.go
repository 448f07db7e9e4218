package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// challenging are the strategies that challenge an address once.
func challenging() []strategy {
	return slices.DeleteFunc(slices.Clone(strategies), func(s strategy) bool { return !strings.HasPrefix(s.defence, "auth-") })
}

func TestEveryFirstContactIsServedWhileAllElseIsChallenged(t *testing.T) {
	for _, s := range challenging() {
		// Through a router: before a bridge, the lab's switch is what loses SYNs at this rate.
		for _, ipv6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, %s", s.defence, family(ipv6)), func(t *testing.T) {
				report, err := newLab(t, lab.Options{}).Run(t.Context(), lab.Case{
					Defence: s.defence, Flood: lab.MaxRate, IPv6: ipv6, Duration: floodTime(),
					Load: lab.LoadOptions{Timeout: exchangeLimit}, // a busy machine loses SYNs of clients, too
				})
				if err != nil {
					t.Fatal(err)
				}
				b := report.Benign
				allServed(t, s.defence, b)
				if b.First.Requests == 0 || b.Later.Requests == 0 {
					t.Errorf("%d first requests, %d later ones", b.First.Requests, b.Later.Requests)
				}
				resets := map[bool]uint64{true: b.First.Requests}[s.contact == reset]
				if b.First.Repeated != resets || b.Later.Repeated != 0 {
					t.Errorf("%d of %d first contacts were reset, %d later ones", b.First.Repeated, b.First.Requests, b.Later.Repeated)
				}
				if report.Flood.OfferedPPS < aFlood {
					t.Errorf("%.0f packets per second are no flood", report.Flood.OfferedPPS)
				}
				// Clients repeat a SYN at times; of the flood nothing comes through.
				edge := report.Edge.Verdicts
				if passed := edge["pass_whitelisted"]; passed < b.OK || passed > 2*b.Requests {
					t.Errorf("%d SYNs have reached the server, for %d requests", passed, b.Requests)
				}
				if met := edge["answer_reset"] + edge["drop_challenged"]; met < b.First.Requests || met > 2*b.First.Requests {
					t.Errorf("%d challenges were met by %d clients", met, b.First.Requests)
				}
			})
		}
	}
}

func TestChallengesThroughABridge(t *testing.T) {
	for _, s := range challenging() {
		t.Run(s.defence, func(t *testing.T) {
			trial := s.begin(t, lab.Options{Topology: lab.Bridge})
			t.Run("first contact", trial.firstContact)
			t.Run("data", trial.data)
			t.Run("reused port", trial.reusedPort)
			trial.wasFlooded(t)
		})
	}
}

// edgeThatChallenges starts an edge whose service has more to say.
func edgeThatChallenges(t *testing.T, l *lab.Lab, s strategy, more string) *lab.Process {
	t.Helper()
	text := l.EdgeConfig(keysOf(t, l)) + "    strategy: " + s.defence + "\n" + more
	return startAgent(t, l, l.Edge.Namespace, "edge", "-c", fileOf(t, l, "edge.yaml", text))
}

func TestWhitelistOutlivesItsDaemon(t *testing.T) {
	for _, s := range challenging() {
		t.Run(s.defence, func(t *testing.T) {
			l := newLab(t, lab.Options{})
			trial := &trialOf{strategy: s, lab: l, server: serveExchanges(t, l)}
			trial.stacks = twoStacks(t, l)
			first := edgeThatChallenges(t, l, s, "")
			address := webAddress(l, false)
			trial.meet(t, trial.stacks[0], address, contactsLimit)
			if err := first.Kill(); err != nil {
				t.Fatal(err)
			}
			trial.exchange(1000).mustRun(t, trial.stacks[0], 0, address)
			second := edgeThatChallenges(t, l, s, "")
			trial.exchange(1000).mustRun(t, trial.stacks[0], 0, address)
			if met := metChallenges(t, l); met != 1 {
				t.Errorf("%d challenges were met, want 1", met)
			}
			if err := second.Stop(); err != nil {
				t.Fatal(err)
			}
			// It is known to that service, whatever others there are, but to none of
			// another name.
			third := edgeThatChallenges(t, l, s, "  - name: other\n    prefixes: [192.0.2.1]\n    ports: [80]\n")
			trial.exchange(1000).mustRun(t, trial.stacks[0], 0, address)
			if met := metChallenges(t, l); met != 1 {
				t.Errorf("%d challenges were met, want 1", met)
			}
			if err := third.Stop(); err != nil {
				t.Fatal(err)
			}
			text := strings.Replace(l.EdgeConfig(keysOf(t, l)), "name: web", "name: new", 1) + "    strategy: " + s.defence + "\n"
			startAgent(t, l, l.Edge.Namespace, "edge", "-c", fileOf(t, l, "edge.yaml", text))
			trial.meet(t, trial.stacks[0], address, contactsLimit)
			if met := metChallenges(t, l); met != 2 {
				t.Errorf("%d challenges were met, want 2", met)
			}
		})
	}
}

// metChallenges counts what the lab's edge has counted.
func metChallenges(t *testing.T, l *lab.Lab) uint64 {
	t.Helper()
	verdicts, err := dataplane.Verdicts(l.PinDir("edge"))
	if err != nil {
		t.Fatal(err)
	}
	return verdicts["answer_reset"] + verdicts["drop_challenged"]
}

// The port's last connection is in the filter for a minute, the client's address
// in the whitelist for a second: it is challenged again and again, and is never
// left waiting.
func TestReusedPortIsChallengedWhenTheWhitelistHasForgotten(t *testing.T) {
	const often = 4
	for _, s := range challenging() {
		t.Run(s.defence, func(t *testing.T) {
			l := newLab(t, lab.Options{})
			if err := l.Client.Sysctl("net.ipv4.tcp_tw_reuse", "1"); err != nil {
				t.Fatal(err)
			}
			trial := &trialOf{strategy: s, lab: l, server: serveExchanges(t, l)}
			from := twoStacks(t, l)[0]
			edgeThatChallenges(t, l, s, "    auth_time: 1s\n")
			trial.meet(t, from, webAddress(l, false), contactsLimit)
			ctx, cancel := context.WithTimeout(t.Context(), exchangeLimit)
			defer cancel()
			for connections := 1; metChallenges(t, l) < often; connections++ {
				e := trial.exchange(10_000)
				e.serverCloses = true
				begin := time.Now()
				if err := e.run(ctx, from, reusedPort, webAddress(l, false)); err != nil {
					t.Fatalf("connection %d from port %d: %v", connections, reusedPort, err)
				}
				if took := time.Since(begin); took > exchangeLimit/2 {
					t.Errorf("connection %d took %s", connections, took)
				}
			}
		})
	}
}
