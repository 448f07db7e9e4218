// Package cookie is the reference model of the SYN cookie that
// contract/cookie.md specifies. It needs no kernel; every other implementation
// is checked against the vectors that it generates.
//
//	bit  31 | 30 ........... 26 | 25 ............................. 0
//	      P |  (code + H) mod 32 |  M
package cookie

//go:generate go run ./vectorgen ../../contract/vectors

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
)

// The layout of contract.h, enum cookie_layout.
const (
	macBits     = 26
	macMask     = 0x03ffffff
	codeMask    = 0x1f
	parityShift = 31
)

// Hash is the keyed hash of an epoch, by its number in contract.h.
type Hash uint8

// The hashes of enum cookie_hash. The zero Hash marks an empty slot.
const (
	SipHash     Hash = 1 // SipHash-2-4, the low 32 bits of its output
	HalfSipHash Hash = 2 // HalfSipHash-2-4
)

var hashNames = map[Hash]string{SipHash: "siphash-2-4", HalfSipHash: "halfsiphash-2-4"}

// ParseHash returns the hash of that name.
func ParseHash(name string) (Hash, error) {
	for h, n := range hashNames {
		if n == name {
			return h, nil
		}
	}
	return 0, fmt.Errorf("unknown hash %q: use %s or %s", name, SipHash, HalfSipHash)
}

func (h Hash) String() string {
	if name, ok := hashNames[h]; ok {
		return name
	}
	return fmt.Sprintf("hash %d", uint8(h))
}

// KeyLength is the length of an epoch's key in bytes.
func (h Hash) KeyLength() int {
	if h == HalfSipHash {
		return 8
	}
	return 16
}

// Key is the key of one epoch, K_e, in the byte order of the hash's reference
// code. HalfSipHash-2-4 uses the first 8 bytes, the others are zero. It never
// shows itself: not in a format, a log or JSON.
type Key [16]byte

const redacted = "[redacted]"

// Format writes a placeholder whatever the verb.
func (Key) Format(s fmt.State, _ rune) { fmt.Fprint(s, redacted) }

// LogValue returns a placeholder.
func (Key) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns a placeholder.
func (Key) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Slot is the key of one epoch with what goes with it (struct key_slot).
type Slot struct {
	Epoch       uint64
	Hash        Hash
	WindowScale uint8 // of the server, announced in the SYN-ACK
	Key         Key
}

// Family is the IP version of a flow: 4 or 6.
type Family uint8

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Flow is a connection as the client writes it: from Source, the client, to
// Destination, the protected service. Both addresses are of one family; an
// IPv4-mapped IPv6 address is IPv6, as it would be in a packet.
type Flow struct {
	Source, Destination netip.AddrPort
}

// Family returns the IP version of the flow.
func (f Flow) Family() Family {
	if f.Source.Addr().Is4() {
		return IPv4
	}
	return IPv6
}

// Message returns the bytes that the MAC covers, 15 for IPv4 and 39 for IPv6,
// for a client whose SYN has the sequence number isn.
func (f Flow) Message(isn uint32) []byte {
	m := appendAddress(make([]byte, 0, 40), f.Source.Addr())
	m = appendAddress(m, f.Destination.Addr())
	ports := uint32(f.Source.Port())<<16 | uint32(f.Destination.Port())
	m = binary.LittleEndian.AppendUint32(m, ports)
	m = binary.LittleEndian.AppendUint32(m, isn)
	return m[:len(m)-1] // the low 24 bits of the ISN
}

// appendAddress writes each 32-bit word of the address, the most significant
// word first, in little-endian order.
func appendAddress(m []byte, address netip.Addr) []byte {
	for words := address.AsSlice(); len(words) > 0; words = words[4:] {
		m = binary.LittleEndian.AppendUint32(m, binary.BigEndian.Uint32(words))
	}
	return m
}

// MAC returns T, the 32 bits from which the cookie's H and M are taken. The
// hash must be one of the two.
func MAC(hash Hash, key Key, flow Flow, isn uint32) uint32 {
	message := flow.Message(isn)
	switch hash {
	case SipHash:
		return uint32(SipHash24(key, message))
	case HalfSipHash:
		return HalfSipHash24([8]byte(key[:8]), message)
	}
	panic(fmt.Sprintf("cookie: %v makes no MAC", hash))
}

// Make returns the cookie, the initial sequence number of the SYN-ACK, for a
// SYN of the flow with sequence number isn. The code is 0 to 31.
func Make(slot Slot, flow Flow, isn uint32, code uint8) uint32 {
	mac := MAC(slot.Hash, slot.Key, flow, isn)
	parity := uint32(slot.Epoch & 1)
	field := (uint32(code) + mac>>macBits) & codeMask
	return parity<<parityShift | field<<macBits | mac&macMask
}

// Window says which epochs a receiver accepts, relative to its own.
type Window struct {
	Behind, Ahead uint64
}

// The windows of enum cookie_acceptance. The server's is the wider one, so
// that what an edge let through is not refused behind it.
var (
	EdgeWindow   = Window{Behind: 1, Ahead: 1}
	ServerWindow = Window{Behind: 2, Ahead: 1}
)

// candidates returns the epochs of the window around epoch that have the given
// parity, the nearest first and the past before the future. There is no epoch
// before 0.
func (w Window) candidates(epoch, parity uint64) []uint64 {
	var found []uint64
	for distance := range max(w.Behind, w.Ahead) + 1 {
		if (epoch^distance)&1 != parity {
			continue
		}
		if distance <= min(w.Behind, epoch) {
			found = append(found, epoch-distance)
		}
		if 0 < distance && distance <= w.Ahead {
			found = append(found, epoch+distance)
		}
	}
	return found
}

// Receiver is who checks a cookie: an edge or a server at one moment.
type Receiver struct {
	Epoch  uint64 // its own, now
	Window Window
	// Slot returns the slot in which the epoch's key belongs. One that holds
	// another epoch counts as empty.
	Slot func(epoch uint64) (Slot, bool)
}

// Check says whether the cookie is valid for a packet of the flow: the cookie
// is its acknowledgement number - 1, isn its sequence number - 1, both modulo
// 2^32. If so, it returns the code and the slot of the epoch that made it.
func (r Receiver) Check(cookie uint32, flow Flow, isn uint32) (code uint8, slot Slot, ok bool) {
	for _, e := range r.Window.candidates(r.Epoch, uint64(cookie>>parityShift)) {
		slot, ok := r.Slot(e)
		if !ok || slot.Hash == 0 || slot.Epoch != e {
			continue
		}
		mac := MAC(slot.Hash, slot.Key, flow, isn)
		if (mac^cookie)&macMask == 0 {
			return uint8((cookie>>macBits - mac>>macBits) & codeMask), slot, true
		}
	}
	return 0, Slot{}, false
}
