package bench

import (
	"context"
	"errors"
	"runtime"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// The subjects of E7 are what a cookie is made by: the CRC in an edge that is the
// benchmark's, the two others in the one that is for use.
const (
	byCRC         = "CRC32"
	bySipHash     = "SipHash"
	byHalfSipHash = "HalfSipHash"
)

// Its cases: what an attacker knows who forges, where one guesses, and the search.
const (
	knowsCRC       = "polynomial known"
	knowsLinearity = "linearity known"
	guessFlood     = "flood"
	guessCheck     = "check alone"
	keySearch      = "keys tried"
)

var (
	ourHashes = []string{bySipHash, byHalfSipHash}
	hashOf    = map[string]cookie.Hash{bySipHash: cookie.SipHash, byHalfSipHash: cookie.HalfSipHash}
)

// forgeryEffort is how long E7 may take.
type forgeryEffort struct {
	forgeries, rounds int
	forgedACKs        int
	floods            []string // who is flooded
	flood             time.Duration
	checks            int
	checkMACs         uint64
	search            time.Duration
}

var forgeryEfforts = map[evaluation.Effort]forgeryEffort{
	evaluation.Full: {
		forgeries: 3, rounds: 5, forgedACKs: 20_000, floods: ourHashes, flood: time.Minute,
		checks: 4, checkMACs: 1 << 30, search: 2 * time.Second,
	},
	evaluation.Quick: {
		forgeries: 1, rounds: 1, forgedACKs: 1_000, floods: ourHashes[:1], flood: 2 * time.Second,
		checks: 1, checkMACs: 1 << 26, search: 300 * time.Millisecond,
	},
}

// forgeryTrial has what cells share, made when it is first needed.
type forgeryTrial struct {
	effort  forgeryEffort
	victims map[string]*victim
	guesser *guesser
}

// Forgery is E7: what it costs to get past the edge without a handshake.
func Forgery() evaluation.Experiment {
	return evaluation.Experiment{
		ID: "E7", Title: "Forged cookies, guessed cookies, searched keys",
		Reproduces: "SmartCookie section 7.1 and appendix A",
		Question:   "What does it cost an attacker to get past the edge without a handshake?",
		Prepare: func(effort evaluation.Effort) *evaluation.Trial {
			f := &forgeryTrial{effort: forgeryEfforts[effort], victims: make(map[string]*victim)}
			return &evaluation.Trial{Cells: f.cells(), Panels: forgeryPanels, Notes: forgeryNotes, Close: f.close}
		},
	}
}

func (f *forgeryTrial) close() error {
	var errs []error
	for _, v := range f.victims {
		errs = append(errs, v.close())
	}
	if f.guesser != nil {
		f.guesser.close()
	}
	return errors.Join(errs...)
}

// measureOf measures a subject.
type measureOf func(ctx context.Context, subject string) (evaluation.Figures, error)

func (f *forgeryTrial) cells() (all []evaluation.Cell) {
	everybody := append([]string{byCRC}, ourHashes...)
	add := func(rounds int, in string, takes time.Duration, subjects []string, measure measureOf) {
		for round := range rounds {
			for i := range subjects {
				subject := subjects[(i+round)%len(subjects)]
				all = append(all, evaluation.Cell{
					CellID: evaluation.CellID{Subject: subject, Case: in, Round: round}, Takes: takes,
					Measure: func(ctx context.Context) (evaluation.Figures, error) { return measure(ctx, subject) },
				})
			}
		}
	}
	e := f.effort
	attacked := time.Duration(e.forgedACKs) * 50 * time.Microsecond
	add(e.forgeries, knowsCRC, 2*time.Second/time.Duration(e.forgeries)+attacked, everybody, f.forged(func() forger { return &knownCRC{} }))
	add(e.forgeries, knowsLinearity, attacked, everybody, f.forged(func() forger { return &affine{} }))
	add(1, guessFlood, e.flood+time.Second, e.floods, f.flooded)
	add(e.checks, guessCheck, time.Second/2+time.Duration(e.checkMACs)*33, ourHashes, f.checked)
	add(e.rounds, keySearch, e.search, ourHashes, f.searched)
	return all
}

func (f *forgeryTrial) victim(ctx context.Context, subject string) (*victim, error) {
	if v := f.victims[subject]; v != nil {
		return v, nil
	}
	defend := defendVictimByCRC
	if hash, ours := hashOf[subject]; ours {
		defend = defendVictim(hash)
	}
	v, err := newVictim(ctx, defend)
	if err != nil {
		return nil, err
	}
	f.victims[subject] = v
	return v, nil
}

func (f *forgeryTrial) forged(by func() forger) measureOf {
	return func(ctx context.Context, subject string) (evaluation.Figures, error) {
		v, err := f.victim(ctx, subject)
		if err != nil {
			return nil, err
		}
		return v.attackWith(by()).attack(ctx, f.effort.forgedACKs)
	}
}

// flooded sends guesses to the edge as fast as the lab's generator can.
func (f *forgeryTrial) flooded(ctx context.Context, subject string) (evaluation.Figures, error) {
	blind, _ := lab.BlindAt("split")
	v, err := f.victim(ctx, subject)
	if err != nil {
		return nil, err
	}
	before, err := v.verdicts()
	if err != nil {
		return nil, err
	}
	flood, err := v.lab.StartFlood(lab.FloodOptions{Kind: blind.Kind, Rate: lab.MaxRate, Limit: f.effort.flood})
	if err != nil {
		return nil, err
	}
	select {
	case <-flood.Done():
	case <-ctx.Done():
	}
	if err := errors.Join(flood.Stop(), ctx.Err()); err != nil {
		return nil, err
	}
	after, err := v.verdicts()
	if err != nil {
		return nil, err
	}
	taken := float64(after[blind.Admits] - before[blind.Admits])
	guesses := taken + float64(after["drop_bad_cookie"]-before["drop_bad_cookie"])
	if guesses == 0 {
		return nil, errors.New("the edge has judged no guess")
	}
	return evaluation.Figures{
		"guesses": guesses, "macs": guesses * lab.EdgeMACs, "taken": taken, "expected": guesses * blind.Chance,
		"guesses_per_s": guesses / f.effort.flood.Seconds(),
	}, nil
}

// checked guesses where nothing else takes time.
func (f *forgeryTrial) checked(ctx context.Context, subject string) (_ evaluation.Figures, err error) {
	if f.guesser == nil {
		if f.guesser, err = newGuesser(); err != nil {
			return nil, err
		}
	}
	r, err := f.guesser.guess(ctx, hashOf[subject], f.effort.checkMACs)
	if err != nil {
		return nil, err
	}
	macs := float64(r.macs)
	return evaluation.Figures{
		"guesses": macs / lab.EdgeMACs, "macs": macs, "taken": float64(r.right), "expected": macs * lab.OneMAC, "mac_ns": r.ns,
	}, nil
}

// searched tries keys against T of one flow.
func (f *forgeryTrial) searched(ctx context.Context, subject string) (evaluation.Figures, error) {
	const chunk = 1 << 20
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := ownFlow{flowsOf()[0], 1}
	message, search := forgedMessage(own.Flow, own.isn), searches[hashOf[subject]]
	var keysTried, candidates uint64
	before := threadTime()
	for time.Duration(threadTime()-before) < f.effort.search {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		candidates += uint64(len(search(message, 0, keysTried, chunk)))
		keysTried += chunk
	}
	seconds := float64(threadTime()-before) / 1e9
	return evaluation.Figures{"keys_per_s": float64(keysTried) / seconds, "keys": float64(keysTried), "candidates": float64(candidates)}, nil
}
