package evaluation

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// browser finds a Chromium, which scripts/deps installs. SCREENSHOTS=DIR has this
// file's test leave there what it has looked at.
func browser(t *testing.T) string {
	t.Helper()
	names := []string{"chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("missing: one of %q", names)
	}
	t.Skipf("missing: one of %q", names)
	return ""
}

// spreadOf are rounds around a figure.
func spreadOf(median float64) []float64 {
	return []float64{median * 0.97, median, median * 1.04, median * 0.99, median * 1.02}
}

func lineOf(subject string, ours bool, at map[float64]float64, paper *Paper) Series {
	s := Series{Subject: subject, Ours: ours, Paper: paper}
	for _, x := range slices.Sorted(maps.Keys(at)) {
		point, _ := PointOf(x, spreadOf(at[x]))
		s.Points = append(s.Points, point)
	}
	return s
}

// everyKind has all that a report may have, more of it and longer than any real one.
func everyKind() Results {
	return Results{
		Schema: SchemaVersion, Effort: "quick", Traffic: "mean of CAIDA 2018: 38500 flows/s, 14.5 kB each in the mean",
		Machine: Machine{Kernel: "6.18.44-1-generic", CPU: "A Processor With a Long Name v7 @ 2.70GHz", Cores: 2, Virtual: true, Architecture: "amd64", Build: "0123456789ab+c0ffee"},
		Started: time.Unix(1_700_000_000, 0), Ended: time.Unix(1_700_003_600, 0),
		Experiments: []Outcome{ratesOutcome(), floodsOutcome(), filtersOutcome()},
	}
}

func ratesOutcome() Outcome {
	names := []string{
		"XDP_DROP", "MAC swap", "no cookies", "kernel cookies", "kernel cookies, tcp_syncookies=2", "nft SYNPROXY",
		"bpf_tcp_gen_syncookie (Netdev 2020)", "raw cookie helpers of the kernel, in XDP", "CRC cookie, as in the papers' comparison",
		"AES cookie, as in the papers' comparison",
	}
	ours := []string{"split, SipHash", "split, HalfSipHash", "proxy", "auth-cookie", "auth-full", "auth-rst", "host, which answers for its own kernel"}
	rate := Panel{ID: "e1-rate", Title: "SYNs answered on one core", Kind: Bars, Better: Higher, X: Axis{Label: "defence"}, Y: Axis{Label: "SYN/s"}, Note: "One core does everything: it makes the SYNs, answers them, and counts the answers."}
	cost := Panel{ID: "e1-cost", Title: "What one SYN costs", Kind: Bars, Better: Lower, X: Axis{Label: "defence"}, Y: Axis{Label: "ns", Log: true}}
	for i, name := range slices.Concat(names, ours) {
		var paper *Paper
		if i%4 == 2 {
			paper = &Paper{"136 M/s", "SmartCookie 8.2, figure 5", "a switch of another kind, at the rate of its line"}
		}
		rate.Series = append(rate.Series, Bar(name, i >= len(names), spreadOf(19e6/float64(i+1)), paper)...)
		cost.Series = append(cost.Series, Bar(name, i >= len(names), spreadOf(53*math.Pow(1.6, float64(i))), paper)...)
	}
	again := Panel{ID: "e1-few", Title: "Nothing, and one round", Kind: Bars, X: Axis{Label: "what"}, Y: Axis{Label: "%"}}
	again.Series = slices.Concat(Bar("nothing", false, []float64{0}, nil), Bar("less than nothing", true, []float64{-3, -2, -2.5}, nil), Bar("something", false, []float64{12}, nil))
	return Outcome{
		ID: "E1", Title: "How many SYNs a second", Reproduces: "SmartCookie figure 5 and artifact E1, EuroP4 figure 3", Question: "How many SYNs does a defence answer on one core without losing any, and what does one cost?",
		Planned: 120, Measured: 112, Notes: []string{"All ran in network namespaces on one core of this machine.", "A name_that_has_no_place_to_break_" + strings.Repeat("at_all_", 12)},
		Panels: []Panel{rate, cost, again}, Absent: []Absence{{"nft SYNPROXY", "nft is not installed: scripts/deps installs it"}},
		Failures: []Failure{{"AES cookie, SYN of 54 bytes, round 2", "4711 of 10000 SYNs were answered: the round says nothing"}},
	}
}

