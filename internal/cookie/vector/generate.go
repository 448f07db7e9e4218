package vector

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"

	"smartcookie/internal/cookie"
)

var about = []string{
	"Test vectors of contract/cookie.md, generated from the reference model: go generate ./internal/cookie.",
	"key is the key of the epoch itself (K_e); key, message and syn_options are bytes in hex, words are integers.",
	"syn is what the client asks for (ecn: ECE and CWR), syn_options the same as TCP option bytes, offer what the service agrees to; null: no such option.",
	"message, mac, code, cookie and tsval_bits (null: no timestamps in the SYN-ACK) are the edge's for that SYN.",
	"packet returns a cookie to receiver, which has the listed keys and no others; timestamps are on it unless tsecr is null.",
	"decoded is what the receiver learns of the client if expect is valid, and null if it is invalid.",
}

// draft is what has to be chosen for a vector; the model computes the rest.
type draft struct {
	name    string
	made    cookie.Slot
	flow    cookie.Flow
	isn     uint32
	syn     cookie.Options
	zeroMSS bool // the SYN has an MSS option of value 0, not none
	offer   cookie.Offer

	role     string
	epoch    uint64 // of the receiver
	slots    []cookie.Slot
	packet   struct{ isn, cookie uint32 } // added to those of the SYN and SYN-ACK
	tsecr    uint32                       // without the low six bits
	rejected bool
}

// The other options of most vectors, by what the client's system sends.
var (
	linux   = cookie.Options{MSS: 1460, Timestamps: true, SACK: true, HasScale: true, Scale: 7}
	windows = cookie.Options{MSS: 1460, SACK: true, HasScale: true, Scale: 8}
)

const (
	edge   = "edge"
	server = "server"
)

// newDraft chooses a key, an epoch, a flow and an ISN by the vector's name, so
// that all vectors differ and none depends on another.
func newDraft(name string, family cookie.Family, hash cookie.Hash) draft {
	seed := sha256.Sum256([]byte(name))
	flow := sha256.Sum256(seed[:])
	d := draft{
		name:  name,
		made:  cookie.Slot{Epoch: 200_000_000 + uint64(binary.BigEndian.Uint16(seed[20:])), Hash: hash},
		flow:  newFlow(family, flow[:]),
		isn:   binary.BigEndian.Uint32(seed[16:]),
		syn:   linux,
		offer: cookie.OfferAll,
		role:  edge,
		tsecr: 0x5eed5ec0,
	}
	copy(d.made.Key[:hash.KeyLength()], seed[:])
	d.epoch = d.made.Epoch
	d.slots = []cookie.Slot{d.made}
	return d
}

// newFlow chooses addresses of the documentation prefixes (RFC 5737, RFC 3849).
func newFlow(family cookie.Family, seed []byte) cookie.Flow {
	source, destination := [16]byte{0x20, 0x01, 0x0d, 0xb8}, [16]byte{0x20, 0x01, 0x0d, 0xb8}
	copy(source[4:], seed[:12])
	copy(destination[4:], seed[12:24])
	a, b := netip.AddrFrom16(source), netip.AddrFrom16(destination)
	if family == cookie.IPv4 {
		a = netip.AddrFrom4([4]byte{192, 0, 2, seed[0]})
		b = netip.AddrFrom4([4]byte{198, 51, 100, seed[1]})
	}
	return cookie.Flow{
		Source:      netip.AddrPortFrom(a, binary.BigEndian.Uint16(seed[24:])|1024),
		Destination: netip.AddrPortFrom(b, binary.BigEndian.Uint16(seed[26:])|1),
	}
}

// refused marks the packet as one that the receiver must not accept.
func (d draft) refused() draft {
	d.rejected = true
	return d
}

func (d draft) vector() Vector {
	record := cookie.Encode(d.flow.Family(), d.syn, d.offer)
	made := cookie.Make(d.made, d.flow, d.isn, record.Code)
	v := Vector{
		Name:            d.name,
		Family:          fmt.Sprintf("ipv%d", d.flow.Family()),
		Hash:            d.made.Hash.String(),
		Key:             keyBytes(d.made),
		Epoch:           d.made.Epoch,
		Source:          d.flow.Source.Addr(),
		SourcePort:      d.flow.Source.Port(),
		Destination:     d.flow.Destination.Addr(),
		DestinationPort: d.flow.Destination.Port(),
		ISN:             Word(d.isn),
		SYN:             optionsOf(d.syn, d.syn.MSS != 0 || d.zeroMSS),
		SYNOptions:      optionBytes(d.syn, d.zeroMSS),
		Offer:           offerOf(d.offer),
		Message:         d.flow.Message(d.isn),
		MAC:             Word(cookie.MAC(d.made.Hash, d.made.Key, d.flow, d.isn)),
		Code:            record.Code,
		Cookie:          Word(made),
		Receiver:        d.receiver(),
		Packet:          Packet{Seq: Word(d.isn + d.packet.isn + 1), Ack: Word(made + d.packet.cookie + 1)},
		Expect:          invalid,
	}
	tsecr := d.tsecr | uint32(record.TSvalBits)
	if record.Timestamps {
		v.TSvalBits = &record.TSvalBits
		v.Packet.TSecr = (*Word)(&tsecr)
	}
	if !d.rejected {
		v.Expect = valid
		decoded := optionsOf(cookie.Decode(d.flow.Family(), record.Code, record.Timestamps, tsecr), true)
		v.Decoded = &decoded
	}
	return v
}

func (d draft) receiver() Receiver {
	r := Receiver{Role: d.role, Epoch: d.epoch, Slots: []Slot{}}
	for _, s := range d.slots {
		r.Slots = append(r.Slots, Slot{Epoch: s.Epoch, Hash: s.Hash.String(), Key: keyBytes(s)})
	}
	return r
}

func keyBytes(s cookie.Slot) Bytes { return Bytes(s.Key[:s.Hash.KeyLength()]) }

func optionsOf(o cookie.Options, hasMSS bool) Options {
	v := Options{Timestamps: o.Timestamps, SACK: o.SACK, ECN: o.ECN}
	if hasMSS {
		v.MSS = &o.MSS
	}
	if o.HasScale {
		v.WindowScale = &o.Scale
	}
	return v
}

func offerOf(o cookie.Offer) Offer {
	return Offer{
		Timestamps:  o&cookie.OfferTimestamps != 0,
		SACK:        o&cookie.OfferSACK != 0,
		WindowScale: o&cookie.OfferScale != 0,
		ECN:         o&cookie.OfferECN != 0,
	}
}

// optionBytes writes a SYN's options as Linux does with timestamps, and as
// Windows does without.
func optionBytes(o cookie.Options, zeroMSS bool) Bytes {
	b := Bytes{}
	if o.MSS != 0 || zeroMSS {
		b = binary.BigEndian.AppendUint16(append(b, 2, 4), o.MSS)
	}
	if o.Timestamps {
		if o.SACK {
			b = append(b, 4, 2)
		} else {
			b = append(b, 1, 1)
		}
		b = append(b, 8, 10, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0)
	}
	if o.HasScale {
		b = append(b, 1, 3, 3, o.Scale)
	}
	if o.SACK && !o.Timestamps {
		b = append(b, 1, 1, 4, 2)
	}
	return b
}
