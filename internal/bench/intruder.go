package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
	"smartcookie/internal/lab"
)

// ownFlow is a flow of the attacker's, whose answers reach it.
type ownFlow struct {
	cookie.Flow
	isn uint32
}

// Bits in which what is forged may differ from the attacker's own flows: all
// addresses of the lab begin with 10, and of an ISN a cookie knows 24.
const (
	ownAddressBits = 24
	ownPortBits    = 16
	ownISNBits     = 24
)

// ownFlows differ from the first one in a bit each: in addresses that are routed to
// the attacker, in the client's port, and in the ISN.
func ownFlows(self netip.Addr, target netip.AddrPort) (all []ownFlow) {
	const port, isn, host = 40000, 0x00c0ffee, 3
	network := binary.BigEndian.Uint32(lab.FloodSources4.Addr().AsSlice())
	add := func(source netip.Addr, port uint16, isn uint32) {
		all = append(all, ownFlow{cookie.Flow{Source: netip.AddrPortFrom(source, port), Destination: target}, isn})
	}
	routed := func(number uint32) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, network|number)))
	}
	add(routed(host), port, isn)
	for i := range ownAddressBits - 1 {
		add(routed(host^1<<i), port, isn)
	}
	add(self, port, isn) // the bit in which the flood's network differs from others
	for i := range ownPortBits {
		add(routed(host), port^1<<i, isn)
	}
	for i := range ownISNBits {
		add(routed(host), port, isn^1<<i)
	}
	return all
}

// intruder is the lab's attacker: it writes frames as it likes, and sees what comes
// back to its port.
type intruder struct {
	fd       int
	to, from net.HardwareAddr
}

// A frame that is not answered in this time was lost, or nobody answers.
const answerLimit = 200 * time.Millisecond

// answerTries is how often an unanswered SYN is sent.
const answerTries = 5

func newIntruder(l *lab.Lab) (*intruder, error) {
	to, err := l.Edge.HardwareAddr(l.Edge.Outside[1])
	if err != nil {
		return nil, err
	}
	from, err := l.Attacker.HardwareAddr(l.Attacker.Port)
	if err != nil {
		return nil, err
	}
	i := &intruder{fd: -1, to: to, from: from}
	if err := l.Attacker.Do(func() error { return i.open(l.Attacker.Port) }); err != nil {
		return nil, errors.Join(fmt.Errorf("open a packet socket: %w", err), i.close())
	}
	return i, nil
}

func (i *intruder) open(port string) error {
	const protocol = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8 // in network order
	device, err := net.InterfaceByName(port)
	if err != nil {
		return err
	}
	if i.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol); err != nil {
		return err
	}
	limit := unix.NsecToTimeval(int64(answerLimit))
	return errors.Join(
		unix.SetsockoptTimeval(i.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptInt(i.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.Bind(i.fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: device.Index}),
	)
}

func (i *intruder) close() error {
	if i.fd < 0 {
		return nil
	}
	return unix.Close(i.fd)
}

// send writes a packet of IPv4, with checksums.
func (i *intruder) send(flow cookie.Flow, flags byte, seq, ack uint32) error {
	frame := frameOf(flow, flags, seq, ack, nil)
	copy(frame, i.to)
	copy(frame[len(i.to):], i.from)
	ip, tcp := frame[ethernetLength:ethernetLength+ip4Length], frame[ethernetLength+ip4Length:]
	binary.BigEndian.PutUint16(ip[10:], internetSum(ip))
	pseudo := append(append([]byte{}, ip[12:20]...), 0, 6, 0, byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], internetSum(append(pseudo, tcp...)))
	if _, err := unix.Write(i.fd, frame); err != nil {
		return fmt.Errorf("send a frame: %w", err)
	}
	return nil
}

const ip4Length = 20

// internetSum is the checksum of RFC 1071, of an even number of bytes.
func internetSum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	sum = sum&0xffff + sum>>16
	return ^uint16(sum + sum>>16)
}

// probe opens a flow of its own and returns the cookie.
func (i *intruder) probe(own ownFlow) (uint32, error) {
	for range answerTries {
		if err := i.send(own.Flow, flagSYN, own.isn, 0); err != nil {
			return 0, err
		}
		number, ok, err := i.answer(own)
		if err != nil || ok {
			return number, err
		}
	}
	return 0, fmt.Errorf("nobody answers a SYN from %s", own.Source)
}

// answer waits for the SYN-ACK of a flow and lets everything else go by.
func (i *intruder) answer(own ownFlow) (number uint32, ok bool, err error) {
	expect := frameOf(reversed(own.Flow), flagSYN|flagACK, 0, own.isn+1, nil)
	ends, ack := expect[ethernetLength+12:ethernetLength+24], expect[ethernetLength+28:ethernetLength+32]
	frame := make([]byte, 2048)
	for deadline := time.Now().Add(answerLimit); time.Now().Before(deadline); {
		n, err := unix.Read(i.fd, frame)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, false, fmt.Errorf("receive a frame: %w", err)
		}
		if n < ethernetLength+ip4Length+tcpLength {
			continue
		}
		packet := frame[ethernetLength:n]
		if bytes.Equal(packet[12:24], ends) && bytes.Equal(packet[28:32], ack) && packet[33] == flagSYN|flagACK {
			return binary.BigEndian.Uint32(packet[24:]), true, nil
		}
	}
	return 0, false, nil
}
