package bench

import (
	"encoding/binary"
	"net/netip"

	"smartcookie/internal/cookie"
)

const (
	ethernetLength = 14
	tcpLength      = 20
	flagSYN        = 0x02
	flagACK        = 0x10
)

// linuxOptions are those of a Linux client's SYN: MSS 1460, SACK, timestamps,
// window scale 7.
var linuxOptions = []byte{2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0, 1, 3, 3, 7}

// frameOf builds an Ethernet frame with a TCP header and no data. Checksums are
// left out: no program here looks at them.
func frameOf(flow cookie.Flow, flags byte, seq, ack uint32, options []byte) []byte {
	length := tcpLength + len(options)
	frame := appendNetwork([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}, flow, length)
	frame = binary.BigEndian.AppendUint16(frame, flow.Source.Port())
	frame = binary.BigEndian.AppendUint16(frame, flow.Destination.Port())
	frame = binary.BigEndian.AppendUint32(frame, seq)
	frame = binary.BigEndian.AppendUint32(frame, ack)
	frame = append(frame, byte(length/4<<4), flags, 0xfa, 0xf0, 0, 0, 0, 0)
	return append(frame, options...)
}

func appendNetwork(frame []byte, flow cookie.Flow, length int) []byte {
	if flow.Family() == cookie.IPv4 {
		frame = append(frame, 0x08, 0x00, 0x45, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(20+length))
		frame = append(frame, 0, 0, 0x40, 0, 64, 6, 0, 0)
	} else {
		frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(length))
		frame = append(frame, 6, 64)
	}
	frame = append(frame, flow.Source.Addr().AsSlice()...)
	return append(frame, flow.Destination.Addr().AsSlice()...)
}

// flowsOf returns a client's flow to the protected service in each family.
func flowsOf() []cookie.Flow {
	pair := func(from, to string) cookie.Flow {
		return cookie.Flow{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to)}
	}
	return []cookie.Flow{
		pair("192.0.2.1:40000", "198.51.100.2:80"),
		pair("[2001:db8::1]:40000", "[2001:db8:1::2]:80"),
	}
}

func reversed(flow cookie.Flow) cookie.Flow {
	return cookie.Flow{Source: flow.Destination, Destination: flow.Source}
}
