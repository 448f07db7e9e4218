package bench

import (
	"context"
	"runtime"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/evaluation"
)

// The walk of a SYN through the edge, cut off behind a step each.
const (
	stepParse   = "until it is parsed"
	stepFind    = "until clock, service and key are found"
	stepOptions = "until its options are read"
	stepHash    = "until the cookie is made"
)

// synRun is a program that E1 runs by BPF_PROG_TEST_RUN.
type synRun struct {
	name string
	ours bool
	hash cookie.Hash
	from variant
	prog string
}

func synRuns() []synRun {
	return []synRun{
		{macSwap, false, cookie.SipHash, asItIs, "floor"},
		{stepParse, true, cookie.SipHash, asItIs, "parse"},
		{stepFind, true, cookie.SipHash, asItIs, "find"},
		{stepOptions, true, cookie.SipHash, asItIs, "options"},
		{stepHash, true, cookie.SipHash, asItIs, "hash"},
		{splitSipHash, true, cookie.SipHash, asItIs, "outside"},
		{splitHalf, true, cookie.HalfSipHash, asItIs, "outside"},
		{splitRaw, false, cookie.SipHash, rawHelper, "outside"},
		{splitAES, false, cookie.SipHash, aesCookie, "outside"},
		{splitCRC, false, cookie.SipHash, crcCookie, "outside"},
	}
}

// rateRuns are the test runs of E1: an edge for each hash, made when it is needed.
type rateRuns struct {
	benches map[cookie.Hash]*testBench
}

func (r *rateRuns) cells(round int) (cells []evaluation.Cell) {
	all := synRuns()
	for i := range all {
		run := all[(i+round)%len(all)]
		cells = append(cells, evaluation.Cell{
			CellID: evaluation.CellID{Subject: run.name, Case: testRuns, Round: round}, Takes: 150 * time.Millisecond,
			Measure: func(context.Context) (evaluation.Figures, error) { return r.measure(run) },
		})
	}
	return cells
}

// measure loads the program anew, for where it lies matters.
func (r *rateRuns) measure(run synRun) (f evaluation.Figures, err error) {
	b, err := r.bench(run.hash)
	if err != nil {
		return nil, err
	}
	frame := frameOf(flowsOf()[0], flagSYN, 1000, 0, nil)
	c := testCase{row: Row{Name: run.name, Hash: run.hash.String(), Family: int(cookie.IPv4)}, prog: run.prog, frame: frame, expect: xdpTX}
	loaded, err := b.loadOne(run.from, c.program())
	if err != nil {
		return nil, err
	}
	defer loaded.Close()
	c.from = &loaded
	runtime.LockOSThread() // whose CPU time is read
	defer runtime.UnlockOSThread()
	if err := c.measure(); err != nil {
		return nil, err
	}
	return evaluation.Figures{"ns_per_syn": c.ns[0]}, nil
}

func (r *rateRuns) bench(hash cookie.Hash) (*testBench, error) {
	if b := r.benches[hash]; b != nil {
		return b, nil
	}
	b, err := newTestBench(hash, nil)
	if err != nil {
		return nil, err
	}
	if r.benches == nil {
		r.benches = make(map[cookie.Hash]*testBench)
	}
	r.benches[hash] = b
	return b, nil
}

func (r *rateRuns) close() error {
	for _, b := range r.benches {
		b.close()
	}
	r.benches = nil
	return nil
}
