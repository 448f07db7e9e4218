package server

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listener is a TCP socket that listens in this network namespace.
type Listener struct {
	Address netip.AddrPort
	MPTCP   bool
	Only6   bool // an IPv6 socket that takes no IPv4
}

// From linux/inet_diag.h and linux/sock_diag.h.
const (
	sockDiagByFamily = 20
	stateListen      = 10
	diagInfo         = 2  // INET_DIAG_INFO: without it there is no INET_DIAG_ULP_INFO
	diagOnly6        = 11 // INET_DIAG_SKV6ONLY
	diagULPInfo      = 19 // INET_DIAG_ULP_INFO
	diagULPName      = 1  // INET_ULP_INFO_NAME
	diagMessageLen   = 72 // struct inet_diag_msg
)

// diagRequest is struct inet_diag_req_v2 for a dump.
type diagRequest struct {
	family     uint8
	protocol   uint8
	extensions uint8 // bit n-1: attribute n
	states     uint32
}

func (r diagRequest) Len() int { return 56 }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0], b[1], b[2] = r.family, r.protocol, r.extensions
	binary.NativeEndian.PutUint32(b[4:], r.states)
	return b
}

// readListeners asks for listening sockets alone: walking a million
// connections to find them would hurt the server.
func readListeners() ([]Listener, error) {
	var all []Listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
		request.AddData(diagRequest{
			family: family, protocol: unix.IPPROTO_TCP,
			extensions: 1 << (diagInfo - 1), states: 1 << stateListen,
		})
		messages, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil {
			return nil, fmt.Errorf("list listeners: %w", err)
		}
		for _, m := range messages {
			if l, ok := parseListener(m); ok {
				all = append(all, l)
			}
		}
	}
	return all, nil
}

func parseListener(m []byte) (Listener, bool) {
	if len(m) < diagMessageLen {
		return Listener{}, false
	}
	var l Listener
	port := binary.BigEndian.Uint16(m[4:])
	if m[0] == unix.AF_INET6 {
		l.Address = netip.AddrPortFrom(netip.AddrFrom16([16]byte(m[8:24])), port)
	} else {
		l.Address = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m[8:12])), port)
	}
	attributes, err := nl.ParseRouteAttr(m[diagMessageLen:])
	if err != nil {
		return l, true
	}
	for _, a := range attributes {
		if a.Attr.Type&^unix.NLA_F_NESTED == diagULPInfo {
			l.MPTCP = ulpName(a.Value) == "mptcp"
		}
		if a.Attr.Type == diagOnly6 && len(a.Value) > 0 {
			l.Only6 = a.Value[0] != 0
		}
	}
	return l, true
}

func ulpName(nested []byte) string {
	attributes, err := nl.ParseRouteAttr(nested)
	if err != nil {
		return ""
	}
	for _, a := range attributes {
		if a.Attr.Type == diagULPName {
			return nl.BytesToString(a.Value)
		}
	}
	return ""
}
