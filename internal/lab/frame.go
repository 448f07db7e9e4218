package lab

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Kind is the kind of packet that a flood consists of.
type Kind int

// The floods.
const (
	SYN Kind = iota
	ACK
	RST
	FIN
	SYNACK
	PSH
	// Fragment is the first fragment of a SYN, with 8 bytes of its TCP header.
	Fragment
	// IllegalFlags are sets of flags that TCP never sends.
	IllegalFlags
	// BadLength is a TCP header whose length cannot be.
	BadLength
)

// kinds are the floods by name, and what they vary: the length of the TCP header
// in words, and its flags. A flood without variants has one.
var kinds = [...]struct {
	name     string
	variants []control
}{
	SYN:          {"syn", []control{{flags: flagSYN}}},
	ACK:          {"ack", []control{{flags: flagACK}}},
	RST:          {"rst", []control{{flags: flagRST}}},
	FIN:          {"fin", []control{{flags: flagFIN | flagACK}}},
	SYNACK:       {"synack", []control{{flags: flagSYN | flagACK}}},
	PSH:          {"psh", []control{{flags: flagPSH | flagACK}}},
	Fragment:     {"fragment", []control{{flags: flagSYN}}},
	IllegalFlags: {"flags", []control{{}, {flags: flagSYN | flagFIN}, {flags: flagSYN | flagRST}, {flags: flagFIN | flagPSH | flagURG}}},
	// No header at all, one too short, one longer than the packet, the longest.
	BadLength: {"length", []control{{flags: flagACK, lie: -5}, {flags: flagACK, lie: -1}, {flags: flagACK, lie: 1}, {flags: flagACK, lie: 10}}},
}

// control is what a packet says of itself: flags, and how many words more than
// there are.
type control struct {
	flags byte
	lie   int
}

// variants is how many the generator chooses from.
const variants = len(floodConfig{}.ControlBe)

// String returns the name of a flood.
func (k Kind) String() string { return kinds[k].name }

// Kinds lists the floods.
func Kinds() (all []Kind) {
	for k := range kinds {
		all = append(all, Kind(k))
	}
	return all
}

// KindNames are their names, for people to read.
func KindNames() string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return strings.Join(names, ", ")
}

// Profile is the set of TCP options of a flood's packets.
type Profile int

const (
	// Plain has no options: 54 bytes of IPv4, 74 of IPv6.
	Plain Profile = iota
	// Linux has MSS, SACK, timestamps and window scale, as a Linux SYN does: 20
	// bytes more.
	Linux
)

// TCP flags (RFC 9293 3.1).
const (
	flagFIN = 1 << iota
	flagSYN
	flagRST
	flagPSH
	flagACK
	flagURG
)

// flags are those of the kind's first variant.
func (k Kind) flags() byte { return kinds[k].variants[0].flags }

// acknowledges tells whether the kind's packets have an acknowledgement number.
func (k Kind) acknowledges() bool { return k.flags()&flagACK != 0 }

const (
	ethernetBytes = 14
	ip4Bytes      = 20
	ip6Bytes      = 40
	tcpBytes      = 20
	floodWindow   = 64240 // what Linux announces in a SYN

	fragmentBytes     = 8 // of the TCP header; and the length of an IPv6 fragment header
	fragmentProtocol6 = 44
)

// A Linux SYN's options; the generator fills TSval in.
var linuxOptions = []byte{
	2, 4, 0x05, 0xb4, // MSS 1460
	4, 2, // SACK permitted
	8, 10, 0, 0, 0, 0, 0, 0, 0, 0, // timestamps
	1, 3, 3, 7, // window scale 7
}

// template is a packet of the flood without what differs between packets:
// source address and port, sequence number, acknowledgement, header length and
// flags, TSval, checksums.
type template struct {
	bytes    []byte
	tcpAt    int
	controls [variants]uint16 // in the byte order of memory
	ipSum    uint32           // one's complement sums, likewise
	tcpSum   uint32
}

type frameConfig struct {
	sourceMAC, targetMAC net.HardwareAddr
	target               netip.AddrPort
	kind                 Kind
	profile              Profile
}

func newTemplate(config frameConfig) template {
	segment := tcpTemplate(config)
	frame := append([]byte{}, config.targetMAC...)
	frame = append(frame, config.sourceMAC...)
	target := config.target.Addr().AsSlice()
	pseudo := sum(target) + sum([]byte{0, 6}) + sum(binary.BigEndian.AppendUint16(nil, uint16(len(segment))))
	made := template{tcpSum: pseudo + sum(segment), controls: controlsOf(config.kind, len(segment))}
	if config.kind == Fragment {
		segment = segment[:fragmentBytes]
	}
	if config.target.Addr().Is4() {
		header := ip4Template(len(segment), target, config.kind)
		made.ipSum = sum(header)
		frame = append(frame, 0x08, 0x00)
		frame = append(frame, header...)
	} else {
		frame = append(frame, 0x86, 0xdd)
		frame = append(frame, ip6Template(len(segment), target, config.kind)...)
	}
	made.tcpAt = len(frame)
	made.bytes = append(frame, segment...)
	return made
}

// controlsOf are the words of length and flags from which the generator chooses.
func controlsOf(k Kind, segment int) (all [variants]uint16) {
	for i := range all {
		variant := kinds[k].variants[i%len(kinds[k].variants)]
		words := byte(segment/4 + variant.lie)
		all[i] = binary.NativeEndian.Uint16([]byte{words << 4, variant.flags})
	}
	return all
}

func ip4Template(payload int, target []byte, k Kind) []byte {
	header := make([]byte, ip4Bytes)
	header[0] = 0x45
	binary.BigEndian.PutUint16(header[2:], uint16(ip4Bytes+payload))
	header[6] = 0x40 // don't fragment, as every modern SYN
	if k == Fragment {
		header[6] = 0x20 // more fragments
	}
	header[8], header[9] = 64, 6
	copy(header[16:], target)
	return header
}

func ip6Template(payload int, target []byte, k Kind) []byte {
	header := make([]byte, ip6Bytes)
	header[0] = 0x60
	header[6], header[7] = 6, 64
	copy(header[24:], target)
	if k == Fragment {
		header[6] = fragmentProtocol6
		header = append(header, 6, 0, 0, 1, 0, 0, 0, 1) // TCP, the first one, more fragments
	}
	binary.BigEndian.PutUint16(header[4:], uint16(len(header)-ip6Bytes+payload))
	return header
}

func tcpTemplate(config frameConfig) []byte {
	segment := make([]byte, tcpBytes)
	if config.profile == Linux {
		segment = append(segment, linuxOptions...)
	}
	binary.BigEndian.PutUint16(segment[2:], config.target.Port())
	binary.BigEndian.PutUint16(segment[14:], floodWindow)
	return segment
}

// sum adds 16-bit words without folding; fewer than 2^16 of them cannot carry
// out of 32 bits.
func sum(bytes []byte) (total uint32) {
	for ; len(bytes) > 1; bytes = bytes[2:] {
		total += uint32(binary.NativeEndian.Uint16(bytes))
	}
	return total
}

// ParseKind reads the name of a flood.
func ParseKind(name string) (Kind, error) {
	k := slices.IndexFunc(Kinds(), func(k Kind) bool { return k.String() == name })
	if k < 0 {
		return 0, fmt.Errorf("no such flood: %q; there are %s", name, KindNames())
	}
	return Kind(k), nil
}
