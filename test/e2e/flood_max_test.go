package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// floodTime is how long each flood at the generator's maximum is watched.
func floodTime() time.Duration {
	if long() {
		return 10 * time.Second
	}
	return 4 * time.Second
}

// aFlood is the least that a flood is called here, in packets per second: ten
// times what fills the queue of a server without cookies in a second.
const aFlood = 10_000

func TestEveryRequestIsServedDuringAFlood(t *testing.T) {
	for _, c := range []lab.Case{
		{Defence: "split", Flood: lab.MaxRate}, {Defence: "split", Flood: lab.MaxRate, IPv6: true, Profile: lab.Linux},
		// Before the host, the flood passes a router that is a plain kernel.
		{Defence: "host", Flood: 100_000},
	} {
		t.Run(fmt.Sprintf("%s, IPv6 %t", c.Defence, c.IPv6), func(t *testing.T) {
			c.Duration = floodTime()
			report, err := newLab(t, lab.Options{}).Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			allServed(t, c.Defence, report.Benign)
			if report.Flood.OfferedPPS < aFlood || report.Flood.AnsweredPPS < aFlood {
				t.Errorf("%.0f packets per second offered, %.0f answered", report.Flood.OfferedPPS, report.Flood.AnsweredPPS)
			}
			if report.Server.Setups < report.Benign.OK {
				t.Errorf("%d requests were served over %d connections made from cookies", report.Benign.OK, report.Server.Setups)
			}
			t.Logf("%.0f SYNs per second offered, %.0f answered", report.Flood.OfferedPPS, report.Flood.AnsweredPPS)
		})
	}
}

func TestHardlyAnyRequestIsServedDuringAFloodWithoutDefence(t *testing.T) {
	report, err := newLab(t, lab.Options{}).Run(t.Context(), lab.Case{
		Defence: "none", Flood: lab.MaxRate, Duration: floodTime(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if b := report.Benign; b.Requests == 0 || b.OK*20 > b.Requests {
		t.Errorf("%d of %d requests served", b.OK, b.Requests)
	}
	t.Logf("%d of %d requests served at %.0f SYNs per second", report.Benign.OK, report.Benign.Requests, report.Flood.OfferedPPS)
}

// labJSON runs the lab command and returns the object that ends its output.
func labJSON(t *testing.T, args ...string) map[string]any {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, append([]string{"lab", "--json"}, args...)...)
	var out, complaint bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); err != nil {
		t.Fatalf("smartcookie lab %v: %v: %s", args, err, complaint.Bytes())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	object := map[string]any{}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &object); err != nil {
		t.Fatalf("the last line is no JSON object: %v: %s", err, out.Bytes())
	}
	return object
}

// field follows a dotted path through objects.
func field[T any](t *testing.T, object map[string]any, path string) T {
	t.Helper()
	var at any = object
	for name := range strings.SplitSeq(path, ".") {
		inner, ok := at.(map[string]any)
		if !ok {
			t.Fatalf("%s: %v has no fields", path, at)
		}
		if at, ok = inner[name]; !ok {
			t.Fatalf("there is no %s", path)
		}
	}
	value, ok := at.(T)
	if !ok {
		t.Fatalf("%s is %v, of another type", path, at)
	}
	return value
}

func TestLabCommandReportsASplitDefenceThatServesEverything(t *testing.T) {
	report := labJSON(t, "--defence", "split", "--flood", "max", "--duration", floodTime().String())
	if name := field[string](t, report, "defence"); name != "split" {
		t.Errorf("defence %q", name)
	}
	requests, ok := field[float64](t, report, "benign.requests"), field[float64](t, report, "benign.ok")
	if requests == 0 || ok != requests {
		t.Errorf("%.0f of %.0f requests served", ok, requests)
	}
	p50, p99 := field[float64](t, report, "benign.p50_ms"), field[float64](t, report, "benign.p99_ms")
	if p50 <= 0 || p99 < p50 {
		t.Errorf("p50 %v ms, p99 %v ms", p50, p99)
	}
	if seconds := field[float64](t, report, "seconds"); seconds < floodTime().Seconds() {
		t.Errorf("%v seconds", seconds)
	}
	for _, name := range []string{"flood.offered_pps", "flood.answered_pps"} {
		if rate := field[float64](t, report, name); rate < aFlood {
			t.Errorf("%s is %.0f", name, rate)
		}
	}
	if setups := field[float64](t, report, "server.setups"); setups < ok {
		t.Errorf("%.0f setups for %.0f requests", setups, ok)
	}
	verdicts := field[map[string]any](t, report, "edge.verdicts")
	if verdicts["answer_syn"] == nil || verdicts["pass_cookie"] == nil {
		t.Errorf("edge's verdicts: %v", verdicts)
	}
	t.Logf("%v", report["benign"])
}

func TestLabCommandReportsAServerThatDiesWithoutDefence(t *testing.T) {
	report := labJSON(t, "--defence", "none", "--flood", "max", "--duration", floodTime().String())
	requests, ok := field[float64](t, report, "benign.requests"), field[float64](t, report, "benign.ok")
	if requests == 0 || ok*20 > requests {
		t.Errorf("%.0f of %.0f requests served", ok, requests)
	}
	if setups := field[float64](t, report, "server.setups"); setups != 0 {
		t.Errorf("%.0f connections made from cookies", setups)
	}
	if verdicts := field[map[string]any](t, report, "edge.verdicts"); len(verdicts) > 0 {
		t.Errorf("verdicts without an edge: %v", verdicts)
	}
}
