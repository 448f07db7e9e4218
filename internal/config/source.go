// Package config reads the agents' configuration files and says, with file and
// line, what is wrong with them.
package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Error is something wrong with a configuration file.
type Error struct {
	File    string
	Line    int // 0: the file as a whole
	Message string
	Cause   error // nil if the message is all there is
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
}

// ExitCode is that of wrong input.
func (e *Error) ExitCode() int { return 2 }

// Unwrap returns what was wrong with the value, if something else says it.
func (e *Error) Unwrap() error { return e.Cause }

// source is a file whose values can be traced back to their lines.
type source struct {
	name string
	tree *ast.File
}

// read decodes a file strictly: unknown keys are errors.
func read(name string, into any) (*source, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, &Error{File: name, Message: err.Error()}
	}
	tree, err := decode(text, into)
	if err != nil {
		return nil, syntaxError(name, err)
	}
	return &source{name: name, tree: tree}, nil
}

// errYAML is a file on which the YAML library panics: certain misplaced tags.
var errYAML = errors.New("not valid YAML")

func decode(text []byte, into any) (tree *ast.File, err error) {
	defer func() {
		if recover() != nil {
			err = errYAML
		}
	}()
	if tree, err = parser.ParseBytes(text, 0); err != nil {
		return nil, err
	}
	return tree, yaml.UnmarshalWithOptions(text, into, yaml.Strict())
}

func syntaxError(name string, err error) error {
	var located yaml.Error
	if !errors.As(err, &located) || located.GetToken() == nil {
		return &Error{File: name, Message: firstLine(err.Error())}
	}
	return &Error{
		File: name, Line: located.GetToken().Position.Line,
		Message: firstLine(located.GetMessage()),
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// fail makes an error at the line of a value, given by its path in the file
// ("$.services[1].name"), or of the nearest thing around it that is there.
func (s *source) fail(path, format string, args ...any) error {
	return &Error{File: s.name, Line: s.line(path), Message: fmt.Sprintf(format, args...)}
}

// at places an error that somebody else found at the line of a value.
func (s *source) at(path string, err error) error {
	return &Error{File: s.name, Line: s.line(path), Message: err.Error(), Cause: err}
}

func (s *source) line(path string) int {
	for path != "" && path != "$" {
		if p, err := yaml.PathString(path); err == nil {
			if node, err := p.FilterFile(s.tree); err == nil && node != nil {
				return node.GetToken().Position.Line
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}
