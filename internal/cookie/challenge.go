package cookie

import "fmt"

// A challenge is a wrong acknowledgement number that the client's RST brings
// back (contract/challenge.md): a cookie without an ISN in its message, which a
// RST does not tell.

// The constants of contract.h, enum challenge_layout.
const (
	challengeFar  = 16      // the code of one that would be near
	challengeSpan = 1 << 16 // acknowledgements behind the ISN that a client could accept
)

// ChallengeMessage returns the bytes that the MAC covers, 12 for IPv4 and 36
// for IPv6.
func (f Flow) ChallengeMessage() []byte {
	m := f.Message(0)
	return m[:len(m)-3]
}

// ChallengeMAC returns T. The hash must be one of the two.
func ChallengeMAC(hash Hash, key Key, flow Flow) uint32 {
	message := flow.ChallengeMessage()
	switch hash {
	case SipHash:
		return uint32(SipHash24(key, message))
	case HalfSipHash:
		return HalfSipHash24([8]byte(key[:8]), message)
	}
	panic(fmt.Sprintf("cookie: %v makes no MAC", hash))
}

// MakeChallenge returns the acknowledgement number that answers a SYN of the
// flow with sequence number isn.
func MakeChallenge(slot Slot, flow Flow, isn uint32) uint32 {
	mac := ChallengeMAC(slot.Hash, slot.Key, flow)
	c := uint32(slot.Epoch&1)<<parityShift | mac&(1<<parityShift-1)
	if c-isn < challengeSpan {
		c ^= challengeFar << macBits
	}
	return c
}

// CheckChallenge says whether the sequence number of a RST is a challenge that
// the flow's source was sent.
func (r Receiver) CheckChallenge(seq uint32, flow Flow) bool {
	for _, e := range r.Window.candidates(r.Epoch, uint64(seq>>parityShift)) {
		slot, ok := r.Slot(e)
		if !ok || slot.Hash == 0 || slot.Epoch != e {
			continue
		}
		difference := ChallengeMAC(slot.Hash, slot.Key, flow) ^ seq
		if difference&^uint32(1<<parityShift|challengeFar<<macBits) == 0 {
			return true
		}
	}
	return false
}
