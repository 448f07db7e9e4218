package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"smartcookie/internal/control"
)

const (
	connectionBytes = 40      // struct connection
	walkBuffer      = 1 << 15 // what the kernel gives at a time, at most
	tableBatch      = 4096    // entries of the table at a time
)

// SocketsEvery is how many walks there are to one over the sockets themselves.
const SocketsEvery = 60

// Walk hands out the established connections of protected services, the tenants'
// included.
func (s *Server) Walk(each func(control.Flow)) error {
	return errors.Join(s.walkTenants(each), s.walkOwn(each))
}

// walkOwn hands out those of this network namespace, from the table that the
// programs keep. The first walk, the next one after the table or the kernel has
// left out an event, and now and then another one go over the sockets.
func (s *Server) walkOwn(each func(control.Flow)) error {
	state, err := s.establishedState()
	if err != nil {
		return err
	}
	missed, err := s.missedEvents()
	if err != nil {
		return err
	}
	sockets := s.walks%SocketsEvery == 0 || state.Lost != 0 || missed != s.missed
	s.walks++
	s.missed = missed
	if !sockets {
		return s.walkTable(func(c *serverConnection, _ uint32) { each(tableFlow(c)) })
	}
	state.Round, state.Lost = state.Round+1, 0
	if err := s.setEstablishedState(state); err != nil {
		return err
	}
	err = s.walkSockets(each)
	if err == nil {
		err = s.forgetBefore(state.Round)
	}
	if err == nil {
		return nil
	}
	state.Lost = 1 // what the sockets would have added: the next walk goes over them again
	return errors.Join(err, s.setEstablishedState(state))
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
	for seen := 0; ; {
		n, err := s.objects.Established.BatchLookup(&cursor, keys, rounds, nil)
		seen += n
		for i := range n {
			each(&keys[i], rounds[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			s.note("established", seen, s.objects.Established.MaxEntries())
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

// missedEvents is how often the kernel did not run the program of the table,
// because an event came upon another one on the same CPU.
func (s *Server) missedEvents() (uint64, error) {
	stats, err := s.objects.ServerEstablished.Stats()
	if err != nil {
		return 0, fmt.Errorf("read statistics of the events: %w", err)
	}
	return stats.RecursionMisses, nil
}

// walkedFlow reads struct connection.
func walkedFlow(b []byte) control.Flow {
	return control.Flow{
		Client: netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[32:])),
		Server: netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[16:])).Unmap(), binary.BigEndian.Uint16(b[34:])),
	}
}

func tableFlow(c *serverConnection) control.Flow {
	return walkedFlow((*[connectionBytes]byte)(unsafe.Pointer(c))[:])
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
