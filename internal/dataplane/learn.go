package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"smartcookie/internal/control"
)

// Learn puts flows that an agent has announced into the filter, those of
// protected services, and returns how many. The hash is the kernel's alone.
func (e *Edge) Learn(flows []control.Flow) (learned int, err error) {
	for len(flows) > 0 {
		n := min(len(flows), int(edgeAnnouncedLimitANNOUNCED_MAX))
		added, err := e.learn(flows[:n])
		if err != nil {
			return learned, err
		}
		learned, flows = learned+added, flows[n:]
	}
	return learned, nil
}

func (e *Edge) learn(flows []control.Flow) (int, error) {
	memory, err := e.objects.Announcements.Memory()
	if err != nil {
		return 0, fmt.Errorf("map announcements: %w", err)
	}
	b := binary.NativeEndian.AppendUint32(e.announced[:0], uint32(len(flows)))
	b = binary.NativeEndian.AppendUint32(b, 0)
	for i := range flows {
		b = appendAnnounced(b, &flows[i])
	}
	e.announced = b
	if _, err := memory.WriteAt(b, 0); err != nil {
		return 0, fmt.Errorf("write announcement: %w", err)
	}
	if code, err := e.objects.LearnFlows.Run(&ebpf.RunOptions{}); err != nil || code != 0 {
		return 0, fmt.Errorf("learn flows: code %d, %w", int32(code), err)
	}
	var learned [4]byte
	if _, err := memory.ReadAt(learned[:], 4); err != nil {
		return 0, fmt.Errorf("read announcement: %w", err)
	}
	return int(binary.NativeEndian.Uint32(learned[:])), nil
}

// appendAnnounced writes struct announced.
func appendAnnounced(b []byte, f *control.Flow) []byte {
	b = appendWords(b, f.Client.Addr())
	b = appendWords(b, f.Server.Addr())
	b = binary.NativeEndian.AppendUint32(b, uint32(f.Client.Port())<<16|uint32(f.Server.Port()))
	return binary.NativeEndian.AppendUint32(b, uint32(b2u(!f.Client.Addr().Is4())))
}

// appendWords writes an address as struct flow has it.
func appendWords(b []byte, a netip.Addr) []byte {
	words := addressWords(a)
	for _, w := range words {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b
}

func addressWords(a netip.Addr) (words [4]uint32) {
	if a.Is4() {
		b := a.As4()
		words[0] = binary.BigEndian.Uint32(b[:])
		return words
	}
	b := a.As16()
	for i := range words {
		words[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	return words
}

func b2u(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// Cover tells which agent, by its id, protects the addresses of a prefix.
func (e *Edge) Cover(prefix netip.Prefix, agent uint32) error {
	return putPrefix(e.objects.Covered4, e.objects.Covered6, prefix, agent)
}

// SetPeer shows how the edge stands to an agent; the programs act on it.
func (e *Edge) SetPeer(agent uint32, p control.Peer) error {
	if err := putPeer(e.objects.Agents, agent, p); err != nil {
		return err
	}
	return e.raiseVersion()
}

// GetPeer returns what is set.
func (e *Edge) GetPeer(agent uint32) (control.Peer, bool) { return getPeer(e.objects.Agents, agent) }

// KeepAgents forgets agents that are no longer configured.
func (e *Edge) KeepAgents(ids map[uint32]bool) error {
	for id := range peersOf(e.objects.Agents) {
		if ids[id] {
			continue
		}
		if err := e.objects.Agents.Delete(id); err != nil {
			return fmt.Errorf("forget agent %d: %w", id, err)
		}
		if err := e.SetListeners(id, nil); err != nil {
			return err
		}
	}
	return nil
}

// SetListeners replaces the ports on which an agent listens: first new ones
// are added, then others removed.
func (e *Edge) SetListeners(agent uint32, all []netip.AddrPort) error {
	want := make(map[edgeListening]bool)
	for _, l := range all {
		key := edgeListening{Agent: agent, Address: addressWords(l.Addr()), Port: l.Port(), V6: b2u(!l.Addr().Is4())}
		want[key] = true
		if err := e.objects.Listeners.Put(key, uint8(1)); err != nil {
			return fmt.Errorf("write listener %s of agent %d: %w", l, agent, err)
		}
	}
	var key edgeListening
	var one uint8
	var gone []edgeListening
	for entries := e.objects.Listeners.Iterate(); entries.Next(&key, &one); {
		if key.Agent == agent && !want[key] {
			gone = append(gone, key)
		}
	}
	for _, key := range gone {
		if err := e.objects.Listeners.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove listener of agent %d: %w", agent, err)
		}
	}
	return e.raiseVersion()
}

func putPeer(m *ebpf.Map, id uint32, p control.Peer) error {
	v := edgeControlPeer{
		Phase: uint32(p.Phase), Disagreements: uint32(p.Disagreements),
		AnyListens: uint32(b2u(p.AnyListens)), HeardNs: uint64(p.Heard),
	}
	if err := m.Put(id, v); err != nil {
		return fmt.Errorf("write peer %d: %w", id, err)
	}
	return nil
}

func getPeer(m *ebpf.Map, id uint32) (control.Peer, bool) {
	var v edgeControlPeer
	if err := m.Lookup(id, &v); err != nil {
		return control.Peer{}, false
	}
	return peerOf(v), true
}

func peerOf(v edgeControlPeer) control.Peer {
	return control.Peer{
		Phase: control.Phase(v.Phase), Disagreements: control.Disagreement(v.Disagreements),
		AnyListens: v.AnyListens != 0, Heard: time.Duration(v.HeardNs),
	}
}

func peersOf(m *ebpf.Map) map[uint32]control.Peer {
	all := make(map[uint32]control.Peer)
	var id uint32
	var v edgeControlPeer
	for entries := m.Iterate(); entries.Next(&id, &v); {
		all[id] = peerOf(v)
	}
	return all
}
