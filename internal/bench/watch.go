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
	once sync.Once
	text bytes.Buffer
}

func newWatch(word string) *watch { return &watch{word: word, seen: make(chan struct{})} }

// Write is called by one goroutine; once the word was there, nothing is kept.
func (w *watch) Write(b []byte) (int, error) {
	select {
	case <-w.seen:
		return len(b), nil
	default:
	}
	w.text.Write(b)
	if bytes.Contains(w.text.Bytes(), []byte(w.word)) {
		w.once.Do(func() { close(w.seen) })
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
		return fmt.Errorf("wait for %q: %w", w.word, context.Cause(ctx))
	}
}
