// Package wire builds and reads frames for tests. It shares no code with the
// data plane: what both of them say of the same bytes is compared.
package wire

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Flags are the flags of a TCP header, as its fourteenth byte has them.
type Flags uint8

// The flags.
const (
	FIN Flags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// Protocols and extension headers, by their number.
const (
	HopByHop    = 0
	TCP         = 6
	UDP         = 17
	Routing     = 43
	Fragment    = 44
	Auth        = 51
	ICMP6       = 58
	Destination = 60
)

// Ethernet types of the tags.
const (
	Customer = uint16(layers.EthernetTypeDot1Q)
	Service  = uint16(layers.EthernetTypeQinQ)
)

// Tag is a VLAN tag.
type Tag struct {
	Type uint16 // Customer or Service
	ID   uint16
}

// Extension is an extension header of IPv6: its number, and its bytes behind
// the one that says what follows.
type Extension struct {
	Number uint8
	Rest   []byte
}

// Padded returns an extension header of so many bytes: 8 times 1 to 256.
func Padded(number uint8, length int) Extension {
	rest := make([]byte, length-1)
	rest[0] = uint8(length/8 - 1)
	if number == Auth {
		rest[0] = uint8(length/4 - 2)
	}
	return Extension{number, rest}
}

// Packet is what a test says of a frame; the zero value of a field is the
// usual one.
type Packet struct {
	Tags        []Tag
	Source      netip.AddrPort
	To          netip.AddrPort
	IPOptions   []byte // of IPv4, whole words
	Extensions  []Extension
	Hops        uint8  // 0: 64
	Offset      uint16 // of an IPv4 fragment, in units of 8 bytes
	More        bool   // fragments of IPv4
	Protocol    uint8  // 0: TCP
	Flags       Flags
	AccurateECN bool // the AE bit (RFC 9768)
	Seq, Ack    uint32
	Options     []byte // of TCP, whole words
	Payload     []byte
	Window      uint16
	Trailer     int // bytes of Ethernet padding
}

// The Ethernet addresses of every packet that is built.
var (
	toMAC   = []byte{2, 0, 0, 0, 0, 0x0e}
	fromMAC = []byte{2, 0, 0, 0, 0, 0x0c}
)

// Frame returns the bytes of the packet, with right lengths and checksums.
func (p Packet) Frame() []byte {
	b := gopacket.NewSerializeBuffer()
	p.addTransport(b)
	kind := p.addNetwork(b)
	for i := len(p.Tags) - 1; i >= 0; i-- {
		add(b, &layers.Dot1Q{VLANIdentifier: p.Tags[i].ID, Type: kind})
		kind = layers.EthernetType(p.Tags[i].Type)
	}
	// Not by way of layers.Ethernet, which pads to 60 bytes.
	header := binary.BigEndian.AppendUint16(slices.Concat(toMAC, fromMAC), uint16(kind))
	return slices.Concat(header, b.Bytes(), make([]byte, p.Trailer))
}

// add serializes a layer and panics on what only a wrong test can cause.
func add(b gopacket.SerializeBuffer, layer gopacket.SerializableLayer) {
	o := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if tcp, ok := layer.(*layers.TCP); ok {
		o.FixLengths = tcp.DataOffset == 0
	}
	if err := layer.SerializeTo(b, o); err != nil {
		panic(fmt.Sprintf("serialize %v: %v", layer.LayerType(), err))
	}
}

func (p Packet) addTransport(b gopacket.SerializeBuffer) {
	add(b, gopacket.Payload(p.Payload))
	if p.Protocol == UDP {
		udp := &layers.UDP{SrcPort: layers.UDPPort(p.Source.Port()), DstPort: layers.UDPPort(p.To.Port())}
		_ = udp.SetNetworkLayerForChecksum(p.addresses())
		add(b, udp)
		return
	}
	if p.Protocol != 0 && p.Protocol != TCP {
		return
	}
	add(b, gopacket.Payload(p.Options)) // as they are: tests send malformed ones
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(p.Source.Port()), DstPort: layers.TCPPort(p.To.Port()),
		Seq: p.Seq, Ack: p.Ack, Window: p.Window, DataOffset: uint8(5 + len(p.Options)/4),
		FIN: p.Flags&FIN != 0, SYN: p.Flags&SYN != 0, RST: p.Flags&RST != 0, PSH: p.Flags&PSH != 0,
		ACK: p.Flags&ACK != 0, URG: p.Flags&URG != 0, ECE: p.Flags&ECE != 0, CWR: p.Flags&CWR != 0,
		NS: p.AccurateECN,
	}
	_ = tcp.SetNetworkLayerForChecksum(p.addresses())
	add(b, tcp)
}

// addresses is the layer whose addresses are part of the checksum.
func (p Packet) addresses() gopacket.NetworkLayer {
	from, to := net.IP(p.Source.Addr().AsSlice()), net.IP(p.To.Addr().AsSlice())
	if p.Source.Addr().Is4() {
		return &layers.IPv4{SrcIP: from, DstIP: to, Protocol: p.protocol()}
	}
	return &layers.IPv6{SrcIP: from, DstIP: to, NextHeader: p.protocol()}
}

func (p Packet) protocol() layers.IPProtocol {
	if p.Protocol == 0 {
		return layers.IPProtocolTCP
	}
	return layers.IPProtocol(p.Protocol)
}

func (p Packet) hops() uint8 {
	if p.Hops == 0 {
		return 64
	}
	return p.Hops
}

func (p Packet) addNetwork(b gopacket.SerializeBuffer) layers.EthernetType {
	if p.Source.Addr().Is4() {
		ip := p.addresses().(*layers.IPv4)
		ip.Version, ip.TTL, ip.FragOffset, ip.Flags = 4, p.hops(), p.Offset, layers.IPv4DontFragment
		if p.More || p.Offset > 0 {
			ip.Flags = 0
		}
		if p.More {
			ip.Flags = layers.IPv4MoreFragments
		}
		for _, o := range p.IPOptions { // one byte each: any bytes will do
			ip.Options = append(ip.Options, layers.IPv4Option{OptionType: o & 1, OptionLength: 1})
		}
		add(b, ip)
		return layers.EthernetTypeIPv4
	}
	ip := p.addresses().(*layers.IPv6)
	ip.Version, ip.HopLimit = 6, p.hops()
	for i := len(p.Extensions) - 1; i >= 0; i-- {
		add(b, gopacket.Payload(append([]byte{byte(ip.NextHeader)}, p.Extensions[i].Rest...)))
		ip.NextHeader = layers.IPProtocol(p.Extensions[i].Number)
	}
	add(b, ip)
	return layers.EthernetTypeIPv6
}

// FragmentHeader is the extension header of a fragment.
func FragmentHeader(offset uint16, more bool) Extension {
	rest := make([]byte, 7)
	binary.BigEndian.PutUint16(rest[1:], offset<<3)
	if more {
		rest[2] |= 1
	}
	binary.BigEndian.PutUint32(rest[3:], 0x1d1d1d1d)
	return Extension{Fragment, rest}
}
