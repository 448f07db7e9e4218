package dataplane

import (
	"encoding/binary"
	"slices"
)

// Offsets in headers, and their lengths.
const (
	etherAddress                                   = 6
	ip4Total, ip4Sum, ip4Addresses                 = 2, 10, 12
	ip6Payload, ip6Addresses, ip6Header            = 4, 8, 40
	tcpSeq, tcpAck, tcpOffset, tcpSum, tcpHeader   = 4, 8, 12, 16, 20
	protocolTCP, flagRSTACK, offsetOfABare, ip4Nib = 6, 0x14, tcpHeader / 4 << 4, 4
)

// tag is a VLAN tag as the sending program wants it, 0 for none.
func (s *serverSynKept) tag() uint32 {
	return uint32(s.VlanProtocolBe)<<16 | uint32(s.VlanTci)
}

// resetFrame is the RST with which a server would refuse the SYN that was kept,
// or give up a connection that is not there yet.
func resetFrame(s *serverSynKept, t *serverTranslation) []byte {
	frame := slices.Clone(s.Frame[:int(s.Transport)+tcpHeader])
	ip, tcp := frame[s.Network:s.Transport], frame[s.Transport:]
	swap(frame[:2*etherAddress])
	swap(tcp[:4])
	seq := uint32(0)
	if t.State == uint8(serverTranslationStateTRANSLATION_SYN_RECEIVED) {
		seq = t.Cookie + 1 + t.Delta
	}
	binary.BigEndian.PutUint32(tcp[tcpSeq:], seq)
	binary.BigEndian.PutUint32(tcp[tcpAck:], t.ClientIsn+1)
	clear(tcp[tcpOffset:])
	tcp[tcpOffset], tcp[tcpOffset+1] = offsetOfABare, flagRSTACK
	var addresses []byte
	if ip[0]>>4 == ip4Nib {
		addresses = ip[ip4Addresses : ip4Addresses+8]
		binary.BigEndian.PutUint16(ip[ip4Total:], uint16(len(ip)+tcpHeader))
		binary.BigEndian.PutUint16(ip[ip4Sum:], 0)
		binary.BigEndian.PutUint16(ip[ip4Sum:], checksum(ip))
	} else {
		addresses = ip[ip6Addresses:ip6Header]
		binary.BigEndian.PutUint16(ip[ip6Payload:], uint16(len(ip)-ip6Header+tcpHeader))
	}
	swap(addresses)
	pseudo := append(slices.Clone(addresses), 0, protocolTCP, 0, tcpHeader)
	binary.BigEndian.PutUint16(tcp[tcpSum:], checksum(append(pseudo, tcp...)))
	return frame
}

// swap exchanges the halves of a slice.
func swap(b []byte) {
	half := slices.Clone(b[:len(b)/2])
	copy(b, b[len(b)/2:])
	copy(b[len(b)/2:], half)
}

// checksum is the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
