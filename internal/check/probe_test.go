package check

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

func TestVirtualServersAreRead(t *testing.T) {
	const text = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  C0000201:0050 rr
  -> 0A000001:0050      Masq    1      0          0
UDP  C0000201:0035 rr
TCP  [2001:0db8:0000:0000:0000:0000:0000:0001]:01BB wlc
TCP  nonsense
FWM  00000001 rr
`
	want := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("[2001:db8::1]:443")}
	if got := parseVirtual(text); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestSocketsAreCounted(t *testing.T) {
	for text, want := range map[string]int{
		"sockets: used 900\nTCP: inuse 12 orphan 0 tw 3 alloc 14 mem 2\nUDP: inuse 4 mem 1\n": 12,
		"TCP6: inuse 5\nUDP6: inuse 2\n": 5,
		"":                               0,
	} {
		if got := parseSockets(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestXDPFeaturesAreReadFromTheirMessage(t *testing.T) {
	attribute := func(kind uint16, value []byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		return append(binary.NativeEndian.AppendUint16(b, kind), value...)
	}
	m := append([]byte{1, 1, 0, 0}, attribute(netdevIndex, []byte{2, 0, 0, 0})...)
	whole := append(slices.Clone(m), attribute(netdevXDPFeatures, binary.NativeEndian.AppendUint64(nil, 0x67))...)
	if got, ok := parseXDPFeatures(whole); !ok || got != 0x67 {
		t.Errorf("%#x, %t", got, ok)
	}
	for _, broken := range [][]byte{nil, m[:3], m, append(slices.Clone(m), attribute(netdevXDPFeatures, make([]byte, 4))...)} {
		if _, ok := parseXDPFeatures(broken); ok {
			t.Errorf("%v has features", broken)
		}
	}
}
