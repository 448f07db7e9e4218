package cli

import (
	"encoding/json"
	"os"
	"testing"
)

func TestWrongCheckIsOneLineOfUsage(t *testing.T) {
	c := newConsole()
	for _, u := range []struct {
		part string
		args []string
	}{
		{"check edge: give -c FILE", []string{"edge"}},
		{"check server: give -c FILE", []string{"server"}},
		{"nowhere.yaml: no such file", []string{"server", "-c", "nowhere.yaml"}},
		{`unknown output "xml": text or json`, []string{"server", "-c", "nowhere.yaml", "-o", "xml"}},
		{"check host: give IFACE", []string{"host"}},
		{"check host: give --ports", []string{"host", "lo"}},
		{`no interface "nowhere0" on this host`, []string{"host", "nowhere0", "--ports", "22"}},
		{"--setup: with --cookies kernel", []string{"host", "lo", "--ports", "22", "--cookies", "kernel", "--setup", "native"}},
		{"unknown flag: --confirm", []string{"host", "lo", "--ports", "22", "--confirm", "60s"}},
	} {
		c.wantError(t, exitUsage, u.part, append([]string{"check"}, u.args...)...)
	}
}

// What is found depends on the machine, but not that it is an object, whoever asks.
func TestCheckOfAnyMachineIsAReport(t *testing.T) {
	for _, cookies := range []string{"own", "kernel"} {
		c := newConsole()
		code := c.run("check", "host", "lo", "--ports", "22", "--cookies", cookies, "--pin", t.TempDir(), "-o", "json")
		if code == exitError && c.stdout.Len() == 0 {
			if os.Getenv("CI") == "true" {
				t.Fatal("missing: an address that is no loopback's")
			}
			t.Skip("missing: an address that is no loopback's")
		}
		var report struct {
			Shape, Worst string
			Findings     []struct{ Name, Severity, What, Why, Mend string }
		}
		if err := json.Unmarshal(c.stdout.Bytes(), &report); err != nil {
			t.Fatalf("%v: %s%s", err, &c.stdout, &c.stderr)
		}
		want := map[string]int{"ok": 0, "notice": 0, "unseen": 3, "warning": 4, "error": 5}[report.Worst]
		if len(report.Findings) < 10 || code != want || (code != 0) != (c.stderr.Len() > 0) {
			t.Errorf("exit code %d for %q, %d findings: %s", code, report.Worst, len(report.Findings), &c.stderr)
		}
	}
}
