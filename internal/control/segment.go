package control

import (
	"encoding/binary"
	"net/netip"
)

// PacketBytes is the length of the longest packet that a SETUP or PROBE can
// carry, from its IP header on (CONTROL_PACKET_BYTES of contract.h).
const PacketBytes = bodyBytes

// MSS4 and MSS6 keep a client's packets within PacketBytes: an MSS leaves room
// for headers without options, and a client takes options out of it (RFC 6691).
const (
	MSS4 = PacketBytes - ip4Headers
	MSS6 = PacketBytes - ip4Headers - 20
)

// relayMTU is what a path must let through so that no message with a packet of
// full length is fragmented.
func relayMTU(agent netip.Addr) int {
	const ip4AndUDP, ip6AndUDP = 28, 48
	if agent.Is4() {
		return messageBytes + ip4AndUDP
	}
	return messageBytes + ip6AndUDP
}

const (
	ip4Least, ip6Least, tcpLeast = 20, 40, 20

	protocolTCP = 6

	flagSYN, flagRST, flagACK = 0x02, 0x04, 0x10
)

// segmentFlow reads the flow of a packet that is one whole TCP segment with ACK
// and neither SYN nor RST: what alone may be carried in a message. IPv6 with
// extension headers is not.
func segmentFlow(b []byte) (f Flow, ok bool) {
	var source, destination netip.Addr
	var tcp []byte
	switch {
	case len(b) >= ip4Least && b[0]>>4 == 4:
		header := int(b[0]&0x0f) * 4
		whole := int(binary.BigEndian.Uint16(b[2:])) == len(b) && binary.BigEndian.Uint16(b[6:])&0x3fff == 0
		if !whole || b[9] != protocolTCP || header < ip4Least || header > len(b) {
			return f, false
		}
		source, destination, tcp = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), b[header:]
	case len(b) >= ip6Least && b[0]>>4 == 6:
		if int(binary.BigEndian.Uint16(b[4:])) != len(b)-ip6Least || b[6] != protocolTCP {
			return f, false
		}
		source, destination, tcp = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), b[ip6Least:]
	default:
		return f, false
	}
	if !acknowledges(tcp) {
		return f, false
	}
	return Flow{
		Client: netip.AddrPortFrom(source, binary.BigEndian.Uint16(tcp)),
		Server: netip.AddrPortFrom(destination, binary.BigEndian.Uint16(tcp[2:])),
	}, true
}

// acknowledges wants a whole TCP header.
func acknowledges(tcp []byte) bool {
	if len(tcp) < tcpLeast {
		return false
	}
	header := int(tcp[12]>>4) * 4
	return header >= tcpLeast && header <= len(tcp) && tcp[13]&(flagSYN|flagRST|flagACK) == flagACK
}
