// Package control carries what the halves tell each other: heartbeats,
// listeners and established flows, in authenticated UDP messages. The protocol
// is that of contract/control.md.
package control

import (
	"crypto/subtle"
	"encoding/binary"
	"net/netip"

	"smartcookie/internal/cookie"
	"smartcookie/internal/keys"
)

// Layout, limits and flags, as in contract.h.
const (
	version       = 0xc1
	headerBytes   = 40
	tagBytes      = 8
	messageBytes  = 1400
	helloBytes    = 24
	stateBytes    = 24
	flowsBytes    = 8
	periodsBehind = 2
	periodsAhead  = 1
	windowSize    = 1024
	bodyBytes     = messageBytes - headerBytes - tagBytes

	listener4Bytes, listener6Bytes = 6, 18
	group4Bytes, group6Bytes       = 8, 20
)

// Kind says what a message is.
type Kind uint8

// The kinds, as in contract.h.
const (
	KindHello   Kind = 1
	KindState   Kind = 2
	KindFlows   Kind = 3
	KindSetup   Kind = 4
	KindConfirm Kind = 5
	KindProbe   Kind = 6
)

// Flags of the kinds.
const (
	helloWantsAll uint16 = 1
	helloEnforces uint16 = 2

	stateStrict     uint16 = 1
	stateOff        uint16 = 2
	stateAnyListens uint16 = 4

	flowsLast uint16 = 1
)

// Header begins every message.
type Header struct {
	Kind    Kind
	Flags   uint16
	Sender  uint32
	Period  uint64
	Session uint64 // of the sender
	Echo    uint64 // the receiver's session, as far as the sender knows it
	Counter uint64
}

// seal makes a message: header, body and tag.
func seal(key [16]byte, h Header, body []byte) []byte {
	m := make([]byte, 0, headerBytes+len(body)+tagBytes)
	m = append(m, version, byte(h.Kind))
	m = binary.BigEndian.AppendUint16(m, h.Flags)
	m = binary.BigEndian.AppendUint32(m, h.Sender)
	for _, word := range []uint64{h.Period, h.Session, h.Echo, h.Counter} {
		m = binary.BigEndian.AppendUint64(m, word)
	}
	m = append(m, body...)
	return binary.BigEndian.AppendUint64(m, cookie.SipHash24(key, m))
}

// open reads the header of a message of bearable length and version. Nothing
// in it can be believed before authentic has said so.
func open(m []byte) (h Header, body []byte, refusal Event) {
	if len(m) < headerBytes+tagBytes || len(m) > messageBytes {
		return h, nil, RefusedLength
	}
	if m[0] != version {
		return h, nil, RefusedVersion
	}
	h = Header{
		Kind:    Kind(m[1]),
		Flags:   binary.BigEndian.Uint16(m[2:]),
		Sender:  binary.BigEndian.Uint32(m[4:]),
		Period:  binary.BigEndian.Uint64(m[8:]),
		Session: binary.BigEndian.Uint64(m[16:]),
		Echo:    binary.BigEndian.Uint64(m[24:]),
		Counter: binary.BigEndian.Uint64(m[32:]),
	}
	return h, m[headerBytes : len(m)-tagBytes], accepted
}

// authentic compares the tag in a time that does not depend on it.
func authentic(key [16]byte, m []byte) bool {
	var want [tagBytes]byte
	binary.BigEndian.PutUint64(want[:], cookie.SipHash24(key, m[:len(m)-tagBytes]))
	return subtle.ConstantTimeCompare(want[:], m[len(m)-tagBytes:]) == 1
}

// Hello is the body of KindHello.
type Hello struct {
	ClockNS      uint64 // real time, as epochs are counted
	Fingerprint  uint64 // of the domain's keys
	GenerationMS uint32 // of the edge's filter
	EpochSeconds uint8
	Scale        uint8
	MSS          uint16 // the largest that the edge answers with over IPv4
	WantsAll     bool
	Enforces     bool
}

func (h *Hello) encode() (flags uint16, body []byte) {
	if h.WantsAll {
		flags |= helloWantsAll
	}
	if h.Enforces {
		flags |= helloEnforces
	}
	b := binary.BigEndian.AppendUint64(nil, h.ClockNS)
	b = binary.BigEndian.AppendUint64(b, h.Fingerprint)
	b = binary.BigEndian.AppendUint32(b, h.GenerationMS)
	b = append(b, h.EpochSeconds, h.Scale)
	return flags, binary.BigEndian.AppendUint16(b, h.MSS)
}

