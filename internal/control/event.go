package control

import "sync/atomic"

// Event is what an endpoint counts (enum control_event of contract.h).
type Event int

// The events, in the contract's order.
const (
	SentHello Event = iota
	SentState
	SentFlows
	SentBytes
	HeardHello
	HeardState
	HeardFlows
	UnconfirmedHello
	Announced
	Learned
	RefusedLength
	RefusedVersion
	RefusedKind
	RefusedSender
	RefusedPeriod
	RefusedKey
	RefusedTag
	RefusedSession
	RefusedReplay
	RefusedBody
	RefusedForeign
	RefusedUnprotected
	SentSetup
	SentProbe
	SentConfirm
	HeardSetup
	HeardProbe
	HeardConfirm
	UnknownProbe
	UnconfirmedSetup
	Confirmed
	Unsent
	RefusedUnasked
	eventCount

	accepted Event = -1
)

var eventNames = [eventCount]string{
	"sent_hello", "sent_state", "sent_flows", "sent_bytes", "heard_hello", "heard_state", "heard_flows",
	"unconfirmed_hello", "announced", "learned", "refused_length", "refused_version", "refused_kind",
	"refused_sender", "refused_period", "refused_key", "refused_tag", "refused_session", "refused_replay",
	"refused_body", "refused_foreign", "refused_unprotected", "sent_setup", "sent_probe", "sent_confirm",
	"heard_setup", "heard_probe", "heard_confirm", "unknown_probe", "unconfirmed_setup", "confirmed",
	"unsent", "refused_unasked",
}

func (e Event) String() string { return eventNames[e] }

// EventNames lists the events by number.
func EventNames() []string { return eventNames[:] }

// Counters count events; any goroutine may.
type Counters [eventCount]atomic.Uint64

func (c *Counters) add(e Event, n uint64) { c[e].Add(n) }

// Read returns the counts by event.
func (c *Counters) Read() []uint64 {
	all := make([]uint64, eventCount)
	for i := range c {
		all[i] = c[i].Load()
	}
	return all
}

// Disagreement is a set of things on which two halves differ (enum
// control_disagreement of contract.h).
type Disagreement uint32

// What halves can disagree on.
const (
	DisagreeKey Disagreement = 1 << iota
	DisagreeEpochLength
	DisagreeClock
	DisagreeScale
	DisagreeMSS
	DisagreeMode
	UnheardKey
	UnheardClock
	lastDisagreement = UnheardClock
)

var disagreementNames = []string{
	"key", "epoch_length", "clock", "scale", "mss", "mode", "unheard_key", "unheard_clock",
}

// DisagreementNames lists all that a set can have.
func DisagreementNames() []string { return disagreementNames }

// Names lists what is in the set.
func (d Disagreement) Names() (names []string) {
	for i, name := range disagreementNames {
		if d&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}
