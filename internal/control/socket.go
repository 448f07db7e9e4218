package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketBuffer holds the first announcement of a million flows while the
// daemon is busy.
const socketBuffer = 8 << 20

// Listen opens a socket at an address that receives from one device alone: a
// packet that comes in elsewhere never reaches it, whatever its addresses are.
func Listen(ctx context.Context, at netip.AddrPort, device string) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = errors.Join(
				unix.BindToDevice(int(fd), device),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer),
			)
		}), err)
	}}
	conn, err := config.ListenPacket(ctx, "udp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen for control messages on %s at %s: %w", device, at, err)
	}
	return conn.(*net.UDPConn), nil
}
