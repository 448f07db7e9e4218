package upkeep

import (
	"sync"

	"smartcookie/internal/control"
	"smartcookie/internal/keys"
)

// Control gives endpoints the keys and the clock as the keeper has them; any
// goroutine may ask.
type Control struct {
	read func() keys.Reading

	mu     sync.Mutex
	file   *keys.File
	offset int64
	cache  map[controlKey][16]byte
}

type controlKey struct {
	domain      string
	to          keys.Direction
	edge, agent uint32
	period      uint64
}

// cacheMost bounds the keys at hand: deriving one takes longer than checking a
// tag, which anyone can make us do.
const cacheMost = 8192

// Control is the keeper's view for control messages.
func (k *Keeper) Control() *Control { return &k.control }

// Knows says whether the key file has a domain.
func (k *Keeper) Knows(domain string) error {
	if _, ok := k.file.Domains[domain]; !ok {
		return &DomainError{Domain: domain, File: k.path}
	}
	return nil
}

func (c *Control) publish(file *keys.File, offset int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != file {
		clear(c.cache)
	}
	c.file, c.offset = file, offset
}

// NowNS is real time as the epochs are counted.
func (c *Control) NowNS() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return uint64(max(c.read().MonotonicNS+c.offset, 0))
}

// Key is the key between an edge and an agent for a period.
func (c *Control) Key(domain string, to keys.Direction, edge, agent uint32, period uint64) ([16]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := controlKey{domain, to, edge, agent, period}
	if key, ok := c.cache[at]; ok {
		return key, true
	}
	key, ok := c.file.ControlKey(domain, to, edge, agent, period)
	if !ok {
		return key, false
	}
	if c.cache == nil || len(c.cache) >= cacheMost {
		c.cache = make(map[controlKey][16]byte)
	}
	c.cache[at] = key
	return key, true
}

// Agreement is what both halves should have in common.
func (c *Control) Agreement(domain string, period uint64) control.Agreement {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, _ := c.file.EntryAt(domain, period*keys.ControlPeriodSeconds/uint64(c.file.EpochSeconds))
	return control.Agreement{
		Fingerprint: c.file.Fingerprint(domain, period), EpochSeconds: uint8(c.file.EpochSeconds), Scale: entry.WindowScale,
	}
}
