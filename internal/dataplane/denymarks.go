package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
)

// The marks of the deny list (enum deny_mark): most sources that are not on it are
// known by them, without a walk of its tries.
const (
	markBlockWords = uint32(edgeDenyMarkMARK_BLOCK_WORDS)
	markKinds      = uint32(edgeDenyMarkMARK_KINDS)
	markWords      = uint32(edgeDenyMarkMARK_WORDS)
)

// marksOf are the bits of a prefix, by word. mark_hashed in sources.h looks for
// them alike.
func marksOf(p netip.Prefix, each func(word uint32, bits uint64)) {
	kind := uint32(edgeDenyMarkMARK_BLOCK4)
	switch length := p.Bits(); {
	case p.Addr().Is6():
		kind = uint32(min(length, 64)) / uint32(edgeDenyMarkMARK_STEP6)
		b := p.Addr().As16()
		fixed := ^(^uint64(0) >> (uint32(edgeDenyMarkMARK_STEP6) * kind))
		each(hashedMark(binary.BigEndian.Uint64(b[:])&fixed, kind))
	case length == 32:
		kind = uint32(edgeDenyMarkMARK_HOST4)
		b := p.Addr().As4()
		each(hashedMark(uint64(binary.BigEndian.Uint32(b[:])), kind))
	default:
		markBlocks(p, each)
	}
	each(markKinds, 1<<kind)
}

// markBlocks marks each block of /24 that the prefix touches.
func markBlocks(p netip.Prefix, each func(word uint32, bits uint64)) {
	b := p.Addr().As4()
	first := binary.BigEndian.Uint32(b[:]) >> 8
	count := uint32(1) << max(24-p.Bits(), 0)
	if count > 64 {
		for word := range count / 64 {
			each(first/64+word, ^uint64(0))
		}
		return
	}
	each(first/64, (1<<count-1)<<(first%64))
}

func hashedMark(bits uint64, kind uint32) (word uint32, three uint64) {
	const odd = 0x9e3779b97f4a7c15
	h := (bits ^ uint64(kind)) * odd
	h = (h ^ h>>32) * odd
	return markBlockWords + uint32(h>>(64-edgeDenyMarkMARK_HASH_BITS)), 1<<(h>>18&63) | 1<<(h>>24&63) | 1<<(h>>30&63)
}

// mark marks prefixes, before a trie has them.
func (l *Lists) mark(prefixes []netip.Prefix) error {
	memory, err := l.marks.Memory()
	if err != nil {
		return fmt.Errorf("map %s: %w", marksPin, err)
	}
	for _, p := range prefixes {
		marksOf(p, func(word uint32, bits uint64) {
			var b [8]byte
			if _, e := memory.ReadAt(b[:], int64(word)*8); e != nil {
				err = e
			}
			binary.NativeEndian.PutUint64(b[:], binary.NativeEndian.Uint64(b[:])|bits)
			if _, e := memory.WriteAt(b[:], int64(word)*8); e != nil {
				err = e
			}
		})
		if err != nil {
			return fmt.Errorf("mark %s: %w", p, err)
		}
	}
	return nil
}

// markSet is the marks that a version of the lists needs.
type markSet struct {
	version uint32
	bytes   []byte // nil: nobody wants to know
}

func (s *markSet) add(p netip.Prefix) {
	if s.bytes == nil {
		return
	}
	marksOf(p, func(word uint32, bits uint64) {
		at := s.bytes[8*word:]
		binary.NativeEndian.PutUint64(at, binary.NativeEndian.Uint64(at)|bits)
	})
}

// marksToFind is an empty set for the lists as they are, or none if nobody has
// written since the last one was kept.
func (l *Lists) marksToFind() (*markSet, error) {
	release, err := l.exclusive() // who writes has raised the version afterwards
	if err != nil {
		return nil, err
	}
	defer release()
	state, err := l.readState()
	if err != nil || state.Version == l.swept {
		return &markSet{}, err
	}
	return &markSet{state.Version, make([]byte, 8*markWords)}, nil
}

// keepMarks removes the marks that are not in the set, unless somebody has written
// since: then the next sweep does. A packet may find some words old and some new, and
// either have the marks of all that is on the list.
func (l *Lists) keepMarks(needed *markSet) error {
	if needed.bytes == nil {
		return nil
	}
	release, err := l.exclusive()
	if err != nil {
		return err
	}
	defer release()
	state, err := l.readState()
	if err != nil || state.Version != needed.version {
		return err
	}
	memory, err := l.marks.Memory()
	if err != nil {
		return fmt.Errorf("map %s: %w", marksPin, err)
	}
	have := make([]byte, len(needed.bytes))
	if _, err := memory.ReadAt(have, 0); err != nil {
		return fmt.Errorf("read %s: %w", marksPin, err)
	}
	if !bytes.Equal(have, needed.bytes) {
		if _, err := memory.WriteAt(needed.bytes, 0); err != nil {
			return fmt.Errorf("write %s: %w", marksPin, err)
		}
	}
	l.swept = state.Version
	return nil
}
