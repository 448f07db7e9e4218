package lab

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
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
)

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
	_
	flagACK
)

func (k Kind) flags() byte {
	return [...]byte{SYN: flagSYN, ACK: flagACK, RST: flagRST, FIN: flagFIN | flagACK, SYNACK: flagSYN | flagACK}[k]
}

const (
	ethernetBytes = 14
	ip4Bytes      = 20
	ip6Bytes      = 40
	tcpBytes      = 20
	floodWindow   = 64240 // what Linux announces in a SYN
)

// A Linux SYN's options; the generator fills TSval in.
var linuxOptions = []byte{
	2, 4, 0x05, 0xb4, // MSS 1460
	4, 2, // SACK permitted
	8, 10, 0, 0, 0, 0, 0, 0, 0, 0, // timestamps
	1, 3, 3, 7, // window scale 7
}

// template is a packet of the flood without what differs between packets:
// source address and port, sequence number, acknowledgement, TSval, checksums.
type template struct {
	bytes  []byte
	ipSum  uint32 // one's complement sums, in the byte order of memory
	tcpSum uint32
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
	made := template{tcpSum: pseudo + sum(segment)}
	if config.target.Addr().Is4() {
		header := ip4Template(len(segment), target)
		made.ipSum = sum(header)
		frame = append(frame, 0x08, 0x00)
		frame = append(frame, header...)
	} else {
		frame = append(frame, 0x86, 0xdd)
		frame = append(frame, ip6Template(len(segment), target)...)
	}
	made.bytes = append(frame, segment...)
	return made
}

func ip4Template(payload int, target []byte) []byte {
	header := make([]byte, ip4Bytes)
	header[0] = 0x45
	binary.BigEndian.PutUint16(header[2:], uint16(ip4Bytes+payload))
	header[6] = 0x40 // don't fragment, as every modern SYN
	header[8], header[9] = 64, 6
	copy(header[16:], target)
	return header
}

func ip6Template(payload int, target []byte) []byte {
	header := make([]byte, ip6Bytes)
	header[0] = 0x60
	binary.BigEndian.PutUint16(header[4:], uint16(payload))
	header[6], header[7] = 6, 64
	copy(header[24:], target)
	return header
}

func tcpTemplate(config frameConfig) []byte {
	segment := make([]byte, tcpBytes)
	if config.profile == Linux {
		segment = append(segment, linuxOptions...)
	}
	binary.BigEndian.PutUint16(segment[2:], config.target.Port())
	segment[12] = byte(len(segment) / 4 << 4)
	segment[13] = config.kind.flags()
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
	kind, ok := map[string]Kind{"syn": SYN, "ack": ACK, "rst": RST, "fin": FIN, "synack": SYNACK}[name]
	if !ok {
		return 0, fmt.Errorf("no such flood: %q; there are syn, ack, rst, fin and synack", name)
	}
	return kind, nil
}
