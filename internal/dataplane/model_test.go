package dataplane

import (
	"encoding/binary"
	"net/netip"

	"smartcookie/internal/cookie"
	"smartcookie/internal/filter"
	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// model says what the agents with the services and keys of the tests do with a
// frame. It is written from the contract, by other means than theirs.
type model struct {
	verified map[cookie.Flow]bool
	twin     *filter.Blocked
	listed   map[listing]bool
}

func newModel(twin *filter.Blocked) *model {
	return &model{verified: make(map[cookie.Flow]bool), twin: twin, listed: make(map[listing]bool)}
}

// decision is a verdict and the service that it counts for.
type decision struct {
	verdict string
	service int
}

func flowOf(s wire.Seen) cookie.Flow {
	return cookie.Flow{
		Source:      netip.AddrPortFrom(s.Source, s.SourcePort),
		Destination: netip.AddrPortFrom(s.To, s.ToPort),
	}
}

// protected says whether an address is in the prefix of a service that is on.
func protected(a netip.Addr) bool {
	for i := range services {
		if services[i].Mode == policy.Off {
			continue
		}
		for _, p := range services[i].Prefixes {
			if p.Contains(a) {
				return true
			}
		}
	}
	return false
}

// serviceOf returns the id of the service at an address and port.
func serviceOf(a netip.Addr, port uint16) int {
	if i, ok := policy.Protects(services, a, port); ok {
		return i + 1
	}
	return none
}

// judgeKind decides on what needs no service: true if that is all.
func judgeKind(s wire.Seen) (decision, bool) {
	switch {
	case s.Kind == wire.KindTags:
		return decision{"drop_vlan_depth", none}, true
	case s.Kind == wire.KindOther || s.Kind != wire.KindTCP && !protected(s.To):
		return decision{"pass_other", none}, true
	case s.Kind == wire.KindFragment:
		return decision{"drop_fragment", none}, true
	case s.Kind == wire.KindUnparsable:
		return decision{"drop_unparsable", none}, true
	}
	switch id := serviceOf(s.To, s.ToPort); id {
	case none:
		return decision{"pass_other", none}, true
	case off:
		return decision{"pass_off", off}, true
	}
	return decision{}, false
}

// faultOf is the verdict on a set of flags, from the table of flagSets.
var faultOf, kindOf = func() (faults [64]string, kinds [64]string) {
	for _, row := range flagSets {
		for _, set := range splitSets(row.sets) {
			kinds[flagsOf(set)] = row.edge
			if row.edge == row.server && row.edge != "drop_bad_cookie" && row.edge != "drop_unverified_synack" {
				faults[flagsOf(set)] = row.edge
			}
		}
	}
	return faults, kinds
}()

// outside is the edge's decision on a frame from the outside.
func (m *model) outside(s wire.Seen) decision {
	flow := flowOf(s)
	kind := kindOf[s.Flags&63]
	if s.Kind == wire.KindTCP && kind == "drop_bad_cookie" && m.verified[flow] {
		return decision{"pass_verified", none}
	}
	if d, done := judgeKind(s); done {
		return d
	}
	id := serviceOf(s.To, s.ToPort)
	if services[id-1].Strategy.Whitelists() && faultOf[s.Flags&63] == "" {
		return m.authenticate(s, flow, id, kind)
	}
	keyless := id == stops || id == passes
	switch {
	case faultOf[s.Flags&63] != "":
		return decision{faultOf[s.Flags&63], id}
	case kind == "answer_syn":
		return m.syn(s, id)
	case m.verified[flow]:
		return decision{"pass_verified", id}
	case kind == "drop_bad_cookie" && !keyless && m.proves(s, flow, id, cookie.EdgeWindow):
		m.add(flow)
		return decision{"pass_cookie", id}
	case id == passes:
		return decision{"pass_no_key", id}
	case kind == "drop_bad_cookie" && keyless:
		return decision{"drop_no_key", id}
	}
	return decision{kind, id}
}

// listing is a source that has met a service's challenge.
type listing struct {
	source  netip.Prefix
	service int
}

func listingOf(s wire.Seen, id int) listing {
	bits := services[id-1].Auth.Prefix6
	if s.Source.Is4() {
		bits = services[id-1].Auth.Prefix4
	}
	return listing{netip.PrefixFrom(s.Source, int(bits)).Masked(), id}
}

// authenticate is what strategies do that challenge a source once.
func (m *model) authenticate(s wire.Seen, flow cookie.Flow, id int, kind string) decision {
	bad := unanswerable(s.Source) || s.Source == s.To || s.ToMany
	reverse := cookie.Flow{Source: flow.Destination, Destination: flow.Source}
	switch {
	case kind == "answer_syn" && m.listed[listingOf(s, id)]:
		m.add(reverse)
		return decision{"pass_whitelisted", id}
	case kind == "answer_syn" && bad:
		return decision{"drop_bad_source", id}
	case kind == "answer_syn" && (id == authRST || m.verified[flow]):
		return decision{"answer_challenge", id}
	case kind == "answer_syn":
		return decision{"answer_syn", id}
	case m.meets(s, flow, id, kind) && bad:
		return decision{"drop_bad_source", id}
	case m.meets(s, flow, id, kind):
		m.listed[listingOf(s, id)] = true
		if s.Flags&wire.RST != 0 {
			return decision{"drop_challenged", id}
		}
		return decision{"answer_reset", id}
	case m.verified[flow]:
		return decision{"pass_verified", id}
	case s.Flags&wire.SYN == 0 && m.verified[reverse]:
		if s.Flags&wire.RST == 0 {
			m.add(flow)
		}
		return decision{"pass_finished", id}
	}
	return decision{kind, id}
}

// meets says whether a packet answers a challenge of its service.
func (m *model) meets(s wire.Seen, flow cookie.Flow, id int, kind string) bool {
	if s.Flags&(wire.SYN|wire.RST|wire.ACK) == wire.RST {
		slot := answerer(id).Slot
		r := cookie.Receiver{Epoch: testEpoch, Window: cookie.EdgeWindow, Slot: func(e uint64) (cookie.Slot, bool) { return slot, e == slot.Epoch }}
		return r.CheckChallenge(s.Seq, flow)
	}
	if kind != "drop_bad_cookie" || id == authRST {
		return false
	}
	return id == authFull && s.Ack == s.Seq || id == authCookie && m.proves(s, flow, id, cookie.EdgeWindow)
}

func (m *model) syn(s wire.Seen, id int) decision {
	switch {
	case id == stops:
		return decision{"drop_no_key", id}
	case id == passes:
		return decision{"pass_no_key", id}
	case unanswerable(s.Source) || s.Source == s.To || s.ToMany:
		return decision{"drop_bad_source", id}
	}
	return decision{"answer_syn", id}
}

func unanswerable(a netip.Addr) bool {
	if a.Is4() {
		first := a.As4()[0]
		return first == 0 || first == 127 || first >= 224
	}
	return a.IsUnspecified() || a == netip.IPv6Loopback() || a.IsMulticast() && !a.Is4In6()
}

func (m *model) proves(s wire.Seen, flow cookie.Flow, id int, w cookie.Window) bool {
	slot := answerer(id).Slot
	r := cookie.Receiver{Epoch: testEpoch, Window: w, Slot: func(e uint64) (cookie.Slot, bool) { return slot, e == slot.Epoch }}
	_, _, ok := r.Check(s.Ack-1, flow, s.Seq-1)
	return ok
}

func (m *model) add(flow cookie.Flow) {
	m.verified[flow] = true
	m.twin.Add(flow)
}

// inside is the edge's decision on a frame from a server.
func (m *model) inside(s wire.Seen) decision {
	kind := kindOf[s.Flags&63]
	proof := kind == "drop_bad_cookie" || kind == "answer_syn"
	if s.Kind == wire.KindTCP && proof && serviceOf(s.Source, s.SourcePort) != none {
		flow := flowOf(s)
		m.add(cookie.Flow{Source: flow.Destination, Destination: flow.Source})
	}
	return decision{"pass_inside", none}
}

// server is the decision of a server without sockets.
func (m *model) server(s wire.Seen) decision {
	if d, done := judgeKind(s); done {
		return d
	}
	id := serviceOf(s.To, s.ToPort)
	for _, row := range flagSets {
		for _, set := range splitSets(row.sets) {
			if flagsOf(set) != s.Flags&63 {
				continue
			}
			keyless := id == stops || id == passes
			if row.server == "drop_bad_cookie" && !keyless && m.proves(s, flowOf(s), id, cookie.ServerWindow) {
				return decision{"pass_closed_port", id}
			}
			return decision{row.server, id}
		}
	}
	panic("a set of flags is not in the table")
}

// readSKB is wire.Read for a frame whose tags are not the agent's.
func readSKB(frame []byte) wire.Seen {
	return wire.ReadIP(frame, 14, binary.BigEndian.Uint16(frame[12:]))
}
