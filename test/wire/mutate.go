package wire

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
)

// Source makes frames at random: whole ones of every shape, and faults in them.
type Source struct {
	*rand.Rand
	Clients []netip.Addr // of both families
	Servers []netip.Addr
	Ports   []uint16
}

// Noise returns a frame of random bytes.
func (s Source) Noise() []byte { return s.bytes(14 + s.IntN(200)) }

// Packet returns one without a fault in its form, mostly TCP.
func (s Source) Packet() Packet {
	from, to := pick(s, s.Clients), pick(s, s.Servers)
	for from.Is4() != to.Is4() {
		to = pick(s, s.Servers)
	}
	p := Packet{
		Source: netip.AddrPortFrom(from, uint16(s.Uint32())), To: netip.AddrPortFrom(to, pick(s, s.Ports)),
		Seq: s.Uint32(), Ack: s.Uint32(), Window: uint16(s.Uint32()), Flags: s.flags(), Options: s.Options(),
	}
	if s.IntN(4) == 0 {
		p.Payload = s.bytes(s.IntN(64))
	}
	if s.IntN(8) == 0 {
		p.Trailer = s.IntN(16)
	}
	if s.IntN(8) == 0 {
		p.Protocol = pick(s, []uint8{UDP, ICMP6, 1, 132})
	}
	for s.IntN(4) == 0 && len(p.Tags) < 4 {
		p.Tags = append(p.Tags, Tag{pick(s, []uint16{Customer, Service}), uint16(s.IntN(4096))})
	}
	s.headers(&p)
	return p
}

// headers adds what stands before the transport header.
func (s Source) headers(p *Packet) {
	if p.Source.Addr().Is4() {
		if s.IntN(8) == 0 {
			p.IPOptions = make([]byte, 4*s.IntN(11))
		}
		if s.IntN(16) == 0 {
			p.More, p.Offset = s.IntN(2) == 0, uint16(s.IntN(3)*185)
		}
		return
	}
	for s.IntN(3) == 0 && len(p.Extensions) < 9 {
		number := pick(s, []uint8{HopByHop, Routing, Destination, Auth, Fragment})
		extension := Padded(number, 8*(1+s.IntN(4)))
		if number == Fragment {
			extension = FragmentHeader(uint16(s.IntN(3)*180), s.IntN(2) == 0)
		}
		p.Extensions = append(p.Extensions, extension)
	}
}

func (s Source) flags() Flags {
	switch s.IntN(4) {
	case 0, 1:
		return SYN | pick(s, []Flags{0, 0, 0, PSH, URG, ECE | CWR, ECE})
	case 2:
		return ACK | pick(s, []Flags{0, PSH, FIN, RST, SYN})
	}
	return Flags(s.Uint32())
}

// Options returns TCP options of up to 40 bytes, in whole words.
func (s Source) Options() []byte {
	var b []byte
	for s.IntN(6) != 0 {
		b = append(b, s.option()...)
	}
	b = b[:min(len(b), 40)]
	for len(b)%4 != 0 {
		b = append(b, pick(s, []byte{optionEnd, optionNOP}))
	}
	if s.IntN(8) == 0 {
		b = s.change(b)
	}
	return b
}

func (s Source) option() []byte {
	switch s.IntN(10) {
	case 0, 1:
		mss := pick(s, []uint16{0, 1, 536, 1220, 1300, 1400, 1440, 1460, 8960, uint16(s.Uint32())})
		return binary.BigEndian.AppendUint16([]byte{optionMSS, 4}, mss)
	case 2, 3:
		return append([]byte{optionTimestamps, 10}, s.bytes(8)...)
	case 4:
		return []byte{optionSACK, 2}
	case 5, 6:
		return []byte{optionScale, 3, byte(s.IntN(18))}
	case 7:
		return []byte{optionEnd}
	case 8: // some other kind: Fast Open, MD5, multipath, none at all
		length := s.IntN(12)
		return append([]byte{pick(s, []byte{34, 19, 30, 5, 254}), byte(length)}, s.bytes(max(length-2, 0))...)
	}
	return []byte{optionNOP}
}

// Mutate returns the frame with some faults; at least 14 bytes of it stay.
func (s Source) Mutate(frame []byte) []byte {
	for range 1 + s.IntN(3) {
		switch s.IntN(6) {
		case 0:
			frame = frame[:14+s.IntN(len(frame)-13)]
		case 1:
			frame = append(frame, s.bytes(s.IntN(32))...)
		case 2: // something twice
			at := 14 + s.IntN(len(frame)-13)
			length := s.IntN(len(frame) - at + 1)
			frame = append(frame[:at:at], append(frame[at:at+length:at+length], frame[at:]...)...)
		default:
			frame = s.change(frame)
		}
	}
	return frame
}

// change changes up to four bytes.
func (s Source) change(b []byte) []byte {
	for range 1 + s.IntN(4) {
		if len(b) == 0 {
			return b
		}
		b[s.IntN(len(b))] = pick(s, []byte{0, 1, 0x45, 0x60, 0xff, byte(s.Uint32()), byte(s.Uint32())})
	}
	return b
}

func (s Source) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(s.Uint32())
	}
	return b
}

func pick[T any](s Source, from []T) T { return from[s.IntN(len(from))] }
