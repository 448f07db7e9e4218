package bench_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"smartcookie/internal/bench"
	"smartcookie/internal/cli"
)

// The test binary is the executable of the bench's labs.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(m.Run())
	}
	os.Exit(cli.Run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// need skips a test that cannot run here, where the tests must run it fails.
func need(t *testing.T, programs ...string) {
	t.Helper()
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	for _, name := range programs {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("missing: %v", missing)
	}
	t.Skipf("missing: %v", missing)
}

// The experiment itself sees that its packets pass, translated or not, and that
// its connections were made in the way that they are named for.
func TestServerExperimentHasARowForEachCase(t *testing.T) {
	need(t, "iperf3", "nft")
	effort := bench.Effort{Rounds: 1, Repeats: 100, Transfers: 1, Bytes: 16 << 20}
	rows, err := bench.Server(t.Context(), effort, func(text string) { t.Log(text) })
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int)
	for _, r := range rows {
		found[r.Name]++
		if r.Experiment != "server" || r.RatioTo == "" || r.Ratio <= 0 || r.RatioMin > r.Ratio || r.RatioMax < r.Ratio {
			t.Errorf("%+v", r)
		}
	}
	want := map[string]int{"empty program": 2}
	for _, state := range []string{"native", "native beside translated", "translated"} {
		want["ingress, "+state], want["egress, "+state] = 2, 2
	}
	for _, direction := range []string{"upload", "download"} {
		for _, state := range []string{"no agent, again", "native", "translated"} {
			want[direction+", "+state], want[direction+", per CPU time, "+state] = 1, 1
		}
	}
	for name, n := range want {
		if found[name] != n {
			t.Errorf("%q: %d rows, want %d", name, found[name], n)
		}
	}
	if len(found) != len(want) {
		t.Errorf("rows %v, want %v", found, want)
	}
	if err := bench.WriteTable(t.Output(), rows); err != nil {
		t.Error(err)
	}
}
