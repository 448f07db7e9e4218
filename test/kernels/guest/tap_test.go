package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

// tap sees what a port receives.
type tap struct{ fd int }

func openTap(t *testing.T, at *lab.Namespace, port string) *tap {
	t.Helper()
	tap := &tap{}
	inside(t, at, func() error { return tap.open(port) })
	t.Cleanup(func() { unix.Close(tap.fd) })
	return tap
}

func (p *tap) open(port string) error {
	device, err := net.InterfaceByName(port)
	if err != nil {
		return err
	}
	const allBE = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	return errors.Join(
		unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
		unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: allBE, Ifindex: device.Index}),
	)
}

// mustSeeSYNACKs waits for so many SYN-ACKs, all with these tags.
func (p *tap) mustSeeSYNACKs(t *testing.T, n int, want []wire.Tag) {
	t.Helper()
	seen := 0
	for deadline := time.Now().Add(10 * time.Second); seen < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d SYN-ACKs are seen, want %d", seen, n)
		}
		frame := p.receive()
		s := wire.Read(frame)
		if s.Kind != wire.KindTCP || s.Flags&(wire.SYN|wire.ACK) != wire.SYN|wire.ACK {
			continue
		}
		seen++
		if got := tagsOf(frame[:s.NetworkAt]); !slices.Equal(got, want) {
			t.Fatalf("a SYN-ACK has the tags %x, want %x", got, want)
		}
	}
	t.Logf("%d SYN-ACKs with the tags %x", seen, want)
}

// receive returns the next frame with all its tags, nothing if none comes.
func (p *tap) receive() []byte {
	frame, control := make([]byte, 1<<16), make([]byte, 256)
	n, c, _, _, err := unix.Recvmsg(p.fd, frame, control, 0)
	if err != nil {
		return nil
	}
	return withTag(frame[:n], control[:c])
}

// withTag puts the tag that the kernel keeps beside a frame (struct
// tpacket_auxdata) back into it.
func withTag(frame, control []byte) []byte {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 || len(messages[0].Data) < 20 {
		return frame
	}
	aux := messages[0].Data
	if binary.NativeEndian.Uint32(aux)&unix.TP_STATUS_VLAN_VALID == 0 {
		return frame
	}
	tag := binary.BigEndian.AppendUint16(nil, binary.NativeEndian.Uint16(aux[18:]))
	tag = binary.BigEndian.AppendUint16(tag, binary.NativeEndian.Uint16(aux[16:]))
	return slices.Insert(frame, 12, tag...)
}

// tagsOf reads the tags of a link header, the outer one first.
func tagsOf(header []byte) (tags []wire.Tag) {
	for at := 12; at+4 <= len(header); at += 4 {
		tags = append(tags, wire.Tag{Type: binary.BigEndian.Uint16(header[at:]), ID: binary.BigEndian.Uint16(header[at+2:]) & 0xfff})
	}
	return tags
}
