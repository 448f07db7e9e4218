package control

import (
	"encoding/binary"
	"net/netip"
)

// Flow is an established connection of an agent's host.
type Flow struct {
	Client, Server netip.AddrPort
}

// Source walks the established connections of an agent's services.
type Source interface {
	Walk(each func(Flow)) error
}

// batch is the body of one KindFlows, without the number of its announcement.
type batch struct {
	body  []byte
	flows int
}

// packer sorts flows by server address and port into bodies as full as can be.
type packer struct {
	done    []batch
	current map[netip.AddrPort]*batch
}

// groupsOpen bounds how many half-full bodies there are at a time.
const groupsOpen = 1024

func newPacker() *packer { return &packer{current: make(map[netip.AddrPort]*batch)} }

func (p *packer) add(f Flow) {
	if f.Client.Addr().Is4() != f.Server.Addr().Is4() {
		return // no flow is of two families
	}
	b := p.current[f.Server]
	if b == nil {
		if len(p.current) >= groupsOpen {
			p.flush()
		}
		b = newBatch(f.Server)
		p.current[f.Server] = b
	}
	b.body = appendEnd(b.body, f.Client)
	b.flows++
	if room := bodyBytes - len(b.body); room < f.Client.Addr().BitLen()/8+2 {
		p.done = append(p.done, b.close())
		delete(p.current, f.Server)
	}
}

func newBatch(server netip.AddrPort) *batch {
	body := make([]byte, flowsBytes, bodyBytes)
	family := byte(4)
	if !server.Addr().Is4() {
		family = 6
	}
	body = append(body, family, 0)
	body = binary.BigEndian.AppendUint16(body, server.Port())
	body = append(body, server.Addr().AsSlice()...)
	return &batch{body: body}
}

// close writes the count of the flows into the body's only group.
func (b *batch) close() batch {
	b.body[flowsBytes+1] = byte(b.flows)
	return *b
}

// flush joins what is not full: groups of few flows share a body.
func (p *packer) flush() {
	var open *batch
	for _, b := range p.current {
		closed := b.close()
		if open != nil && len(open.body)+len(closed.body)-flowsBytes <= bodyBytes {
			open.body = append(open.body, closed.body[flowsBytes:]...)
			open.flows += closed.flows
			continue
		}
		if open != nil {
			p.done = append(p.done, *open)
		}
		open = &closed
	}
	if open != nil {
		p.done = append(p.done, *open)
	}
	clear(p.current)
}

// number writes where in its announcement a body stands.
func (b batch) number(announcement, index uint32) {
	binary.BigEndian.PutUint32(b.body, announcement)
	binary.BigEndian.PutUint32(b.body[4:], index)
}

// announced is a decoded KindFlows.
type announced struct {
	announcement, index uint32
	last                bool
	flows               []Flow
}

// decodeFlows appends the flows to a slice that it may use again.
func decodeFlows(flags uint16, b []byte, into []Flow) (a announced, ok bool) {
	if len(b) < flowsBytes || flags&^flowsLast != 0 {
		return a, false
	}
	a = announced{
		announcement: binary.BigEndian.Uint32(b), index: binary.BigEndian.Uint32(b[4:]),
		last: flags&flowsLast != 0, flows: into,
	}
	return a, a.groups(b[flowsBytes:])
}

// groups reads groups of flows to the end.
func (a *announced) groups(b []byte) (ok bool) {
	for len(b) > 0 {
		if b, ok = a.group(b); !ok {
			return false
		}
	}
	return true
}

// group reads one group of flows and returns what is behind it.
func (a *announced) group(b []byte) (rest []byte, ok bool) {
	if len(b) < group4Bytes || (b[0] != 4 && b[0] != 6) || b[1] == 0 {
		return nil, false
	}
	count, port := int(b[1]), binary.BigEndian.Uint16(b[2:])
	if b[0] == 4 {
		server := netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port)
		if b = b[group4Bytes:]; len(b) < count*listener4Bytes {
			return nil, false
		}
		for ; count > 0; count-- {
			a.flows = append(a.flows, Flow{Client: end4(b), Server: server})
			b = b[listener4Bytes:]
		}
		return b, true
	}
	if len(b) < group6Bytes {
		return nil, false
	}
	server := netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[4:])), port)
	if b = b[group6Bytes:]; len(b) < count*listener6Bytes {
		return nil, false
	}
	for ; count > 0; count-- {
		a.flows = append(a.flows, Flow{Client: end6(b), Server: server})
		b = b[listener6Bytes:]
	}
	return b, true
}
