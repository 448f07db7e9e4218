package evaluation

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// cellsFile has a line for each cell that has been measured, behind a line that
// says of which run they are.
const cellsFile = "cells.jsonl"

// ErrOtherRun says that a directory has a run that this one is no part of.
var ErrOtherRun = errors.New("another run's directory; choose another one, or remove it")

// header tells whether cells of an earlier start belong to this run.
type header struct {
	Schema  int       `json:"schema"`
	Effort  string    `json:"effort"`
	Traffic string    `json:"traffic"`
	Machine Machine   `json:"machine"`
	Started time.Time `json:"started"`
}

// record is a cell's line.
type record struct {
	Experiment string `json:"experiment"`
	CellID
	Figures Figures `json:"figures,omitempty"`
	Absent  string  `json:"absent,omitempty"` // why the subject is not there
	Seconds float64 `json:"seconds"`
}

// store keeps cells as they are measured.
type store struct {
	header header
	file   *os.File
	kept   map[string]Taken             // by experiment
	absent map[string]map[string]string // why, by experiment and subject
	asked  map[string]map[string]bool   // of the absent, those of this start: others may have come since
}

// openStore begins a run in a directory, or takes up the one that is there.
func openStore(dir string, want header) (*store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the output's directory: %w", err)
	}
	s := &store{kept: make(map[string]Taken), absent: make(map[string]map[string]string), asked: make(map[string]map[string]bool)}
	file, err := os.OpenFile(filepath.Join(dir, cellsFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the cells: %w", err)
	}
	s.file = file
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: another run is at work in this directory: %w", file.Name(), err), file.Close())
	}
	if err := s.read(want); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", file.Name(), err), file.Close())
	}
	return s, nil
}

// read takes what is there. A line that was being written when the run ended is
// cut off.
func (s *store) read(want header) error {
	lines, whole := bufio.NewReader(s.file), int64(0)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // the end, or half a line
		}
		if whole == 0 {
			err = s.readHeader(line, want)
		} else {
			err = s.readRecord(line)
		}
		if err != nil {
			return err
		}
		whole += int64(len(line))
	}
	if err := s.file.Truncate(whole); err != nil {
		return err
	}
	if _, err := s.file.Seek(whole, 0); err != nil {
		return err
	}
	if whole > 0 {
		return nil
	}
	s.header = want
	return s.append(want)
}

func (s *store) readHeader(line []byte, want header) error {
	if err := json.Unmarshal(line, &s.header); err != nil {
		return fmt.Errorf("its first line: %w", err)
	}
	for _, part := range []struct {
		name      string
		was, want any
	}{
		{"schema", s.header.Schema, want.Schema}, {"effort", s.header.Effort, want.Effort},
		{"benign traffic", s.header.Traffic, want.Traffic}, {"machine or build", s.header.Machine, want.Machine},
	} {
		if part.was != part.want {
			return fmt.Errorf("%w: its %s is %v, not %v", ErrOtherRun, part.name, part.was, part.want)
		}
	}
	return nil
}

func (s *store) readRecord(line []byte) error {
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("a cell: %w", err)
	}
	s.take(r)
	return nil
}

func (s *store) take(r record) {
	if r.Absent != "" {
		if s.absent[r.Experiment] == nil {
			s.absent[r.Experiment] = make(map[string]string)
		}
		s.absent[r.Experiment][r.Subject] = r.Absent
		return
	}
	if s.kept[r.Experiment] == nil {
		s.kept[r.Experiment] = make(Taken)
	}
	delete(s.absent[r.Experiment], r.Subject)
	s.kept[r.Experiment][r.CellID] = r.Figures
}

// keep writes a cell down before the next one begins.
func (s *store) keep(r record) error {
	s.take(r)
	if r.Absent != "" {
		if s.asked[r.Experiment] == nil {
			s.asked[r.Experiment] = make(map[string]bool)
		}
		s.asked[r.Experiment][r.Subject] = true
	}
	return s.append(r)
}

func (s *store) append(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if _, err := s.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// knows tells whether anything of an experiment is kept.
func (s *store) knows(experiment string) bool {
	return len(s.kept[experiment]) > 0 || len(s.absent[experiment]) > 0
}

// has tells whether a cell need not be measured any more in this start.
func (s *store) has(experiment string, id CellID) bool {
	_, ok := s.kept[experiment][id]
	return ok || s.asked[experiment][id.Subject]
}

// done tells whether a cell is measured, or nothing is there to be measured.
func (s *store) done(experiment string, id CellID) bool {
	_, absent := s.absent[experiment][id.Subject]
	return absent || s.has(experiment, id)
}
