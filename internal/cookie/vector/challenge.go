package vector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"

	"smartcookie/internal/cookie"
)

// ChallengeFile is the content of challenge.json.
type ChallengeFile struct {
	About   []string    `json:"about"`
	Vectors []Challenge `json:"vectors"`
}

// Challenge is one SYN, the number that answers it, and one RST that comes back
// to an edge.
type Challenge struct {
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
	Message         Bytes      `json:"message"`
	MAC             Word       `json:"mac"`
	Challenge       Word       `json:"challenge"`
	Receiver        Receiver   `json:"receiver"`
	ResetSeq        Word       `json:"reset_seq"`
	Expect          string     `json:"expect"`
}

var aboutChallenges = []string{
	"Test vectors of contract/challenge.md, generated from the reference model: go generate ./internal/cookie.",
	"key is the key of the epoch itself (K_e); key and message are bytes in hex, words are integers.",
	"challenge is the acknowledgement number that answers a SYN with sequence number isn.",
	"reset_seq is the sequence number of a RST of the same flow to receiver, which has the listed keys and no others.",
}

// Valid says whether the receiver must accept the RST.
func (c Challenge) Valid() bool { return c.Expect == valid }

// Flow returns the vector's flow.
func (c Challenge) Flow() cookie.Flow {
	return cookie.Flow{
		Source:      netip.AddrPortFrom(c.Source, c.SourcePort),
		Destination: netip.AddrPortFrom(c.Destination, c.DestinationPort),
	}
}

// ParseChallenges reads a challenge.json.
func ParseChallenges(text []byte) (ChallengeFile, error) {
	var f ChallengeFile
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return ChallengeFile{}, fmt.Errorf("parse challenges: %w", err)
	}
	return f, nil
}

// Text returns the file's content, always the same for the same vectors.
func (f ChallengeFile) Text() ([]byte, error) {
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write challenges: %w", err)
	}
	return append(text, '\n'), nil
}

// GenerateChallenges makes all vectors, the same ones each time.
func GenerateChallenges() ChallengeFile {
	f := ChallengeFile{About: aboutChallenges}
	for _, drafts := range [][]draft{usualChallenges(), nearChallenges(), oldChallenges(), damagedChallenges()} {
		for _, d := range drafts {
			f.Vectors = append(f.Vectors, d.challenge())
		}
	}
	return f
}

// challenge makes the vector: packet.isn is what the RST differs by, in bits.
func (d draft) challenge() Challenge {
	made := cookie.MakeChallenge(d.made, d.flow, d.isn)
	v := Challenge{
		Name: "challenge-" + d.name, Family: fmt.Sprintf("ipv%d", d.flow.Family()),
		Hash: d.made.Hash.String(), Key: d.made.Key[:d.made.Hash.KeyLength()], Epoch: d.made.Epoch,
		Source: d.flow.Source.Addr(), SourcePort: d.flow.Source.Port(),
		Destination: d.flow.Destination.Addr(), DestinationPort: d.flow.Destination.Port(),
		ISN: Word(d.isn), Message: d.flow.ChallengeMessage(),
		MAC:       Word(cookie.ChallengeMAC(d.made.Hash, d.made.Key, d.flow)),
		Challenge: Word(made), ResetSeq: Word(made ^ d.packet.isn),
		Receiver: Receiver{Role: edge, Epoch: d.epoch, Slots: []Slot{}}, Expect: valid,
	}
	for _, s := range d.slots {
		v.Receiver.Slots = append(v.Receiver.Slots, Slot{s.Epoch, s.Hash.String(), s.Key[:s.Hash.KeyLength()]})
	}
	if d.rejected {
		v.Expect = invalid
	}
	return v
}

func usualChallenges() (drafts []draft) {
	for _, family := range families {
		for _, hash := range hashes {
			for n := range 4 {
				drafts = append(drafts, newDraft(fmt.Sprintf("ipv%d-%s-%d", family, hash, n), family, hash))
			}
		}
	}
	return drafts
}

// nearChallenges has SYNs that the usual number would acknowledge, or nearly.
func nearChallenges() (drafts []draft) {
	for i, behind := range []uint32{0, 1, 2, 1461, 0xffff, 0x10000, 0xffffffff} {
		d := newDraft(fmt.Sprintf("isn-plus-%#x", behind), families[i%2], hashes[i/2%2])
		mac := cookie.ChallengeMAC(d.made.Hash, d.made.Key, d.flow)
		d.isn = uint32(d.made.Epoch&1)<<31 | mac&0x7fffffff - behind
		drafts = append(drafts, d)
	}
	return drafts
}

func oldChallenges() (drafts []draft) {
	for i, family := range families {
		for age := -3; age <= 3; age++ {
			d := newDraft(fmt.Sprintf("ipv%d-of-epoch%+d", family, -age), family, hashes[i])
			d.epoch = d.made.Epoch + uint64(age)
			d.rejected = age < -1 || age > 1
			drafts = append(drafts, d)
		}
	}
	missing := newDraft("receiver-has-no-key", cookie.IPv4, cookie.SipHash).refused()
	missing.slots = nil
	foreign := newDraft("receiver-has-another-key", cookie.IPv6, cookie.SipHash).refused()
	foreign.slots = []cookie.Slot{newDraft("another key", cookie.IPv6, cookie.SipHash).made}
	foreign.slots[0].Epoch = foreign.made.Epoch
	return append(drafts, missing, foreign)
}

// damagedChallenges has every bit wrong: the code's highest one may be either.
func damagedChallenges() (drafts []draft) {
	for bit := range 32 {
		d := newDraft(fmt.Sprintf("bit-%d-differs", bit), families[bit%2], hashes[bit/2%2])
		d.packet.isn = 1 << bit
		d.rejected = bit != 30
		drafts = append(drafts, d)
	}
	return drafts
}
