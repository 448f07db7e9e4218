package wire

import (
	"encoding/binary"
	"net/netip"
)

// Kind is what a frame is to a defence.
type Kind int

// The kinds, in the order of enum parsed.
const (
	KindTCP        Kind = iota // a whole TCP header
	KindOther                  // certainly no TCP
	KindFragment               // a fragment that may be one of TCP
	KindUnparsable             // TCP or what may hide it, malformed or too deep
	KindTags                   // more than two tags
)

// Limits of what is looked into.
const (
	tagsMax       = 2
	extensionsMax = 6
)

// Seen is what Read finds.
type Seen struct {
	Kind        Kind
	ToMany      bool       // the frame goes to a broadcast or multicast MAC address
	Addressed   bool       // the frame has IP addresses
	Source      netip.Addr // valid if addressed
	To          netip.Addr
	SourcePort  uint16 // of TCP
	ToPort      uint16
	Seq, Ack    uint32
	Flags       Flags
	Options     []byte
	NetworkAt   int
	TransportAt int
}

// Read tells the kind of an Ethernet frame, as contract and limits have it:
// two tags, six extension headers, no fragment, lengths that are possible.
func Read(frame []byte) Seen {
	if len(frame) < 14 {
		return Seen{Kind: KindOther}
	}
	seen := readEthernet(frame)
	seen.ToMany = frame[0]&1 != 0
	return seen
}

func readEthernet(frame []byte) Seen {
	kind, at := binary.BigEndian.Uint16(frame[12:]), 14
	for tags := 0; kind == Customer || kind == Service; tags++ {
		if tags == tagsMax {
			return Seen{Kind: KindTags}
		}
		if len(frame) < at+4 {
			return Seen{Kind: KindOther}
		}
		kind = binary.BigEndian.Uint16(frame[at+2:])
		at += 4
	}
	return ReadIP(frame, at, kind)
}

// ReadIP does so for what stands at an offset and has that Ethernet type.
func ReadIP(frame []byte, at int, etherType uint16) Seen {
	s := Seen{Kind: KindOther, NetworkAt: at}
	switch etherType {
	case 0x0800:
		s.read4(frame[at:])
	case 0x86dd:
		s.read6(frame[at:])
	}
	if s.Kind == KindTCP {
		s.TransportAt += at
	}
	return s
}

func (s *Seen) read4(ip []byte) {
	if len(ip) < 20 {
		return
	}
	s.Addressed = true
	s.Source, s.To = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	if ip[9] != TCP {
		return
	}
	header, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
	fragment := binary.BigEndian.Uint16(ip[6:]) & 0x3fff
	switch {
	case ip[0]>>4 != 4 || header < 20 || total < header:
		s.Kind = KindUnparsable
	case fragment != 0:
		s.Kind = KindFragment
	default:
		s.readTCP(ip, header, total-header)
	}
}

func (s *Seen) read6(ip []byte) {
	if len(ip) < 40 {
		return
	}
	s.Addressed = true
	s.Source, s.To = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	if ip[0]>>4 != 6 {
		s.Kind = KindUnparsable
		return
	}
	next, at := ip[6], 40
	stop := at + int(binary.BigEndian.Uint16(ip[4:]))
	for seen := 0; next != TCP; seen++ {
		if !mayHideTCP(next) {
			return
		}
		if len(ip) < at+2 {
			s.Kind = KindUnparsable
			return
		}
		if next == Fragment {
			if ip[at] == TCP || mayHideTCP(ip[at]) {
				s.Kind = KindFragment
			}
			return
		}
		if seen == extensionsMax {
			s.Kind = KindUnparsable
			return
		}
		next, at = ip[at], at+extensionLength(next, ip[at+1])
	}
	s.readTCP(ip, at, stop-at)
}

// extensionLength is in bytes, by what the header's second byte says (RFC 8200
// 4.3, RFC 4302 2.2).
func extensionLength(number, length uint8) int {
	if number == Auth {
		return (int(length) + 2) * 4
	}
	return (int(length) + 1) * 8
}

func mayHideTCP(next uint8) bool {
	switch next {
	case HopByHop, Routing, Fragment, Auth, Destination:
		return true
	}
	return false
}

// readTCP looks at the header at an offset of ip; IP has so much room for it.
func (s *Seen) readTCP(ip []byte, at, room int) {
	s.Kind = KindUnparsable
	if len(ip) < at+20 {
		return
	}
	tcp := ip[at:]
	length := int(tcp[12]>>4) * 4
	if length < 20 || length > room || length > len(tcp) {
		return
	}
	s.Kind, s.TransportAt = KindTCP, at
	s.SourcePort, s.ToPort = binary.BigEndian.Uint16(tcp), binary.BigEndian.Uint16(tcp[2:])
	s.Seq, s.Ack = binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:])
	s.Flags, s.Options = Flags(tcp[13]), tcp[20:length]
}
