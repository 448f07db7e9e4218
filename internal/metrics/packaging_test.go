package metrics

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

const packaging = "../../packaging"

// missing skips a test for want of a program; where tests must run, it fails.
func missing(t *testing.T, program string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing", program)
	}
	t.Skipf("%s is missing", program)
}

var nameIn = regexp.MustCompile(`fqName: "([^"]+)"`)

// names lists what this build can show.
func names(t *testing.T) (all []string) {
	t.Helper()
	to := make(chan *prometheus.Desc)
	go func() {
		(&collector{}).Describe(to)
		close(to)
	}()
	for desc := range to {
		all = append(all, nameIn.FindStringSubmatch(desc.String())[1])
	}
	slices.Sort(all)
	return all
}

// helpOf returns what is said of a metric.
func helpOf(f *family) string {
	return regexp.MustCompile(`help: "([^"]*)"`).FindStringSubmatch(f.desc.String())[1]
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var ours = regexp.MustCompile(`smartcookie_[a-z0-9_]+`)

func TestRulesAndDashboardNameMetricsThatThereAre(t *testing.T) {
	known := names(t)
	files := 0
	err := filepath.WalkDir(packaging, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".yaml", ".json"}, filepath.Ext(path)) ||
			!strings.Contains(path, "prometheus") && !strings.Contains(path, "grafana") {
			return err
		}
		files++
		found := ours.FindAllString(readText(t, path), -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", path)
		}
		for _, name := range found {
			if !slices.Contains(known, name) {
				t.Errorf("%s: no metric %s", path, name)
			}
		}
		return nil
	})
	if err != nil || files < 3 {
		t.Errorf("%d files: %v", files, err)
	}
}

func TestManualHasEveryMetric(t *testing.T) {
	const manual = "../../docs/metrics.md"
	text := readText(t, manual)
	known := names(t)
	for _, f := range families {
		name := nameIn.FindStringSubmatch(f.desc.String())[1]
		if !strings.Contains(text, "| `"+name+"` |") {
			t.Errorf("%s: no row for %s: %s", manual, name, helpOf(f))
		}
	}
	for _, name := range ours.FindAllString(text, -1) {
		if !slices.Contains(known, name) {
			t.Errorf("%s: no metric %s", manual, name)
		}
	}
	for _, alert := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(readText(t, packaging+"/prometheus/smartcookie.rules.yaml"), -1) {
		if !strings.Contains(text, "| `"+alert[1]+"` |") {
			t.Errorf("%s: no row for the alert %s", manual, alert[1])
		}
	}
}

// Every alert fires in a test, and is silent in one.
func TestRulesHoldTheirTests(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		missing(t, "promtool")
	}
	const tests = packaging + "/prometheus/smartcookie.test.yaml"
	if out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", tests).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	text := readText(t, tests)
	for _, alert := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(readText(t, packaging+"/prometheus/smartcookie.rules.yaml"), -1) {
		if strings.Count(text, "alertname: "+alert[1]+"\n") < 2 {
			t.Errorf("%s: %s is not seen both to fire and to be silent", tests, alert[1])
		}
	}
}

// The queries of the dashboard are ones that Prometheus understands: as rules they
// are checked by promtool.
func TestDashboardsQueriesAreValid(t *testing.T) {
	if _, err := exec.LookPath("promtool"); err != nil {
		missing(t, "promtool")
	}
	var board struct {
		Title  string
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(readText(t, packaging+"/grafana/smartcookie.json")), &board); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$service", ".*")
	rules := strings.Builder{}
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			expr, err := json.Marshal(variables.Replace(target.Expr))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&rules, "  - record: panel\n    expr: %s\n", expr)
		}
		if panel.Title == "" || len(panel.Targets) == 0 {
			t.Errorf("a panel without title or query: %+v", panel)
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", "--lint=none", file).CombinedOutput(); err != nil || len(board.Panels) == 0 {
		t.Errorf("%v: %s", err, out)
	}
}
