package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// atTheEdge are the defences that lose a flood at a machine of their own. On the
// others' servers a flood at full rate comes first by a router that is a plain
// kernel, and takes CPUs that the clients need.
func (s strategy) atTheEdge() bool {
	return !slices.Contains([]string{"none", "kernel", "host", "host-kernel"}, s.defence)
}

func strategyFloodTime() time.Duration {
	if long() {
		return 10 * time.Second
	}
	return 2 * time.Second
}

const strategyHead = `| defence | SYNs/s | answered | served | p50 | p99 | first contact p50 | p99 | later p50 | p99 |
|---|---|---|---|---|---|---|---|---|---|
`

// Every defence beside a flood of SYNs at the generator's maximum, as the lab
// command reports it. Those at an edge serve every request. With
// STRATEGY_TABLE=FILE the figures are written there.
func TestStrategiesAtFullRate(t *testing.T) {
	table := strategyHead
	for _, s := range strategies {
		t.Run(s.defence, func(t *testing.T) {
			report := labJSON(t, "--defence", s.defence, "--flood", lab.MaxRate.String(), "--duration", strategyFloodTime().String())
			table += strategyRow(t, s.defence, report)
			requests, ok := field[float64](t, report, "benign.requests"), field[float64](t, report, "benign.ok")
			if s.atTheEdge() && (requests == 0 || ok != requests) {
				t.Errorf("%.0f of %.0f requests served: %v", ok, requests, report["benign"])
			}
			if s.open && ok*20 > requests {
				t.Errorf("%.0f of %.0f requests served without a defence: there is no flood", ok, requests)
			}
			if rate := field[float64](t, report, "flood.offered_pps"); rate < aFlood {
				t.Errorf("%.0f SYNs per second are no flood", rate)
			}
		})
	}
	t.Log("\n" + table)
	if path := os.Getenv("STRATEGY_TABLE"); path != "" {
		if err := os.WriteFile(path, []byte(table), 0o644); err != nil {
			t.Error(err)
		}
	}
}

func strategyRow(t *testing.T, defence string, report map[string]any) string {
	t.Helper()
	millions := func(path string) string { return fmt.Sprintf("%.2f M", field[float64](t, report, path)/1e6) }
	times := func(path string) []string {
		if field[float64](t, report, path+".ok") == 0 {
			return []string{"-", "-"}
		}
		return []string{
			fmt.Sprintf("%.1f ms", field[float64](t, report, path+".p50_ms")), fmt.Sprintf("%.1f ms", field[float64](t, report, path+".p99_ms")),
		}
	}
	requests, ok := field[float64](t, report, "benign.requests"), field[float64](t, report, "benign.ok")
	cells := slices.Concat(
		[]string{defence, millions("flood.offered_pps"), millions("flood.answered_pps"), fmt.Sprintf("%.0f of %.0f", ok, requests)},
		times("benign"), times("benign.first"), times("benign.again"))
	return "| " + strings.Join(cells, " | ") + " |\n"
}