func decodeHello(flags uint16, b []byte) (h Hello, ok bool) {
	if len(b) != helloBytes || flags&^(helloWantsAll|helloEnforces) != 0 {
		return h, false
	}
	return Hello{
		ClockNS:      binary.BigEndian.Uint64(b),
		Fingerprint:  binary.BigEndian.Uint64(b[8:]),
		GenerationMS: binary.BigEndian.Uint32(b[16:]),
		EpochSeconds: b[20],
		Scale:        b[21],
		MSS:          binary.BigEndian.Uint16(b[22:]),
		WantsAll:     flags&helloWantsAll != 0,
		Enforces:     flags&helloEnforces != 0,
	}, true
}

// State is the body of KindState.
type State struct {
	ClockNS      uint64
	Fingerprint  uint64
	EpochSeconds uint8
	Scale        uint8
	MTU          uint16 // the smallest of the agent's interfaces
	Strict       bool
	Off          bool // every service of the agent is off
	AnyListens   bool // more listeners than fit
	Listeners    []netip.AddrPort
}

func (s *State) encode() (flags uint16, body []byte) {
	for flag, set := range map[uint16]bool{stateStrict: s.Strict, stateOff: s.Off, stateAnyListens: s.AnyListens} {
		if set {
			flags |= flag
		}
	}
	b := binary.BigEndian.AppendUint64(nil, s.ClockNS)
	b = binary.BigEndian.AppendUint64(b, s.Fingerprint)
	b = append(b, s.EpochSeconds, s.Scale)
	b = binary.BigEndian.AppendUint16(b, s.MTU)
	var lists [2][]byte
	var counts [2]uint16
	for _, l := range s.Listeners {
		i := 0
		if !l.Addr().Is4() {
			i = 1
		}
		lists[i] = appendEnd(lists[i], l)
		counts[i]++
	}
	if stateBytes+len(lists[0])+len(lists[1]) > bodyBytes { // fail open: every port counts as listening
		flags |= stateAnyListens
		lists, counts = [2][]byte{}, [2]uint16{}
	}
	b = binary.BigEndian.AppendUint16(b, counts[0])
	b = binary.BigEndian.AppendUint16(b, counts[1])
	return flags, append(append(b, lists[0]...), lists[1]...)
}

func decodeState(flags uint16, b []byte) (s State, ok bool) {
	if len(b) < stateBytes || flags&^(stateStrict|stateOff|stateAnyListens) != 0 {
		return s, false
	}
	s = State{
		ClockNS:      binary.BigEndian.Uint64(b),
		Fingerprint:  binary.BigEndian.Uint64(b[8:]),
		EpochSeconds: b[16],
		Scale:        b[17],
		MTU:          binary.BigEndian.Uint16(b[18:]),
		Strict:       flags&stateStrict != 0,
		Off:          flags&stateOff != 0,
		AnyListens:   flags&stateAnyListens != 0,
	}
	n4, n6 := int(binary.BigEndian.Uint16(b[20:])), int(binary.BigEndian.Uint16(b[22:]))
	b = b[stateBytes:]
	if len(b) != n4*listener4Bytes+n6*listener6Bytes {
		return s, false
	}
	for ; n4 > 0; n4-- {
		s.Listeners = append(s.Listeners, end4(b))
		b = b[listener4Bytes:]
	}
	for ; n6 > 0; n6-- {
		s.Listeners = append(s.Listeners, end6(b))
		b = b[listener6Bytes:]
	}
	return s, true
}

// appendEnd writes an address and a port.
func appendEnd(b []byte, end netip.AddrPort) []byte {
	return binary.BigEndian.AppendUint16(append(b, end.Addr().AsSlice()...), end.Port())
}

func end4(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), binary.BigEndian.Uint16(b[4:]))
}

func end6(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)), binary.BigEndian.Uint16(b[16:]))
}

// ControlKeys is what an endpoint needs of the key file and the clock.
type ControlKeys interface {
	// NowNS is the real time of which epochs and periods are made.
	NowNS() uint64
	// Key is the key between an edge and an agent for a period.
	Key(domain string, to keys.Direction, edge, agent uint32, period uint64) ([16]byte, bool)
	// Agreement is what both halves should have in common.
	Agreement(domain string, period uint64) Agreement
}

// Agreement is that part of a key file on which both halves must agree.
type Agreement struct {
	Fingerprint  uint64
	EpochSeconds uint8
	Scale        uint8
}

func periodOf(nowNS uint64) uint64 { return nowNS / (keys.ControlPeriodSeconds * 1e9) }
