package control

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"smartcookie/internal/keys"
)

// Silence is how long a peer may say nothing before it counts as silent
// (CONTROL_SILENCE_SECONDS of contract.h).
const Silence = 5 * time.Second

// Conn is a UDP socket.
type Conn interface {
	ReadFromUDPAddrPort(b []byte) (n int, from netip.AddrPort, err error)
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
}

// World is what surrounds an endpoint.
type World struct {
	Conn      Conn
	Keys      ControlKeys
	Monotonic func() time.Duration
	Random    func() uint64
	Log       *slog.Logger
}

// Phase is how an edge stands to an agent (enum agent_phase of contract.h).
type Phase uint32

// The phases.
const (
	Unheard  Phase = 0
	Grace    Phase = 1
	Enforced Phase = 2
	Silent   Phase = 3
)

var phaseNames = [...]string{Unheard: "unheard", Grace: "grace", Enforced: "enforced", Silent: "silent"}

func (p Phase) String() string { return phaseNames[p] }

// PhaseNames lists the phases by number.
func PhaseNames() []string { return phaseNames[:] }

// Peer is what a daemon shows of a peer (struct control_peer of contract.h).
type Peer struct {
	Phase         Phase
	Disagreements Disagreement
	AnyListens    bool
	Heard         time.Duration // monotonic; at an edge: when the last whole announcement began
}

// association is one life of both ends: two sessions that know each other.
type association struct {
	own     uint64 // our session, as the peer must echo it
	peer    uint64 // the peer's, 0 if unknown
	counter uint64 // of what we have sent
	window  window
}

// keyring remembers the keys of one peer for the periods that are in use.
type keyring struct {
	keys   ControlKeys
	domain string
	edge   uint32
	agent  uint32
}

func (k *keyring) key(to keys.Direction, period uint64) ([16]byte, bool) {
	return k.keys.Key(k.domain, to, k.edge, k.agent, period)
}

// sender puts messages of one peer on the wire.
func (w *World) send(ring *keyring, to keys.Direction, self uint32, a *association, address netip.AddrPort,
	kind Kind, flags uint16, body []byte) (bytes int) {
	period := periodOf(w.Keys.NowNS())
	key, ok := ring.key(to, period)
	if !ok {
		return 0 // the keys have run out: the peer will call us silent
	}
	a.counter++
	m := seal(key, Header{
		Kind: kind, Flags: flags, Sender: self, Period: period,
		Session: a.own, Echo: a.peer, Counter: a.counter,
	}, body)
	n, err := w.Conn.WriteToUDPAddrPort(m, address)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		w.Log.Debug("control message not sent", "to", address.String(), "error", err)
	}
	return n
}

// check says whether a message is a peer's own word of about now.
func (w *World) check(ring *keyring, from keys.Direction, h Header, m []byte) Event {
	now := periodOf(w.Keys.NowNS())
	if h.Period+periodsBehind < now || h.Period > now+periodsAhead {
		return RefusedPeriod
	}
	key, ok := ring.key(from, h.Period)
	if !ok {
		return RefusedKey
	}
	if !authentic(key, m) {
		return RefusedTag
	}
	return accepted
}

// serve hands every message to receive until the socket is closed.
func (w *World) serve(counters *Counters, receive func(m []byte, from netip.AddrPort) Event) error {
	buffer := make([]byte, messageBytes+1) // one byte more tells what is too long
	for {
		n, from, err := w.Conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			w.Log.Debug("control socket", "error", err)
			continue
		}
		counters.add(receive(buffer[:n], netip.AddrPortFrom(from.Addr().Unmap(), from.Port())), 1)
	}
}

// disagree logs a change in what a peer disagrees on, once.
func (w *World) disagree(peer string, id uint32, before *Disagreement, now Disagreement) {
	if *before == now {
		return
	}
	*before = now
	if now == 0 {
		w.Log.Info("halves agree again", peer, id)
		return
	}
	w.Log.Warn("halves disagree", peer, id, "on", strings.Join(now.Names(), ","))
}

// differences compares what both halves must have in common.
func differences(ours, theirs Agreement, clockNS, theirClockNS uint64) (d Disagreement) {
	if ours.Fingerprint != theirs.Fingerprint {
		d |= DisagreeKey
	}
	if ours.EpochSeconds != theirs.EpochSeconds {
		d |= DisagreeEpochLength
	}
	if ours.Scale != theirs.Scale {
		d |= DisagreeScale
	}
	skew := max(clockNS, theirClockNS) - min(clockNS, theirClockNS)
	if skew > uint64(ours.EpochSeconds)*uint64(time.Second)/2 {
		d |= DisagreeClock
	}
	return d
}
