package e2e

import (
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// typeTime is how long each type of flood is watched.
func typeTime() time.Duration {
	if long() {
		return 10 * time.Second
	}
	return 1500 * time.Millisecond
}

// falsePositives is what the filter promises at most (ARCHITECTURE.md).
const falsePositives = 1e-4

// shapeless floods are lost by their form, whatever the filter says.
var shapeless = []lab.Kind{lab.Fragment, lab.IllegalFlags, lab.BadLength}

// guessing floods acknowledge numbers at random, each of which may be a cookie.
var guessing = []lab.Kind{lab.ACK, lab.FIN, lab.PSH}

// Every type of flood at the generator's maximum: clients notice nothing, and
// next to nothing of it comes to the server. With FLOOD_TABLE=FILE the figures
// are written there.
func TestEveryTypeOfFloodIsLostAtTheEdge(t *testing.T) {
	need(t, "nft")
	idle := runType(t, newLab(t, lab.Options{}), lab.Case{})
	t.Logf("idle: the server's processes take %.1f %% of a CPU", idle.Server.CPUPercent)
	table := floodHead + floodRow(idle, "none", 0, 0)
	for _, ipv6 := range []bool{false, true} {
		for _, kind := range lab.Kinds() {
			t.Run(fmt.Sprintf("%s %s", kind, family(ipv6)), func(t *testing.T) {
				l := newLab(t, lab.Options{}) // without a connection that another flood has guessed
				arrivals := countFloods(t, l)
				report := runType(t, l, lab.Case{Kind: kind, Flood: lab.MaxRate, IPv6: ipv6})
				stack := arrivals(t)
				server := strangers(report.Server.Verdicts)
				lost, err := l.LinkLost()
				if err != nil {
					t.Fatal(err)
				}
				judgeType(t, kind, report, server, stack, lost)
				table += floodRow(report, kind.String(), server, stack)
			})
		}
	}
	t.Log("\n" + table)
	if path := os.Getenv("FLOOD_TABLE"); path != "" {
		if err := os.WriteFile(path, []byte(table), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// countFloods counts what comes from a flood's sources to the server's stack.
func countFloods(t *testing.T, l *lab.Lab) func(*testing.T) uint64 {
	t.Helper()
	return countArrivals(t, l.Server.Namespace, "stack",
		fmt.Sprintf("ip saddr %s counter", lab.FloodSources4), fmt.Sprintf("ip6 saddr %s counter", lab.FloodSources6))
}

func runType(t *testing.T, l *lab.Lab, c lab.Case) lab.Report {
	t.Helper()
	c.Defence, c.Duration = "split", typeTime()
	report, err := l.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// judgeType: `server` packets of the flood have come to the server's agent, and
// `stack` have passed it; `lost` have not come to the edge.
func judgeType(t *testing.T, kind lab.Kind, r lab.Report, server, stack, lost uint64) {
	t.Helper()
	allServed(t, "split", r.Benign)
	if r.Flood.OfferedPPS < aFlood {
		t.Errorf("%.0f packets per second are no flood", r.Flood.OfferedPPS)
	}
	// The edge's verdicts count the whole flood, its begin too.
	var offered uint64
	for _, n := range r.Edge.Verdicts {
		offered += n
	}
	t.Logf("%d verdicts, %d lost on the link, %d offered", offered, lost, r.Flood.Offered)
	if offered+lost < r.Flood.Offered {
		t.Errorf("%d verdicts at the edge for %d packets, of which its link has lost %d", offered, r.Flood.Offered, lost)
	}
	most := atMost(float64(offered) * falsePositives)
	if kind == lab.SYN || slices.Contains(shapeless, kind) {
		most = 0
	}
	if server > most {
		t.Errorf("%d of %d packets came to the server, at most %d may: %v", server, offered, most, r.Server.Verdicts)
	}
	// What passes the agent is harmless without a connection, RSTs, or has guessed a cookie.
	var guessed uint64
	if slices.Contains(guessing, kind) {
		guessed = atMost(float64(offered) * lab.EdgeMACs * lab.OneMAC)
	}
	if rst := r.Server.Verdicts["pass_rst"]; stack > rst+guessed {
		t.Errorf("%d packets came to the server's stack: %d of them are RSTs, and at most %d can have guessed a cookie", stack, rst, guessed)
	}
}

// ours are verdicts of a server's agent about packets of clients.
var ours = []string{
	"setup", "setup_translated", "pass_connection", "pass_repeated", "pass_replayed", "pass_inside", "pass_translated",
	"pass_other", "requeue_early", "requeue_timewait", "requeue_stale", "drop_own_synack",
}

// strangers counts all others.
func strangers(verdicts map[string]uint64) (total uint64) {
	for name, n := range verdicts {
		if !slices.Contains(ours, name) {
			total += n
		}
	}
	return total
}

// atMost is what a count with this mean exceeds once in a million times, if it is
// Poisson distributed.
func atMost(mean float64) uint64 {
	const confidence = 1 - 1e-6
	if mean > 100 { // the normal distribution comes near enough, from above
		return uint64(mean + 6*math.Sqrt(mean))
	}
	term := math.Exp(-mean)
	sum, n := term, uint64(0)
	for sum < confidence {
		n++
		term *= mean / float64(n)
		sum += term
	}
	return n
}

func TestBoundsAreThoseOfPoisson(t *testing.T) {
	// Of the tables: a mean of 1 exceeds 9 with probability 1.1e-7, 8 with 1.1e-6.
	for mean, want := range map[float64]uint64{0: 0, 1e-9: 0, 1e-3: 1, 1: 9, 10: 28} {
		if got := atMost(mean); got != want {
			t.Errorf("a mean of %v: %d, want %d", mean, got, want)
		}
	}
}

const floodHead = `| flood | family | packets/s | served | p50 | p99 | to the server | past its agent | server's CPU |
|---|---|---|---|---|---|---|---|---|
`

func floodRow(r lab.Report, kind string, server, stack uint64) string {
	return fmt.Sprintf("| %s | %s | %.1f M | %d of %d | %.1f ms | %.1f ms | %d | %d | %.1f %% |\n", kind, family(r.IPv6), r.Flood.OfferedPPS/1e6,
		r.Benign.OK, r.Benign.Requests, r.Benign.P50, r.Benign.P99, server, stack, r.Server.CPUPercent)
}

var counterPattern = regexp.MustCompile(`counter packets (\d+)`)

// countArrivals counts packets that come to a namespace's stack and match a rule
// of nft, behind its device's programs and before everything else. What it
// returns reads the sum.
func countArrivals(t *testing.T, at *lab.Namespace, table string, rules ...string) func(*testing.T) uint64 {
	t.Helper()
	text := fmt.Sprintf("table inet %s {\n\tchain arrivals {\n\t\ttype filter hook prerouting priority -450\n\t\t%s\n\t}\n}\n",
		table, strings.Join(rules, "\n\t\t"))
	nft := at.Command(t.Context(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(text)
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	return func(t *testing.T) uint64 { return sumOfCounters(t, at, table, len(rules)) }
}

// sumOfCounters adds up all the counters of a table of nft.
func sumOfCounters(t *testing.T, at *lab.Namespace, table string, counters int) (total uint64) {
	t.Helper()
	out := runIn(t, at, "nft", "list", "table", "inet", table)
	found := counterPattern.FindAllStringSubmatch(out, -1)
	if len(found) != counters {
		t.Fatalf("nft lists %d counters, want %d: %s", len(found), counters, out)
	}
	for _, match := range found {
		n, err := strconv.ParseUint(match[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	return total
}

// Without a defence the same count sees the floods: otherwise it would show
// nothing.
func TestFloodsComeToAServerWithoutDefence(t *testing.T) {
	need(t, "nft")
	l := newLab(t, lab.Options{})
	arrivals := countFloods(t, l)
	for _, ipv6 := range []bool{false, true} {
		for _, kind := range lab.Kinds() {
			before := arrivals(t)
			flood, err := l.StartFlood(lab.FloodOptions{Kind: kind, Rate: 1000, IPv6: ipv6})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, 10*time.Second, fmt.Sprintf("%s over %s comes to the server", kind, family(ipv6)), func() bool {
				return arrivals(t) >= before+100
			})
			if err := flood.Stop(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// sorted is a map of counts for people to read.
func sorted(counts map[string]uint64) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(all, ", ")
}
