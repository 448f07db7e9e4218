package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"smartcookie/internal/control"
)

const (
	connectionBytes = 40      // struct connection
	walkBuffer      = 1 << 15 // what the kernel gives at a time, at most
	tableBatch      = 4096    // entries of the table at a time
	socketsEvery    = 10      // walks: then the sockets themselves are walked
)

// Walk hands out the established connections of protected services, the tenants'
// included.
func (s *Server) Walk(each func(control.Flow)) error {
	return errors.Join(s.walkTenants(each), s.walkOwn(each))
}

// walkOwn hands out those of this network namespace, from the table that the
// programs keep. The first walk, some later ones, and all where the table is too
// small go over the sockets.
func (s *Server) walkOwn(each func(control.Flow)) error {
	state, err := s.establishedState()
	if err != nil {
		return err
	}
	sockets := s.walks%socketsEvery == 0 || state.Lost != 0
	s.walks++
	if !sockets {
		return s.walkTable(func(c *serverConnection, _ uint32) { each(tableFlow(c)) })
	}
	state.Round, state.Lost = state.Round+1, 0
	if err := s.setEstablishedState(state); err != nil {
		return err
	}
	if err := s.walkSockets(each); err != nil {
		return err
	}
	return s.forgetBefore(state.Round)
}

// forgetBefore removes what a walk over the sockets has not seen: the event of
// its end was missed.
func (s *Server) forgetBefore(round uint32) error {
	var stale []serverConnection
	if err := s.walkTable(func(c *serverConnection, seen uint32) {
		if seen != round {
			stale = append(stale, *c)
		}
	}); err != nil {
		return err
	}
	for i := range stale {
		if err := s.objects.Established.Delete(&stale[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget connection: %w", err)
		}
	}
	return nil
}

func (s *Server) walkTable(each func(*serverConnection, uint32)) error {
	var cursor ebpf.MapBatchCursor
	keys, rounds := make([]serverConnection, tableBatch), make([]uint32, tableBatch)
	for {
		n, err := s.objects.Established.BatchLookup(&cursor, keys, rounds, nil)
		for i := range n {
			each(&keys[i], rounds[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil // the end
		}
		if err != nil {
			return fmt.Errorf("read connections: %w", err)
		}
	}
}

func (s *Server) walkSockets(each func(control.Flow)) error {
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
	return control.Flow{
		Client: netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[32:])),
		Server: netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[16:])).Unmap(), binary.BigEndian.Uint16(b[34:])),
	}
}

func tableFlow(c *serverConnection) control.Flow {
	var b [connectionBytes]byte
	for i := range 4 {
		binary.NativeEndian.PutUint32(b[4*i:], c.ClientBe[i])
		binary.NativeEndian.PutUint32(b[16+4*i:], c.ServerBe[i])
	}
	binary.NativeEndian.PutUint16(b[32:], c.ClientPortBe)
	binary.NativeEndian.PutUint16(b[34:], c.ServerPortBe)
	return walkedFlow(b[:])
}

func (s *Server) establishedState() (state serverEstablishedState, err error) {
	if err := s.objects.EstablishedRound.Lookup(uint32(0), &state); err != nil {
		return state, fmt.Errorf("read state of the connections: %w", err)
	}
	return state, nil
}

func (s *Server) setEstablishedState(state serverEstablishedState) error {
	if err := s.objects.EstablishedRound.Put(uint32(0), state); err != nil {
		return fmt.Errorf("write state of the connections: %w", err)
	}
	return nil
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
