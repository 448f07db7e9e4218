package server

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
)

// diagMessage is struct inet_diag_msg of a listener, with attributes behind.
func diagMessage(family byte, address netip.Addr, port uint16, attributes ...byte) []byte {
	m := make([]byte, diagMessageLen, diagMessageLen+len(attributes))
	m[0] = family
	binary.BigEndian.PutUint16(m[4:], port)
	copy(m[8:], address.AsSlice())
	return append(m, attributes...)
}

// attribute is a netlink attribute, padded to four bytes.
func attribute(kind uint16, value []byte) []byte {
	a := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	a = append(binary.NativeEndian.AppendUint16(a, kind), value...)
	return append(a, make([]byte, (4-len(a)%4)%4)...)
}

const (
	inet, inet6  = 2, 10
	nested       = 1 << 15
	ulpMPTCPInfo = 4 // INET_ULP_INFO_MPTCP
)

func ulp(kind uint16, name string) []byte {
	return attribute(kind, append(attribute(diagULPName, append([]byte(name), 0)), attribute(ulpMPTCPInfo, make([]byte, 8))...))
}

func TestListenerIsReadFromItsMessage(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	other := attribute(8, []byte{1})
	for name, test := range map[string]struct {
		message []byte
		want    Listener
	}{
		"IPv4":         {diagMessage(inet, four, 80), Listener{Address: netip.AddrPortFrom(four, 80)}},
		"IPv6":         {diagMessage(inet6, six, 443), Listener{Address: netip.AddrPortFrom(six, 443)}},
		"MPTCP":        {diagMessage(inet, four, 80, append(other, ulp(diagULPInfo, "mptcp")...)...), Listener{netip.AddrPortFrom(four, 80), true, false}},
		"MPTCP nested": {diagMessage(inet6, six, 80, ulp(diagULPInfo|nested, "mptcp")...), Listener{netip.AddrPortFrom(six, 80), true, false}},
		"TLS":          {diagMessage(inet, four, 80, ulp(diagULPInfo, "tls")...), Listener{Address: netip.AddrPortFrom(four, 80)}},
		"other":        {diagMessage(inet, four, 80, ulp(diagULPInfo+1, "mptcp")...), Listener{Address: netip.AddrPortFrom(four, 80)}},
		"cut short":    {diagMessage(inet, four, 80, 99, 0, 19, 0), Listener{Address: netip.AddrPortFrom(four, 80)}},
	} {
		if got, ok := parseListener(test.message); !ok || got != test.want {
			t.Errorf("%s: %+v, %t; want %+v", name, got, ok, test.want)
		}
	}
	if _, ok := parseListener(make([]byte, diagMessageLen-1)); ok {
		t.Error("a message that is too short is a listener")
	}
}

func TestOwnListenersAreFoundAndMPTCPIsTold(t *testing.T) {
	for _, mptcp := range []bool{false, true} {
		var c net.ListenConfig
		c.SetMultipathTCP(mptcp)
		l, err := c.Listen(context.Background(), "tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := os.Stat("/proc/sys/net/mptcp/enabled"); mptcp && err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal("this kernel has no MPTCP (CONFIG_MPTCP)")
			}
			t.Skip("this kernel has no MPTCP (CONFIG_MPTCP)")
		}
		all, err := readListeners()
		if err != nil {
			t.Fatal(err)
		}
		want := Listener{l.Addr().(*net.TCPAddr).AddrPort(), mptcp, false}
		if !slices.Contains(all, want) {
			t.Errorf("no %+v among %+v", want, all)
		}
	}
}
