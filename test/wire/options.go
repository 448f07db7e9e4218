package wire

import (
	"encoding/binary"

	"smartcookie/internal/cookie"
)

// Kinds of TCP options (IANA).
const (
	optionEnd        = 0
	optionNOP        = 1
	optionMSS        = 2
	optionScale      = 3
	optionSACK       = 4
	optionTimestamps = 8
)

// Options are the options of a TCP header.
type Options struct {
	cookie.Options
	TSval, TSecr uint32
}

// ReadOptions reads them in any order. The last one of a kind counts, one of a
// wrong length does not, and nothing counts behind the end of the list or an
// option that does not fit it.
func ReadOptions(b []byte, flags Flags) Options {
	var o Options
	o.ECN = flags&(ECE|CWR) == ECE|CWR
	for len(b) > 0 && b[0] != optionEnd {
		if b[0] == optionNOP {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			break
		}
		o.take(b[0], b[2:b[1]])
		b = b[b[1]:]
	}
	return o
}

func (o *Options) take(kind byte, value []byte) {
	switch {
	case kind == optionMSS && len(value) == 2:
		o.MSS = binary.BigEndian.Uint16(value)
	case kind == optionScale && len(value) == 1:
		o.HasScale, o.Scale = true, value[0]
	case kind == optionSACK && len(value) == 0:
		o.SACK = true
	case kind == optionTimestamps && len(value) == 8:
		o.Timestamps = true
		o.TSval, o.TSecr = binary.BigEndian.Uint32(value), binary.BigEndian.Uint32(value[4:])
	}
}

// AnswerOptions writes the options of a SYN-ACK: at most 20 bytes, NOPs in the
// place of what was not agreed.
func AnswerOptions(o Options) []byte {
	b := binary.BigEndian.AppendUint16([]byte{optionMSS, 4}, o.MSS)
	scale := []byte{optionNOP, optionNOP, optionNOP, optionNOP}
	if o.HasScale {
		scale = []byte{optionNOP, optionScale, 3, o.Scale}
	}
	sack := []byte{optionNOP, optionNOP}
	if o.SACK {
		sack = []byte{optionSACK, 2}
	}
	if o.Timestamps {
		b = append(append(b, sack...), optionTimestamps, 10)
		b = binary.BigEndian.AppendUint32(b, o.TSval)
		b = binary.BigEndian.AppendUint32(b, o.TSecr)
		return append(b, scale...)
	}
	if o.SACK || o.HasScale {
		b = append(append(b, optionNOP, optionNOP), sack...)
		b = append(b, scale...)
	}
	return b
}