func floodsOutcome() Outcome {
	names := []string{"kernel cookies", "nft SYNPROXY", "no cookies", "split", "proxy", "auth-cookie, once more after a reset", "auth-full, once more after a reset", "auth-rst"}
	served := Panel{ID: "e2-served", Title: "Requests that succeed", Kind: Lines, Better: Higher, X: Axis{Label: "attack, SYN/s", Log: true}, Y: Axis{Label: "% of requests"}}
	latency := Panel{ID: "e2-latency", Title: "How long the median takes", Kind: Lines, Better: Lower, X: Axis{Label: "attack, SYN/s", Log: true}, Y: Axis{Label: "ms", Log: true}}
	tail := Panel{ID: "e2-tail", Title: "Percentiles", Kind: Lines, Better: Lower, X: Axis{Label: "percentile", Tail: true}, Y: Axis{Label: "ms", Log: true}}
	narrowRange := Panel{ID: "e2-near", Title: "Within a decade", Kind: Lines, X: Axis{Label: "attack, SYN/s"}, Y: Axis{Label: "requests/s", Log: true}}
	for i, name := range names {
		slow, ours := float64(i+1), i >= 3
		var paper *Paper
		if i == 3 {
			paper = &Paper{"1.1 ms", "SmartCookie 8.3, figure 6", "other machines"}
		}
		served.Series = append(served.Series, lineOf(name, ours, map[float64]float64{0: 100, 1e4: 100 - slow, 1e5: 99 - 9*slow, 1e6: 95 - 11*slow}, paper))
		latency.Series = append(latency.Series, lineOf(name, ours, map[float64]float64{0: 0.3 * slow, 1e4: 0.4 * slow, 1e5: 2 * slow, 1e6: 7 * slow * slow, 4.2e6: 2100}, paper))
		tail.Series = append(tail.Series, lineOf(name, ours, map[float64]float64{50: 0.2 * slow, 90: 0.5 * slow, 99: 3 * slow, 99.9: 20 * slow, 99.99: 1000}, nil))
		narrowRange.Series = append(narrowRange.Series, lineOf(name, ours, map[float64]float64{0: 1200 + 700*slow, 1e6: 1100 + 800*slow, 3.5e6: 1500}, nil))
	}
	return Outcome{
		ID: "E2", Title: "What clients see during a flood", Reproduces: "SmartCookie figure 6, EuroP4 figures 4 and 5", Question: "Are requests served while a flood is under way, and how fast?",
		Planned: 40, Measured: 40, Panels: []Panel{served, latency, tail, narrowRange},
	}
}

func filtersOutcome() Outcome {
	share := Panel{ID: "e4-flows", Title: "False positives by flows", Kind: Lines, Better: Lower, X: Axis{Label: "flows", Log: true}, Y: Axis{Label: "false positives, %", Log: true}}
	for i, name := range []string{"the paper's, formula", "the paper's", "ours, formula", "ours", "ours, at most"} {
		share.Series = append(share.Series, lineOf(name, i > 1, map[float64]float64{1e4: math.Pow(10, -float64(i)-3), 1e6: math.Pow(10, 1-float64(i))}, nil))
	}
	one := Panel{ID: "e4-one", Title: "One point", Kind: Lines, X: Axis{Label: "flows"}, Y: Axis{Label: "%"}, Series: []Series{lineOf("ours", true, map[float64]float64{5: 100}, nil)}}
	return Outcome{
		ID: "E4", Title: "How often strangers pass", Reproduces: "SmartCookie 6.3, equation 1", Question: "How often does the filter let in who has no connection?",
		Planned: 9, Measured: 9, Panels: []Panel{share, one},
	}
}

//go:embed testdata/measure.js
var measureScript string

// seenPage is what the script of testdata has seen.
type seenPage struct {
	Width, ScrollWidth, Height float64
	Dark                       bool
	Loaded                     []string // from elsewhere
	Figures                    []struct {
		ID            string
		Plots         int // visible ones
		Width, Height float64
		Texts         int
	}
	Small    []string // texts of less than 10 pixels
	Beyond   []string // what reaches out of the page, or of its plot
	Overlaps []string
	Colours  map[string]string
}

// framed is a page that shows the report as wide as asked for: windows have a least
// width, frames have none.
const framed = `<!doctype html><meta charset="utf-8"><style>:root { color-scheme: light dark } body { margin: 0 } iframe { border: 0; display: block }</style>
<iframe src="report.html" width="%d" height="%d"></iframe><pre id="seen"></pre>
<script>addEventListener("message", e => { document.getElementById("seen").textContent = e.data })</script>`

