// Package browser opens a report in a headless Chromium and says what a reader sees
// of it.
package browser

import (
	"context"
	_ "embed" // measure.js
	"encoding/json"
	"fmt"
	"html"
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

// Widths are those that a report has to be readable at.
var Widths = []int{1280, 390}

// Find finds a Chromium, which scripts/deps installs; without one the test is
// skipped, where the tests must run it fails.
func Find(t *testing.T) string {
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

//go:embed measure.js
var measureScript string

// Page is what measure.js has seen.
type Page struct {
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

// CheckAll looks at a report in each width, in light and dark, and fails the test
// if a figure is missing or something cannot be read. SCREENSHOTS=DIR leaves there
// what was seen, under the name given here.
func CheckAll(t *testing.T, name string, report []byte, figures []string) {
	t.Helper()
	Find(t)
	schemes := make(map[bool]map[string]string)
	for _, width := range Widths {
		for _, dark := range []bool{false, true} {
			scheme := map[bool]string{false: "light", true: "dark"}[dark]
			t.Run(fmt.Sprintf("%d, %s", width, scheme), func(t *testing.T) {
				page := open(t, fmt.Sprintf("%s-%d-%s.png", name, width, scheme), report, width, dark)
				page.check(t, figures, width, dark)
				schemes[dark] = page.Colours
			})
		}
	}
	for name, light := range schemes[false] {
		if schemes[true][name] == light {
			t.Errorf("%s is %s in light and in dark", name, light)
		}
	}
}

func open(t *testing.T, screenshot string, report []byte, width int, dark bool) Page {
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
	var seen Page
	if err := json.Unmarshal([]byte(html.UnescapeString(found[1])), &seen); err != nil {
		t.Fatal(err)
	}
	if keep := os.Getenv("SCREENSHOTS"); keep != "" {
		write(t, filepath.Join(dir, "report.html"), string(report)) // as people see it
		write(t, frame, fmt.Sprintf(framed, width, int(seen.Height)))
		chromium(t, dark, width, int(seen.Height), "--screenshot="+filepath.Join(keep, screenshot), "file://"+frame)
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
	profile, err := os.MkdirTemp("", "browser")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(profile) // as far as it goes: what the browser has started may still write
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	fixed := []string{
		"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + profile,
		"--blink-settings=preferredColorScheme=" + scheme, fmt.Sprintf("--window-size=%d,%d", max(width, 500), height),
	}
	command := exec.CommandContext(ctx, Find(t), append(fixed, args...)...)
	var complaint strings.Builder
	command.Stderr, command.WaitDelay = &complaint, 5*time.Second
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, complaint.String())
	}
	return string(out)
}

func (p Page) check(t *testing.T, figures []string, width int, dark bool) {
	t.Helper()
	if p.Width != float64(width) || p.ScrollWidth > p.Width || p.Dark != dark {
		t.Errorf("the page is %v wide, its content %v, dark %t", p.Width, p.ScrollWidth, p.Dark)
	}
	var got []string
	for _, f := range p.Figures {
		got = append(got, f.ID)
		if f.Plots != 1 || f.Width < 0.8*min(float64(width), 800) || f.Height < 30 || f.Texts < 3 {
			t.Errorf("%+v", f)
		}
	}
	if !slices.Equal(got, figures) {
		t.Errorf("figures %v, want %v", got, figures)
	}
	for what, found := range map[string][]string{
		"from elsewhere": p.Loaded, "small": p.Small, "beyond its place": p.Beyond, "over each other": p.Overlaps,
	} {
		if len(found) > 0 {
			t.Errorf("%s: %q", what, found)
		}
	}
	p.checkContrast(t)
}

// checkContrast wants what WCAG 2.1 does: 4.5 for text, 3 for what is drawn.
func (p Page) checkContrast(t *testing.T) {
	t.Helper()
	if len(p.Colours) != 13 {
		t.Errorf("colours %v", p.Colours)
	}
	for name, colour := range p.Colours {
		least := 3.0
		switch name {
		case "--paper":
			continue
		case "--ink", "--soft":
			least = 4.5
		}
		if ratio := contrast(luminance(colour), luminance(p.Colours["--paper"])); !(ratio >= least) {
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
	return total
}
