package keys

import "encoding/binary"

// ControlPeriodSeconds is CONTROL_PERIOD_SECONDS of contract.h. It is the same
// whatever the epoch's length, so that halves that disagree on that can say so.
const ControlPeriodSeconds = 64

// Direction says who sends a control message.
type Direction byte

// The directions, as in contract.h.
const (
	ToAgent Direction = 1
	ToEdge  Direction = 2
)

// ControlKey derives the key of contract/control.md between an edge and an
// agent for a period, from the entry that is in force when the period begins.
func (f *File) ControlKey(domain string, to Direction, edge, agent uint32, period uint64) (key [16]byte, ok bool) {
	e, ok := f.EntryAt(domain, period*ControlPeriodSeconds/uint64(f.EpochSeconds))
	if !ok {
		return key, false
	}
	info := append(make([]byte, 0, 40), "smartcookie/1 control"...)
	info = append(info, byte(to))
	info = binary.BigEndian.AppendUint32(info, edge)
	info = binary.BigEndian.AppendUint32(info, agent)
	info = binary.BigEndian.AppendUint64(info, period)
	copy(key[:], e.Secret.expand(string(info), len(key)))
	return key, true
}

// Fingerprint identifies all that a domain's file says of a period and later,
// and reveals no key: two halves agree if theirs are equal.
func (f *File) Fingerprint(domain string, period uint64) uint64 {
	first := period * ControlPeriodSeconds / uint64(f.EpochSeconds)
	h := fnvOffset
	for i, e := range f.Domains[domain] {
		later := f.Domains[domain][i+1:]
		if len(later) > 0 && later[0].FromEpoch <= first {
			continue // over, and another host may have removed it
		}
		b := binary.BigEndian.AppendUint32(nil, e.ID)
		if e.FromEpoch > first {
			b = binary.BigEndian.AppendUint64(b, e.FromEpoch)
		}
		b = append(b, byte(e.Hash), e.WindowScale)
		h = fnv(fnv(h, b), e.Secret.expand("smartcookie/1 fingerprint", 8))
	}
	return h
}

// FNV-1a, 64 bits: against accidents, not attackers, who see no key in it.
const (
	fnvOffset uint64 = 0xcbf29ce484222325
	fnvPrime  uint64 = 0x100000001b3
)

func fnv(h uint64, b []byte) uint64 {
	for _, c := range b {
		h = (h ^ uint64(c)) * fnvPrime
	}
	return h
}