// look opens the report in a browser.
func lookAt(t *testing.T, report []byte, width int, dark bool) seenPage {
	t.Helper()
	dir := t.TempDir()
	page := strings.Replace(string(report), "</body>", "<script>"+measureScript+"</script></body>", 1)
	write(t, filepath.Join(dir, "report.html"), page)
	frame := filepath.Join(dir, "frame.html")
	write(t, frame, fmt.Sprintf(framed, width, 2000))
	out := chromium(t, dark, width, 2000, "--virtual-time-budget=10000", "--dump-dom", "file://"+frame)
	found := regexp.MustCompile(`(?s)<pre id="seen">(.*?)</pre>`).FindStringSubmatch(out)
	if found == nil || found[1] == "" {
		t.Fatalf("the page has told nothing: %s", out)
	}
	var seen seenPage
	if err := json.Unmarshal([]byte(html.UnescapeString(found[1])), &seen); err != nil {
		t.Fatal(err)
	}
	if keep := os.Getenv("SCREENSHOTS"); keep != "" {
		write(t, filepath.Join(dir, "report.html"), string(report)) // as people see it
		write(t, frame, fmt.Sprintf(framed, width, int(seen.Height)))
		name := filepath.Join(keep, fmt.Sprintf("%d-%s.png", width, map[bool]string{false: "light", true: "dark"}[dark]))
		chromium(t, dark, width, int(seen.Height), "--screenshot="+name, "file://"+frame)
	}
	return seen
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func chromium(t *testing.T, dark bool, width, height int, args ...string) string {
	t.Helper()
	scheme := map[bool]string{false: "1", true: "0"}[dark]
	fixed := []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(),
		"--blink-settings=preferredColorScheme=" + scheme, fmt.Sprintf("--window-size=%d,%d", max(width, 500), height),
	}
	command := exec.CommandContext(t.Context(), browser(t), append(fixed, args...)...)
	var complaint strings.Builder
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, complaint.String())
	}
	return string(out)
}

func TestReportIsReadableInABrowser(t *testing.T) {
	browser(t)
	results := everyKind()
	report, err := results.html()
	if err != nil {
		t.Fatal(err)
	}
	schemes := make(map[bool]map[string]string)
	for _, width := range []int{1280, 390} {
		for _, dark := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, dark %t", width, dark), func(t *testing.T) {
				seen := lookAt(t, report, width, dark)
				seen.check(t, results, width, dark)
				schemes[dark] = seen.Colours
			})
		}
	}
	for name, light := range schemes[false] {
		if schemes[true][name] == light {
			t.Errorf("%s is %s in light and in dark", name, light)
		}
	}
}

func (seen seenPage) check(t *testing.T, results Results, width int, dark bool) {
	t.Helper()
	if seen.Width != float64(width) || seen.ScrollWidth > seen.Width || seen.Dark != dark {
		t.Errorf("the page is %v wide, its content %v, dark %t", seen.Width, seen.ScrollWidth, seen.Dark)
	}
	var want, got []string
	for _, o := range results.Experiments {
		for _, p := range o.Panels {
			want = append(want, p.ID)
		}
	}
	for _, f := range seen.Figures {
		got = append(got, f.ID)
		if f.Plots != 1 || f.Width < 0.8*min(float64(width), 800) || f.Height < 60 || f.Texts < 3 {
			t.Errorf("%+v", f)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("figures %v, want %v", got, want)
	}
	for what, found := range map[string][]string{
		"from elsewhere": seen.Loaded, "small": seen.Small, "beyond its place": seen.Beyond, "over each other": seen.Overlaps,
	} {
		if len(found) > 0 {
			t.Errorf("%s: %q", what, found)
		}
	}
	seen.checkContrast(t)
}

// checkContrast wants what WCAG 2.1 does: 4.5 for text, 3 for what is drawn.
func (seen seenPage) checkContrast(t *testing.T) {
	t.Helper()
	if len(seen.Colours) != 13 {
		t.Errorf("colours %v", seen.Colours)
	}
	for name, colour := range seen.Colours {
		least := 3.0
		switch name {
		case "--paper":
			continue
		case "--ink", "--soft":
			least = 4.5
		}
		if ratio := contrast(luminance(colour), luminance(seen.Colours["--paper"])); !(ratio >= least) {
			t.Errorf("%s, %s: contrast %.2f, want %v", name, colour, ratio, least)
		}
	}
}

func contrast(a, b float64) float64 { return (max(a, b) + 0.05) / (min(a, b) + 0.05) }

// luminance is that of #rrggbb, by WCAG 2.1.
func luminance(colour string) (total float64) {
	bits, err := strconv.ParseUint(strings.TrimPrefix(colour, "#"), 16, 24)
	if err != nil {
		return math.NaN()
	}
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		c := float64(bits>>(16-8*i)&0xff) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		total += weight * c
	}
	return cmp.Or(total, 0)
}
