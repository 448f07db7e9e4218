package upkeep

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"smartcookie/internal/config"
)

// What is wrong at any step changes nothing more, and is told once.
func TestReloadEndsWhereItIsRefused(t *testing.T) {
	wrong, over := errors.New("wrong"), errors.New("over")
	web := config.Changes{Added: []string{"web"}}
	for name, test := range map[string]struct {
		read, admit, refused, err error
		changes                   config.Changes
		changed                   bool
		log                       string
	}{
		"a file that is wrong":           {read: wrong, changes: web, log: "because=wrong"},
		"a file that cannot be followed": {admit: wrong, changes: web, log: "because=wrong"},
		"nothing new":                    {log: "the file says nothing new"},
		"a service":                      {changes: web, changed: true, log: "added=web"},
		"a change that is taken back":    {changes: web, refused: wrong, changed: true, log: "because=wrong"},
		"a daemon that cannot go on":     {changes: web, refused: wrong, err: over, changed: true},
	} {
		var told bytes.Buffer
		changed := false
		err := Reload[int]{
			Read:   func() (int, error) { return 0, test.read },
			Since:  func(int) config.Changes { return test.changes },
			Admit:  func(int) error { return test.admit },
			Change: func(int) (error, error) { changed = true; return test.refused, test.err },
		}.Do(slog.New(slog.NewTextHandler(&told, nil)))
		if !errors.Is(err, test.err) || changed != test.changed || !strings.Contains(told.String(), test.log) ||
			strings.Count(told.String(), "\n") != min(len(test.log), 1) {
			t.Errorf("%s: %v, changed %t, %q", name, err, changed, &told)
		}
	}
}
