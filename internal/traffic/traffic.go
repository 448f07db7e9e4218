// Package traffic says when benign connections begin and how much they carry: by a
// distribution that a file describes, or as a capture has it. An experiment asks a
// source for a schedule and replays that.
package traffic

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"
)

// Flow is a connection: when it begins, and how many bytes its server sends.
type Flow struct {
	Start time.Duration `json:"start"`
	Bytes int64         `json:"bytes"`
}

// Schedule is in the order in which its flows begin.
type Schedule []Flow

// Bytes is what all flows carry.
func (s Schedule) Bytes() (total int64) {
	for _, f := range s {
		total += f.Bytes
	}
	return total
}

// Want is what a schedule is to be like. The same source makes the same schedule
// of the same wishes.
type Want struct {
	Rate     float64 // flows per second; 0: the source's own
	Duration time.Duration
	Seed     uint64
}

// Source is where schedules come from.
type Source interface {
	Name() string
	Rate() float64      // flows per second, by itself
	MeanBytes() float64 // of a flow
	Schedule(Want) (Schedule, error)
}

// flowsLimit bounds a schedule and what is remembered of a trace.
const flowsLimit = 1 << 20

// check refuses what would not fit, before any of it is made.
func (w Want) check(own float64) (rate float64, err error) {
	rate = w.Rate
	if rate == 0 {
		rate = own
	}
	switch n := rate * w.Duration.Seconds(); {
	case !(rate > 0) || w.Duration <= 0:
		return 0, fmt.Errorf("a schedule of %v with %v flows per second: both have to be more than 0", w.Duration, rate)
	case n > flowsLimit/2: // arrivals vary
		return 0, fmt.Errorf("a schedule of %.0f flows: at most %d; choose a lower rate or a shorter time", n, flowsLimit/2)
	}
	return rate, nil
}

// Describe is one line for a report.
func Describe(s Source) string {
	return fmt.Sprintf("%s: %s flows/s, %s kB each in the mean", s.Name(), digits(s.Rate()), digits(s.MeanBytes()/1000))
}

// digits has three, or all before the point.
func digits(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// Open reads a source from a file: a capture (pcap or pcapng), or else a
// distribution.
func Open(path string) (Source, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the traffic: %w", err)
	}
	defer file.Close()
	source, err := read(path, file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return source, nil
}

// distributionLimit is more than any such file needs.
const distributionLimit = 1 << 20

func read(name string, r io.Reader) (Source, error) {
	in := bufio.NewReader(r)
	magic, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch kindOf(magic) {
	case captured:
		return readTrace(name, in, false)
	case capturedNext:
		return readTrace(name, in, true)
	case zipped:
		return nil, errors.New("compressed: unpack it first")
	}
	text, err := io.ReadAll(io.LimitReader(in, distributionLimit+1))
	if err != nil {
		return nil, err
	}
	if len(text) > distributionLimit || bytes.IndexByte(text, 0) >= 0 {
		return nil, errors.New("neither a capture (pcap, pcapng) nor a description of traffic")
	}
	return readDistribution(text)
}

// kind is what a file's first bytes say.
type kind int

const (
	described    kind = iota
	captured          // pcap
	capturedNext      // pcapng
	zipped
)

func kindOf(magic []byte) kind {
	switch {
	case bytes.HasPrefix(magic, []byte{0x0a, 0x0d, 0x0d, 0x0a}):
		return capturedNext
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}), bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), bytes.HasPrefix(magic, []byte{0xfd, '7', 'z'}):
		return zipped
	}
	for _, pcap := range [][]byte{{0xa1, 0xb2, 0xc3, 0xd4}, {0xd4, 0xc3, 0xb2, 0xa1}, {0xa1, 0xb2, 0x3c, 0x4d}, {0x4d, 0x3c, 0xb2, 0xa1}} {
		if bytes.Equal(magic, pcap) {
			return captured
		}
	}
	return described
}
