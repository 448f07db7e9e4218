// Package vector has the test vectors of the cookie: their form in
// contract/vectors/cookie.json, and how they are made from the model.
package vector

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"

	"smartcookie/internal/cookie"
)

// File is the content of cookie.json.
type File struct {
	About   []string `json:"about"`
	Vectors []Vector `json:"vectors"`
}

// Vector is one SYN, the cookie that answers it, and one packet that returns
// the cookie to a receiver.
type Vector struct {
	Name            string     `json:"name"`
	Family          string     `json:"family"`
	Hash            string     `json:"hash"`
	Key             Bytes      `json:"key"`
	Epoch           uint64     `json:"epoch"`
	Source          netip.Addr `json:"source"`
	SourcePort      uint16     `json:"source_port"`
	Destination     netip.Addr `json:"destination"`
	DestinationPort uint16     `json:"destination_port"`
	ISN             Word       `json:"isn"`
	SYN             Options    `json:"syn"`
	SYNOptions      Bytes      `json:"syn_options"`
	Offer           Offer      `json:"offer"`
	Message         Bytes      `json:"message"`
	MAC             Word       `json:"mac"`
	Code            uint8      `json:"code"`
	Cookie          Word       `json:"cookie"`
	TSvalBits       *uint8     `json:"tsval_bits"`
	Receiver        Receiver   `json:"receiver"`
	Packet          Packet     `json:"packet"`
	Expect          string     `json:"expect"`
	Decoded         *Options   `json:"decoded"`
}

// Valid says whether the receiver must accept the packet.
func (v Vector) Valid() bool { return v.Expect == valid }

const (
	valid   = "valid"
	invalid = "invalid"
)

// Options are TCP options and ECN; an absent option is nil.
type Options struct {
	MSS         *uint16 `json:"mss"`
	Timestamps  bool    `json:"timestamps"`
	SACK        bool    `json:"sack"`
	WindowScale *uint8  `json:"window_scale"`
	ECN         bool    `json:"ecn"`
}

// Offer says which options the service agrees to.
type Offer struct {
	Timestamps  bool `json:"timestamps"`
	SACK        bool `json:"sack"`
	WindowScale bool `json:"window_scale"`
	ECN         bool `json:"ecn"`
}

// Receiver is who checks: role "edge" or "server", its own epoch, and the only
// keys that it has.
type Receiver struct {
	Role  string `json:"role"`
	Epoch uint64 `json:"epoch"`
	Slots []Slot `json:"slots"`
}

// Slot is the key of one epoch.
type Slot struct {
	Epoch uint64 `json:"epoch"`
	Hash  string `json:"hash"`
	Key   Bytes  `json:"key"`
}

// Packet is the one that returns the cookie: its header's sequence and
// acknowledgement numbers, and its timestamp echo, nil without the option.
type Packet struct {
	Seq   Word  `json:"seq"`
	Ack   Word  `json:"ack"`
	TSecr *Word `json:"tsecr"`
}

// Word is a 32-bit integer, written like 0x89abcdef.
type Word uint32

// MarshalText writes the word.
func (w Word) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%#08x", uint32(w)), nil }

// UnmarshalText reads what MarshalText writes.
func (w *Word) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 0, 32)
	*w = Word(v)
	return err
}

// Bytes are written in hex, in the order of memory.
type Bytes []byte

// MarshalText writes the bytes.
func (b Bytes) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, b), nil }

// UnmarshalText reads what MarshalText writes.
func (b *Bytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.AppendDecode([]byte{}, text)
	return err
}

// Parse reads a cookie.json.
func Parse(text []byte) (File, error) {
	var f File
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return File{}, fmt.Errorf("parse vectors: %w", err)
	}
	return f, nil
}

// Text returns the file's content, always the same for the same vectors.
func (f File) Text() ([]byte, error) {
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write vectors: %w", err)
	}
	return append(text, '\n'), nil
}

// Flow returns the vector's flow.
func (v Vector) Flow() cookie.Flow {
	return cookie.Flow{
		Source:      netip.AddrPortFrom(v.Source, v.SourcePort),
		Destination: netip.AddrPortFrom(v.Destination, v.DestinationPort),
	}
}
