package bench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"

	"smartcookie/internal/cookie"
)

// guesser is the edge's check without an edge around it, and somebody who guesses.
type guesser struct {
	*testBench
	programs *ebpf.Collection
}

// Runs of the program in one call: a tenth of a second, and it can be interrupted.
const guessRuns = 100

func newGuesser() (*guesser, error) {
	b, err := newTestBench(cookie.SipHash, nil)
	if err != nil {
		return nil, err
	}
	spec, err := loadGuess()
	if err != nil {
		b.close()
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	programs, err := b.edge.LoadBeside(spec)
	if err != nil {
		b.close()
		return nil, err
	}
	return &guesser{b, programs}, nil
}

func (g *guesser) close() {
	g.programs.Close()
	g.testBench.close()
}

// key puts random keys for a hash in the epochs around the bench's own.
func (g *guesser) key(hash cookie.Hash) error {
	var slots []cookie.Slot
	for e := uint64(benchEpoch - 1); e <= benchEpoch+1; e++ {
		slot := cookie.Slot{Epoch: e, Hash: hash, WindowScale: 7}
		if _, err := rand.Read(slot.Key[:hash.KeyLength()]); err != nil {
			return fmt.Errorf("make a key: %w", err)
		}
		slots = append(slots, slot)
	}
	return g.edge.WriteKeys(0, slots)
}

// guessed is what came of it.
type guessed struct {
	macs, right uint64
	ns          float64 // of CPU time for a MAC, the rest of the check included
}

// guess tries until so many MACs were made.
func (g *guesser) guess(ctx context.Context, hash cookie.Hash, macs uint64) (r guessed, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := g.key(hash); err != nil {
		return r, err
	}
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return r, fmt.Errorf("make a seed: %w", err)
	}
	counts := map[string]*uint64{"guess_macs": &r.macs, "guesses_right": &r.right}
	for name, value := range map[string]uint64{"guess_random": binary.NativeEndian.Uint64(seed[:]) | 1, "guess_macs": 0, "guesses_right": 0} {
		if err := g.programs.Variables[name].Set(value); err != nil {
			return r, fmt.Errorf("set %s: %w", name, err)
		}
	}
	before := threadTime()
	for r.macs < macs {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		if _, err := g.programs.Programs["guess"].Run(&ebpf.RunOptions{Data: make([]byte, ethernetLength), Repeat: guessRuns}); err != nil {
			return r, fmt.Errorf("guess: %w", err)
		}
		for name, value := range counts {
			if err := g.programs.Variables[name].Get(value); err != nil {
				return r, fmt.Errorf("read %s: %w", name, err)
			}
		}
	}
	r.ns = float64(threadTime()-before) / float64(r.macs)
	return r, nil
}
