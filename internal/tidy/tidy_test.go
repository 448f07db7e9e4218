// Package tidy holds the rules of the house that a machine can check. It has
// nothing but tests.
package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	root           = "../.."
	functionLines  = 70 // one screen
	cColumns       = 120
	cTab           = 8
	leftoverMarker = "TO" + "DO|FIX" + "ME|XX" + "X" // in halves: this file is checked too
)

// source is a text file that people write.
type source struct {
	path string // from the root, with slashes
	text string
}

func (s source) lines() []string { return strings.Split(s.text, "\n") }

func (s source) is(extensions ...string) bool {
	return slices.Contains(extensions, filepath.Ext(s.path))
}

// sources reads the tree without what is generated or is not ours to write.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if name == "bin" || name == "vectors" || name == "testdata" || strings.HasPrefix(name, ".git") {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || !handwritten(name) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		all = append(all, source{filepath.ToSlash(relative), string(text)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no file is found")
	}
	return all
}

func handwritten(name string) bool {
	return !strings.HasSuffix(name, ".o") && !strings.HasSuffix(name, "_bpfel.go") &&
		!strings.HasPrefix(name, "LICENSE") && name != "go.sum"
}

func TestGoFunctionsFitOnAScreen(t *testing.T) {
	for _, s := range sources(t) {
		if !s.is(".go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, s.path, s.text, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			first, last := files.Position(f.Pos()).Line, files.Position(f.End()).Line
			if n := last - first + 1; n > functionLines {
				t.Errorf("%s:%d: %s has %d lines, at most %d", s.path, first, f.Name.Name, n, functionLines)
			}
		}
	}
}

func TestCFunctionsFitOnAScreen(t *testing.T) {
	for _, s := range sources(t) {
		if !s.is(".c", ".h") {
			continue
		}
		for _, f := range cFunctions(s.lines()) {
			if f.length > functionLines {
				t.Errorf("%s:%d: function of %d lines, at most %d", s.path, f.line, f.length, functionLines)
			}
		}
	}
}

type cFunction struct {
	line   int // of its signature, from 1
	length int
}

// cFunctions finds what has its braces in the first column, as functions alone
// have in the kernel's style, and the signature above.
func cFunctions(lines []string) []cFunction {
	var all []cFunction
	first := -1
	for i, line := range lines {
		switch {
		case line == "{":
			for first = i; first > 0 && isSignature(lines[first-1]); first-- {
			}
		case line == "}" && first >= 0:
			all = append(all, cFunction{first + 1, i + 1 - first})
			first = -1
		}
	}
	return all
}

func isSignature(line string) bool {
	return line != "" && !strings.HasSuffix(line, "*/") && !strings.HasSuffix(line, ";") && !strings.HasPrefix(line, "#") && line != "}"
}

func TestCFunctionsAreFoundWithTheirSignature(t *testing.T) {
	text := "/* why */\nSEC(\"tc\")\nint f(int a,\n      int b)\n{\n\treturn a;\n}\n\nstruct s {\n\tint a;\n};\n\nint g(void)\n{\n}\n"
	got := cFunctions(strings.Split(text, "\n"))
	if want := []cFunction{{2, 6}, {13, 3}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestCLinesAreBounded(t *testing.T) {
	for _, s := range sources(t) {
		if !s.is(".c", ".h") {
			continue
		}
		for i, line := range s.lines() {
			if n := columns(line); n > cColumns {
				t.Errorf("%s:%d: %d columns, at most %d", s.path, i+1, n, cColumns)
			}
		}
	}
}

func columns(line string) (n int) {
	for _, c := range line {
		if c == '\t' {
			n += cTab - n%cTab
		} else {
			n++
		}
	}
	return n
}

func TestCNamesItsLicence(t *testing.T) {
	const want = "SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause"
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.path, "bpf/") || !s.is(".c", ".h") {
			continue
		}
		if !strings.Contains(s.lines()[0], want) {
			t.Errorf("%s:1: no %q", s.path, want)
		}
	}
}

// unwanted is text that does not belong into a file.
var unwanted = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`\b(` + leftoverMarker + `)\b`), "unfinished work: do it, or state the limit"},
	{regexp.MustCompile(`(^|[^\w.*-])/(home|root|tmp|work|Users)/`), "a path of somebody's machine"},
	{regexp.MustCompile(`[ \t]+$`), "space at the end of a line"},
	{regexp.MustCompile(`\r`), "a carriage return"},
}

func TestNoLeftovers(t *testing.T) {
	for _, s := range sources(t) {
		for i, line := range s.lines() {
			for _, u := range unwanted {
				if u.pattern.MatchString(line) {
					t.Errorf("%s:%d: %s: %q", s.path, i+1, u.why, line)
				}
			}
		}
		if !strings.HasSuffix(s.text, "\n") || strings.HasSuffix(s.text, "\n\n") {
			t.Errorf("%s: does not end with one line feed", s.path)
		}
	}
}

// A test that waits for a time is slow where the machine is fast and fails
// where it is slow: poll with a ticker and a deadline.
func TestTestsDoNotSleep(t *testing.T) {
	call := regexp.MustCompile(`\btime\.Sle` + `ep\(`)
	for _, s := range sources(t) {
		if !strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		for i, line := range s.lines() {
			if call.MatchString(line) {
				t.Errorf("%s:%d: poll with a ticker and a deadline", s.path, i+1)
			}
		}
	}
}
