package keys

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"smartcookie/internal/cookie"
)

// format is the version of the file's form.
const format = 1

// FileError is a key file that cannot be used, with the line to blame if there
// is one. No key is ever part of it.
type FileError struct {
	File string
	Line int // from 1; 0: none
	Err  error
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// ExitCode is that of a configuration that the operator has to mend.
func (e *FileError) ExitCode() int { return 2 }

// content is the file as it stands in YAML; nil is missing.
type content struct {
	Format       *int                      `yaml:"format"`
	EpochSeconds *uint32                   `yaml:"epoch_seconds"`
	Domains      map[string][]contentEntry `yaml:"domains"`
}

type contentEntry struct {
	ID          *uint32 `yaml:"id"`
	FromEpoch   *uint64 `yaml:"from_epoch"`
	Hash        *string `yaml:"hash"`
	WindowScale *uint8  `yaml:"window_scale"`
	Key         *string `yaml:"key"`
}

// parsing is one reading of a file: its name and tree, to find lines in.
type parsing struct {
	name string
	tree *ast.File
}

// Parse reads the text of a key file. The name is for errors, which are all
// *FileError.
func Parse(name string, text []byte) (*File, error) {
	p := parsing{name: name}
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, p.yamlError(err)
	}
	p.tree = tree
	if len(tree.Docs) != 1 || tree.Docs[0].Body == nil {
		return nil, &FileError{File: name, Err: errors.New("want one YAML document")}
	}
	var c content
	if err := decode(text, &c); err != nil {
		return nil, p.yamlError(err)
	}
	return p.file(c)
}

// decode is strict. The YAML library panics on certain misplaced tags.
func decode(text []byte, into *content) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("not valid YAML")
		}
	}()
	return yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(into)
}

// yamlError keeps the line and the kind of a YAML error. Its own text may quote
// the file, and so a key.
func (p parsing) yamlError(err error) error {
	fault := &FileError{File: p.name, Err: errors.New("not valid YAML")}
	var located yaml.Error
	if !errors.As(err, &located) {
		return fault
	}
	if t := located.GetToken(); t != nil && t.Position != nil {
		fault.Line = t.Position.Line
	}
	switch e := located.(type) {
	case *yaml.UnknownFieldError:
		fault.Err = errors.New("unknown field")
	case *yaml.TypeError, *yaml.UnexpectedNodeTypeError:
		fault.Err = errors.New("a value of another type is needed here")
	case *yaml.OverflowError:
		fault.Err = errors.New("the number is out of range")
	case *yaml.SyntaxError:
		if strings.HasPrefix(e.GetMessage(), "mapping key ") {
			fault.Err = errors.New("the same field again")
		}
	}
	return fault
}

// fault is an error at the node of that path, or the nearest one above it.
func (p parsing) fault(at path, message string, values ...any) error {
	e := &FileError{File: p.name, Err: fmt.Errorf(message, values...)}
	for ; len(at) > 0; at = at[:len(at)-1] {
		if node, err := at.yaml().FilterFile(p.tree); err == nil {
			e.Line = node.GetToken().Position.Line
			break
		}
	}
	return e
}

// path leads to a node: field names (string) and list indexes (int).
type path []any

func (p path) yaml() *yaml.Path {
	b := (&yaml.PathBuilder{}).Root()
	for _, step := range p {
		switch s := step.(type) {
		case string:
			b = b.Child(s)
		case int:
			b = b.Index(uint(s))
		}
	}
	return b.Build()
}

func (p parsing) file(c content) (*File, error) {
	if c.Format == nil || *c.Format != format {
		return nil, p.fault(path{"format"}, "want format: %d", format)
	}
	if c.EpochSeconds == nil {
		return nil, p.fault(path{"epoch_seconds"}, "epoch_seconds is missing")
	}
	f, err := New(*c.EpochSeconds)
	if err != nil {
		return nil, p.fault(path{"epoch_seconds"}, "%w", err)
	}
	if n := len(c.Domains); n < 1 || n > DomainsMax {
		return nil, p.fault(path{"domains"}, "%d domains: want 1 to %d", n, DomainsMax)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Domains)) {
		if !domainName.MatchString(name) {
			return nil, p.fault(path{"domains"}, "a domain's name has 1 to 32 of a-z, 0-9 and -")
		}
		entries, err := p.domain(f, name, c.Domains[name])
		if err != nil {
			return nil, err
		}
		f.Domains[name] = entries
	}
	return f, nil
}

func (p parsing) domain(f *File, name string, list []contentEntry) ([]Entry, error) {
	if len(list) == 0 {
		return nil, p.fault(path{"domains", name}, "domain %s has no keys", name)
	}
	var entries []Entry
	for i, c := range list {
		at := path{"domains", name, i}
		e, err := p.entry(at, c)
		if err != nil {
			return nil, err
		}
		if e.FromEpoch > f.Epoch(lastTime) {
			return nil, p.fault(append(at, "from_epoch"), "from_epoch is beyond the year 9999")
		}
		for _, earlier := range entries {
			if earlier.ID == e.ID {
				return nil, p.fault(append(at, "id"), "id %d again", e.ID)
			}
			if earlier.FromEpoch >= e.FromEpoch {
				return nil, p.fault(append(at, "from_epoch"), "from_epoch is not above that of key %d", earlier.ID)
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (p parsing) entry(at path, c contentEntry) (Entry, error) {
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"id", c.ID == nil}, {"from_epoch", c.FromEpoch == nil}, {"hash", c.Hash == nil},
		{"window_scale", c.WindowScale == nil}, {"key", c.Key == nil},
	} {
		if field.missing {
			return Entry{}, p.fault(append(at, field.name), "%s is missing", field.name)
		}
	}
	hash, err := cookie.ParseHash(*c.Hash)
	if err != nil {
		return Entry{}, p.fault(append(at, "hash"), "want hash: %v or %v", cookie.SipHash, cookie.HalfSipHash)
	}
	if *c.WindowScale > WindowScaleMax {
		return Entry{}, p.fault(append(at, "window_scale"), "window_scale %d: use 0 to %d", *c.WindowScale, WindowScaleMax)
	}
	key, err := base64.StdEncoding.Strict().DecodeString(*c.Key)
	if err != nil || len(key) != secretLength {
		return Entry{}, p.fault(append(at, "key"), "want key: %d bytes in base64", secretLength)
	}
	secret, err := newSecret([secretLength]byte(key))
	if err != nil {
		return Entry{}, p.fault(append(at, "key"), "%w", err)
	}
	return Entry{*c.ID, *c.FromEpoch, hash, *c.WindowScale, secret}, nil
}

// Text returns the file as YAML, keys included.
func (f *File) Text() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# Keys of smartcookie: secret. Change it with `smartcookie keys`.\n")
	fmt.Fprintf(&b, "format: %d\nepoch_seconds: %d\ndomains:\n", format, f.EpochSeconds)
	for _, name := range slices.Sorted(maps.Keys(f.Domains)) {
		fmt.Fprintf(&b, "  %q:\n", name)
		for _, e := range f.Domains[name] {
			fmt.Fprintf(&b, "    - id: %d\n      from_epoch: %d\n      hash: %v\n      window_scale: %d\n      key: %s\n",
				e.ID, e.FromEpoch, e.Hash, e.WindowScale, e.Secret.base64())
		}
	}
	return []byte(b.String())
}
