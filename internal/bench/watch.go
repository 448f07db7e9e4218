package bench

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"
)

const startLimit = 10 * time.Second

// watch waits for a word in what a program prints.
type watch struct {
	word string
	seen chan struct{}

	lock sync.Mutex
	text []byte // until the word was there
	done bool
}

func newWatch(word string) *watch { return &watch{word: word, seen: make(chan struct{})} }

func (w *watch) Write(b []byte) (int, error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.done {
		return len(b), nil
	}
	w.text = append(w.text, b...)
	if bytes.Contains(w.text, []byte(w.word)) {
		w.done = true
		close(w.seen)
	}
	return len(b), nil
}

func (w *watch) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	select {
	case <-w.seen:
		return nil
	case <-ctx.Done():
		w.lock.Lock()
		defer w.lock.Unlock()
		return fmt.Errorf("wait for %q: %w: %s", w.word, context.Cause(ctx), bytes.TrimSpace(w.text))
	}
}
