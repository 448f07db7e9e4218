package wire

import (
	"net/netip"

	"smartcookie/internal/cookie"
)

// Answerer is an edge as far as its answers depend on it.
type Answerer struct {
	Slot       cookie.Slot
	Offer      cookie.Offer
	MSS4, MSS6 uint16
	Window     uint16
}

// Answer returns the frame that answers a SYN, by the reference model. The
// clock's part of TSval is the caller's.
func (a Answerer) Answer(frame []byte, s Seen, clockNS uint64) []byte {
	flow := cookie.Flow{
		Source:      netip.AddrPortFrom(s.Source, s.SourcePort),
		Destination: netip.AddrPortFrom(s.To, s.ToPort),
	}
	asked := ReadOptions(s.Options, s.Flags)
	record := cookie.Encode(flow.Family(), asked.Options, a.Offer)
	mss := a.MSS4
	if flow.Family() == cookie.IPv6 {
		mss = a.MSS6
	}
	agreed := Options{
		Options: record.Answer(flow.Family(), mss, a.Slot.WindowScale),
		TSval:   record.TSval(clockNS),
		TSecr:   asked.TSval,
	}
	answer := Packet{
		Source: flow.Destination, To: flow.Source,
		Seq: cookie.Make(a.Slot, flow, s.Seq, record.Code), Ack: s.Seq + 1,
		Flags: SYN | ACK, Window: a.Window, Options: AnswerOptions(agreed),
	}
	if agreed.ECN {
		answer.Flags |= ECE
	}
	return backTo(frame, s, answer)
}

// backTo puts a packet where the frame came from, with the same tags, priority
// bits included.
func backTo(frame []byte, s Seen, p Packet) []byte {
	back := append(append([]byte(nil), frame[6:12]...), frame[0:6]...)
	return append(append(back, frame[12:s.NetworkAt]...), p.Frame()[14:]...)
}

// Back returns the frame that brings a segment to the sender of another one:
// numbers, flags and window are the segment's.
func Back(frame []byte, s Seen, segment Packet) []byte {
	segment.Source, segment.To = netip.AddrPortFrom(s.To, s.ToPort), netip.AddrPortFrom(s.Source, s.SourcePort)
	return backTo(frame, s, segment)
}
