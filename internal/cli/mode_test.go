package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

func TestModeRefusesWhatMakesNoSense(t *testing.T) {
	c := newConsole()
	for _, u := range []struct {
		part string
		args []string
	}{
		{"mode: give off, monitor, auto or always", []string{"mode", "web"}},
		{`unexpected argument "now"`, []string{"mode", "web", "off", "now"}},
		{`unknown mode "never": off, monitor, auto or always`, []string{"mode", "web", "never"}},
		{`unknown mode "starting"`, []string{"mode", "web", "starting"}},
		{`unknown output "yaml"`, []string{"mode", "-o", "yaml"}},
		{`--mode: "never" is none of off, monitor, auto, always`, []string{"host", "lo", "--ports", "80", "--mode", "never"}},
		{`--detect: "rate" is none of syns, unfinished, half_open, calm`, []string{"host", "lo", "--ports", "80", "--detect", "rate=1"}},
		{`--metrics: "9465" is no address with a port`, []string{"host", "lo", "--ports", "80", "--metrics", "9465"}},
		{`--mode: "auto2" is none of`, []string{"host", "lo", "--ports", "80", "--cookies", "kernel", "--mode", "auto2"}},
	} {
		c.wantError(t, exitUsage, u.part, u.args...)
	}
}

func TestModesAreListedWithTheirFigures(t *testing.T) {
	c := newConsole()
	figures := dataplane.Figures{SYNs: 1234, Unfinished: 56, HalfOpen: 789}
	states := []dataplane.ServiceState{
		{Agent: "edge", Name: "web", Mode: policy.Adaptive, Configured: policy.Adaptive, Phase: dataplane.Active, Figures: figures, Calm: time.Minute, TimesOn: 3, TimesOff: 2},
		{Agent: "edge", Name: "ssh", Mode: policy.Monitor, Configured: policy.Always, Figures: figures, Calm: time.Minute},
		{Agent: "edge", Name: "mail", Mode: policy.Always, Configured: policy.Always, Figures: figures},
		{Agent: "server", Name: "web", Mode: policy.Off, Configured: policy.Off},
	}
	if err := writeStates(c.env, states); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"agent service mode state SYN/s unfinished half-open T2 floods",
		"edge web auto active 1234 56 % 789 1m0s 3",
		"edge ssh monitor 1234 56 % 789 1m0s 0 (configured: always)",
		"edge mail always",
		"server web off",
	}
	var lines []string
	for line := range strings.Lines(c.stdout.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	if !slices.Equal(lines, want) {
		t.Errorf("the list is\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	c.stdout.Reset()
	if err := writeModes(c.env, states); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"edge web", "auto, active: 3 floods, 2 ended", "edge ssh", "its verdicts are foretold", "server web", "off"} {
		if !strings.Contains(c.stdout.String(), part) {
			t.Errorf("status lacks %q: %s", part, c.stdout.String())
		}
	}
	if strings.Contains(c.stdout.String(), "mail") {
		t.Errorf("status tells what is usual: %s", c.stdout.String())
	}
}

func TestChangeOfModeIsTextOrJSON(t *testing.T) {
	c := newConsole()
	before := []dataplane.ServiceState{{Agent: "edge", Name: "web", Mode: policy.Always}}
	for output, want := range map[string]string{
		"text": "edge: web is monitor, was always\n",
		"json": `[ { "agent": "edge", "service": "web", "mode": "monitor", "was": "always" } ]`,
	} {
		c.stdout.Reset()
		if err := writeChanges(c.env, before, policy.Monitor, output); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(c.stdout.String()), " "); got != strings.TrimSpace(want) {
			t.Errorf("%s: %s", output, got)
		}
	}
}
