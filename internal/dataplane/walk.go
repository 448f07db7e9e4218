package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/cilium/ebpf/link"

	"smartcookie/internal/control"
)

const (
	connectionBytes = 40      // struct connection
	walkBuffer      = 1 << 15 // what the kernel gives at a time, at most
)

// Walk hands out the established connections of protected services in this
// network namespace.
func (s *Server) Walk(each func(control.Flow)) error {
	iterator, err := link.AttachIter(link.IterOptions{Program: s.objects.WalkConnections})
	if err != nil {
		return fmt.Errorf("attach iterator: %w", err)
	}
	defer iterator.Close()
	sockets, err := iterator.Open()
	if err != nil {
		return fmt.Errorf("open iterator: %w", err)
	}
	defer sockets.Close()
	buffer := make([]byte, walkBuffer/connectionBytes*connectionBytes)
	for {
		n, err := io.ReadAtLeast(sockets, buffer, connectionBytes)
		for b := buffer[:n]; len(b) >= connectionBytes; b = b[connectionBytes:] {
			each(walkedFlow(b))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read iterator: %w", err)
		}
		if n%connectionBytes != 0 {
			return fmt.Errorf("read iterator: %d bytes are no whole connections", n)
		}
	}
}

// walkedFlow reads struct connection.
func walkedFlow(b []byte) control.Flow {
	client, server := netip.AddrFrom16([16]byte(b)).Unmap(), netip.AddrFrom16([16]byte(b[16:])).Unmap()
	return control.Flow{
		Client: netip.AddrPortFrom(client, binary.BigEndian.Uint16(b[32:])),
		Server: netip.AddrPortFrom(server, binary.BigEndian.Uint16(b[34:])),
	}
}

// SetEnforced makes the agent as strict as it is told until a coarse monotonic
// time, because an edge enforces.
func (s *Server) SetEnforced(until time.Duration) error {
	memory, err := s.objects.EnforcedUntil.Memory()
	if err != nil {
		return fmt.Errorf("map enforced_until: %w", err)
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(until))
	if _, err := memory.WriteAt(b[:], 0); err != nil {
		return fmt.Errorf("write enforced_until: %w", err)
	}
	return nil
}

// SetPeer shows what the agent knows of an edge.
func (s *Server) SetPeer(edge uint32, p control.Peer) error { return putPeer(s.objects.Edges, edge, p) }
