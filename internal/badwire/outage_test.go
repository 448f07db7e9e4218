package badwire

import (
	"net/netip"
	"testing"
	"time"

	"smartcookie/test/wire"
)

// The ends of two connections, of each family.
var (
	client4 = netip.MustParseAddrPort("10.0.0.1:4000")
	other4  = netip.MustParseAddrPort("10.0.0.1:4001")
	server4 = netip.MustParseAddrPort("10.0.0.2:80")
	client6 = netip.MustParseAddrPort("[fd00::1]:4000")
	other6  = netip.MustParseAddrPort("[fd00::1]:4001")
	server6 = netip.MustParseAddrPort("[fd00::2]:80")
)

func segment(from, to netip.AddrPort, flags wire.Flags) []byte {
	return wire.Packet{Source: from, To: to, Flags: flags}.Frame()
}

const synACK = wire.SYN | wire.ACK

func TestOutageBeginsBehindItsMatchAndEnds(t *testing.T) {
	o := newOutages(Outage{Match: IsSYNACK, For: time.Second})
	for _, step := range []struct {
		frame []byte
		at    time.Duration
		lost  bool
	}{
		{segment(client4, server4, wire.SYN), 0, false},
		{segment(server4, client4, synACK), 1, false},
		{segment(client4, server4, wire.ACK), 2, true},
		{segment(client6, server6, wire.SYN), 3, true},
		{[]byte{1, 2, 3}, 4, true},
		{segment(client4, server4, wire.ACK), time.Second, true},
		{segment(client4, server4, wire.ACK), time.Second + 1, false},
		{segment(server4, client4, synACK), time.Second + 2, false},
		{segment(client4, server4, wire.ACK), time.Second + 3, false},
	} {
		if got := o.lost(step.frame, step.at); got != step.lost {
			t.Errorf("at %s: lost %t, want %t", step.at, got, step.lost)
		}
	}
}

func TestEachFlowHasAnOutageOfItsOwn(t *testing.T) {
	for _, ends := range [][3]netip.AddrPort{{client4, other4, server4}, {client6, other6, server6}} {
		client, other, server := ends[0], ends[1], ends[2]
		o := newOutages(Outage{Match: IsSYNACK, For: time.Second, EachFlow: true})
		for i, step := range []struct {
			frame []byte
			at    time.Duration
			lost  bool
		}{
			{segment(server, client, synACK), 0, false},
			{segment(client, server, wire.ACK), 1, true},
			{segment(server, client, wire.ACK), 2, true},
			{segment(other, server, wire.ACK), 3, false},
			{segment(server, other, synACK), time.Second, false},
			{segment(client, server, wire.ACK), time.Second, false},
			{segment(other, server, wire.ACK), time.Second + 1, true},
			{[]byte{1, 2, 3}, time.Second + 1, false},
		} {
			if got := o.lost(step.frame, step.at); got != step.lost {
				t.Errorf("step %d: lost %t, want %t", i, got, step.lost)
			}
		}
	}
}

func TestMemoryOfOutagesIsBounded(t *testing.T) {
	o := newOutages(Outage{Match: IsSYNACK, For: time.Second, EachFlow: true})
	for i := range flowsLimit + 100 {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 16), 1}), uint16(i))
		o.lost(segment(server4, client, synACK), 0)
	}
	if len(o.until) != flowsLimit {
		t.Errorf("%d flows are remembered, want %d", len(o.until), flowsLimit)
	}
}

func TestTruncatedFramesAreNoFlow(t *testing.T) {
	for _, whole := range [][]byte{segment(server4, client4, synACK), segment(server6, client6, synACK)} {
		for length := range len(whole) {
			if _, ok := flowOf(whole[:length]); ok || IsSYNACK(whole[:length]) {
				t.Errorf("%d of %d bytes are taken for a segment", length, len(whole))
			}
		}
		if _, ok := flowOf(whole); !ok || !IsSYNACK(whole) {
			t.Error("a SYN-ACK is not seen")
		}
	}
}
