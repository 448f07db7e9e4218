package tidy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, s := range sources(t) {
		if !s.is(".md") {
			continue
		}
		for _, found := range link.FindAllStringSubmatch(s.text, -1) {
			target, _, _ := strings.Cut(found[1], "#")
			if target == "" || strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(s.path), target)); err != nil {
				t.Errorf("%s: link to %s: %v", s.path, target, err)
			}
		}
	}
}

// Keys of the YAML files are declared once, in tags of Go structs.
func TestEveryKeyOfTheFilesIsDocumented(t *testing.T) {
	const manual = "docs/configuration.md"
	text := read(t, manual)
	tag := regexp.MustCompile("`yaml:\"([a-z0-9_]+)\"`")
	seen := 0
	for _, s := range sources(t) {
		if !s.is(".go") {
			continue
		}
		for _, found := range tag.FindAllStringSubmatch(s.text, -1) {
			seen++
			if !strings.Contains(text, "| `"+found[1]+"` |") {
				t.Errorf("%s: no row for `%s` of %s", manual, found[1], s.path)
			}
		}
	}
	if seen < 80 {
		t.Errorf("only %d keys are found", seen)
	}
}

func TestEveryVerdictIsDocumented(t *testing.T) {
	const manual = "docs/verdicts.md"
	text := read(t, manual)
	verdict := regexp.MustCompile(`(?m)^\tVERDICT_([A-Z0-9_]+)(?: = 0)?,`)
	found := verdict.FindAllStringSubmatch(read(t, "contract/contract.h"), -1)
	if len(found) < 30 {
		t.Fatalf("only %d verdicts are found", len(found))
	}
	for _, v := range found {
		if name := strings.ToLower(v[1]); name != "count" && !strings.Contains(text, "| `"+name+"` |") {
			t.Errorf("%s: no row for `%s`", manual, name)
		}
	}
}

// The one command that passes the tests is the one that CI runs.
func TestReadmeAndCIRunTheSameTests(t *testing.T) {
	const command = "scripts/test"
	for _, path := range []string{"README.md", ".ci/run", "Makefile"} {
		if !strings.Contains(read(t, path), command) {
			t.Errorf("%s does not name %s", path, command)
		}
	}
}
