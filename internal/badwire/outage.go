package badwire

import (
	"encoding/binary"
	"sync"
	"time"
)

// Outage is a time in which a wire loses everything, in both directions. It
// begins behind the first frame that matches; that frame itself passes.
type Outage struct {
	Match func(frame []byte) bool
	For   time.Duration
	// EachFlow gives every TCP connection an outage of its own, which begins
	// with its own first match and is lost to it alone.
	EachFlow bool
}

// flowsLimit bounds the memory of outages: flows beyond it have none.
const flowsLimit = 64 << 10

// outages is what a wire remembers of its outage. Both directions ask it.
type outages struct {
	mu     sync.Mutex
	outage Outage
	until  map[flow]time.Duration
}

func newOutages(outage Outage) *outages {
	return &outages{outage: outage, until: make(map[flow]time.Duration)}
}

// lost tells whether the frame falls into an outage, and lets one begin.
func (o *outages) lost(frame []byte, now time.Duration) bool {
	var key flow
	if o.outage.EachFlow {
		var ok bool
		if key, ok = flowOf(frame); !ok {
			return false
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if until, begun := o.until[key]; begun {
		return now < until
	}
	if len(o.until) < flowsLimit && o.outage.Match(frame) {
		o.until[key] = now + o.outage.For
	}
	return false
}

// flow names a TCP connection, the same in both directions.
type flow struct {
	low, high end
}

type end struct {
	address [16]byte
	port    uint16
}

func (e end) below(other end) bool {
	for i := range e.address {
		if e.address[i] != other.address[i] {
			return e.address[i] < other.address[i]
		}
	}
	return e.port < other.port
}

// Layout of the frames of a lab: no VLAN tags, no IPv6 extension headers.
const (
	ethernetBytes = 14
	ip4Bytes      = 20
	ip6Bytes      = 40
	tcpBytes      = 20
	etherTypeIP4  = 0x0800
	etherTypeIP6  = 0x86dd
	protocolTCP   = 6
)

// flowOf reads the ends of a TCP frame.
func flowOf(frame []byte) (flow, bool) {
	tcp, source, target, ok := segmentOf(frame)
	if !ok {
		return flow{}, false
	}
	var from, to end
	copy(from.address[:], source)
	copy(to.address[:], target)
	from.port, to.port = binary.BigEndian.Uint16(tcp), binary.BigEndian.Uint16(tcp[2:])
	if to.below(from) {
		from, to = to, from
	}
	return flow{from, to}, true
}

// segmentOf returns a frame's TCP segment and addresses.
func segmentOf(frame []byte) (tcp, source, target []byte, ok bool) {
	if len(frame) < ethernetBytes+ip4Bytes {
		return nil, nil, nil, false
	}
	ip := frame[ethernetBytes:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherTypeIP4:
		at := int(ip[0]&15) * 4
		if ip[9] != protocolTCP || at < ip4Bytes || len(ip) < at+tcpBytes {
			return nil, nil, nil, false
		}
		return ip[at:], ip[12:16], ip[16:20], true
	case etherTypeIP6:
		if len(ip) < ip6Bytes+tcpBytes || ip[6] != protocolTCP {
			return nil, nil, nil, false
		}
		return ip[ip6Bytes:], ip[8:24], ip[24:40], true
	}
	return nil, nil, nil, false
}

// Flags of a TCP header (RFC 9293 3.1).
const (
	flagSYN = 1 << 1
	flagACK = 1 << 4
)

// IsSYNACK tells whether a frame is a SYN-ACK, the match of an outage.
func IsSYNACK(frame []byte) bool {
	tcp, _, _, ok := segmentOf(frame)
	return ok && tcp[13]&(flagSYN|flagACK) == flagSYN|flagACK
}
