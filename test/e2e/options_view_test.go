package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

// view is what ss tells of one end of a connection.
type view struct {
	timestamps, sack, ecn bool
	scales                string // "send,receive", or "" without window scaling
	mss, advmss           int
}

// viewOf asks ss about the connection from its local to its remote port.
func viewOf(t *testing.T, at *lab.Namespace, local, remote int) view {
	t.Helper()
	filter := []string{"sport", "=", fmt.Sprint(local), "and", "dport", "=", fmt.Sprint(remote)}
	args := append([]string{"-H", "-tino", "state", "established"}, filter...)
	out, err := at.Command(context.Background(), "ss", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ss: %v: %s", err, out)
	}
	if !strings.Contains(string(out), "advmss:") {
		t.Fatalf("ss shows no connection from port %d to %d: %q", local, remote, out)
	}
	return readView(string(out))
}

func readView(text string) view {
	var v view
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, ":")
		number, _ := strconv.Atoi(value)
		switch key {
		case "ts":
			v.timestamps = true
		case "sack":
			v.sack = true
		case "ecn":
			v.ecn = true
		case "wscale":
			v.scales = value
		case "mss":
			v.mss = number
		case "advmss":
			v.advmss = number
		}
	}
	return v
}

// tap sees the frames of a port, as tcpdump does, with their VLAN tags.
type tap struct {
	t  *testing.T
	fd int
}

func newTap(t *testing.T, at *lab.Namespace, port string) *tap {
	t.Helper()
	tap := &tap{t: t}
	err := at.Do(func() error { return tap.open(port) })
	if err != nil {
		t.Fatalf("tap %s in %s: %v", port, at.Name, err)
	}
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
		return err
	}
	return errors.Join(
		unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: allBE, Ifindex: device.Index}),
	)
}

// frame returns the next frame, nil if there is none for a while.
func (p *tap) frame() []byte {
	frame, control := make([]byte, 1<<16), make([]byte, 256)
	n, c, _, _, err := unix.Recvmsg(p.fd, frame, control, 0)
	if err != nil {
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			p.t.Fatalf("read the tap: %v", err)
		}
		return nil
	}
	return withTag(frame[:n], control[:c])
}

// withTag puts the tag that the kernel keeps beside the frame (struct
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
	var tag [4]byte
	binary.BigEndian.PutUint16(tag[:], binary.NativeEndian.Uint16(aux[18:]))
	binary.BigEndian.PutUint16(tag[2:], binary.NativeEndian.Uint16(aux[16:]))
	return append(append(frame[:12:12], tag[:]...), frame[12:]...)
}

// find waits for a frame.
func (p *tap) find(what string, wanted func(wire.Seen, []byte) bool) (wire.Seen, []byte) {
	p.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		frame := p.frame()
		if frame == nil {
			continue
		}
		if seen := wire.Read(frame); wanted(seen, frame) {
			return seen, frame
		}
	}
	p.t.Fatalf("no %s came by", what)
	return wire.Seen{}, nil
}

// handshake waits for the SYN from a client's port and the answer to it.
func (p *tap) handshake(clientPort int) (syn, synack wire.Seen) {
	p.t.Helper()
	syn, _ = p.find("SYN", func(s wire.Seen, _ []byte) bool {
		return s.Kind == wire.KindTCP && s.Flags&(wire.SYN|wire.ACK) == wire.SYN && int(s.SourcePort) == clientPort
	})
	synack, _ = p.find("SYN-ACK", func(s wire.Seen, _ []byte) bool {
		return s.Kind == wire.KindTCP && s.Flags&(wire.SYN|wire.ACK) == wire.SYN|wire.ACK && int(s.ToPort) == clientPort
	})
	return syn, synack
}
