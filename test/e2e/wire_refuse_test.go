package e2e

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// wireForbidden are packets of a live connection that no stack sends: each is
// made of a segment that would be welcome.
var wireForbidden = map[string]struct {
	verdict string
	damage  func(f *wireFlow, frame []byte) [][]byte
}{
	"null":          {"drop_flags_null", wireWithFlags(0)},
	"SYN+FIN":       {"drop_flags_syn_fin", wireWithFlags(0x03)},
	"SYN+FIN+ACK":   {"drop_flags_syn_fin", wireWithFlags(0x13)},
	"SYN+RST":       {"drop_flags_syn_rst", wireWithFlags(0x06)},
	"Xmas":          {"drop_flags_xmas", wireWithFlags(0x29)},
	"FIN":           {"drop_flags_other", wireWithFlags(0x01)},
	"PSH":           {"drop_flags_other", wireWithFlags(0x08)},
	"URG":           {"drop_flags_other", wireWithFlags(0x20)},
	"RST+FIN":       {"drop_flags_other", wireWithFlags(0x05)},
	"short header":  {"drop_unparsable", wireWithOffset(4)},
	"long header":   {"drop_unparsable", wireWithOffset(15)},
	"first of two":  {"drop_fragment", wireFragment(0, true)},
	"second of two": {"drop_fragment", wireFragment(8, false)},
	"far fragment":  {"drop_fragment", wireFragment(1000, false)},
}

// wireTCPAt is where a frame's TCP header begins.
func wireTCPAt(f *wireFlow) int {
	if f.v6 {
		return 14 + 40
	}
	return 14 + 20
}

func wireWithFlags(flags byte) func(*wireFlow, []byte) [][]byte {
	return func(f *wireFlow, frame []byte) [][]byte {
		frame[wireTCPAt(f)+13] = flags
		return [][]byte{frame}
	}
}

func wireWithOffset(words byte) func(*wireFlow, []byte) [][]byte {
	return func(f *wireFlow, frame []byte) [][]byte {
		frame[wireTCPAt(f)+12] = words << 4
		return [][]byte{frame}
	}
}

// wireFragment says that a frame is a fragment: with a header's bytes in IPv4,
// with a header of its own in IPv6.
func wireFragment(units uint16, more bool) func(*wireFlow, []byte) [][]byte {
	return func(f *wireFlow, frame []byte) [][]byte {
		at := wireTCPAt(f)
		if !f.v6 {
			word := units
			if more {
				word |= 1 << 13
			}
			binary.BigEndian.PutUint16(frame[14+6:], word)
			binary.BigEndian.PutUint16(frame[14+10:], 0)
			binary.BigEndian.PutUint16(frame[14+10:], wireSum(frame[14:at]))
			return [][]byte{frame}
		}
		word := units << 3
		if more {
			word |= 1
		}
		header := append([]byte{byte(layers.IPProtocolTCP), 0, byte(word >> 8), byte(word)}, 0, 0, 0, 1)
		frame = slices.Insert(frame, at, header...)
		frame[14+6] = byte(layers.IPProtocolIPv6Fragment)
		binary.BigEndian.PutUint16(frame[14+4:], uint16(len(frame)-at))
		return [][]byte{frame}
	}
}

// wireSum is the checksum of an IPv4 header whose own is 0.
func wireSum(header []byte) uint16 {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	sum = sum&0xffff + sum>>16
	return ^uint16(sum + sum>>16)
}

// Fragments and illegal flags of a protected service end at the edge, also
// those of a flow that is proven. (Where the server translates, its taps see the
// first packet twice.)
func TestForbiddenPacketsDoNotReachTheServer(t *testing.T) {
	for _, shape := range wireShapes {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{setup: "native"})
			edge := "edge"
			if shape.host {
				edge = "host"
			}
			wireFamilies(t, func(t *testing.T, v6 bool) {
				s := w.serve(t, wireEcho)
				tap := newWireTap(t, w.Server.Namespace, w.Server.Port)
				f := w.flow(t, v6)
				f.connect(wireRequest)
				before := w.verdictsOf(t, edge)
				want := f.forbid()
				f.stillWorks(s)
				got := w.verdictsOf(t, edge).since(before)
				for verdict, n := range want {
					if got[verdict] != n {
						t.Errorf("%d packets were lost by %s, want %d", got[verdict], verdict, n)
					}
				}
				eventually(t, wirePatience, "the last packet is seen", func() bool {
					return len(tap.frames(func(frame wireFrame) bool { return !frame.out && bytes.HasSuffix(frame.bytes, []byte("more")) })) == 1
				})
				if n := len(tap.frames(f.isToServer)); n != 2 {
					t.Errorf("%d packets have reached the server, want the two that are legal", n)
				}
			})
		})
	}
}

// What comes around the edge ends at the server's agent.
func TestForbiddenPacketsDoNotReachTheServersKernel(t *testing.T) {
	for _, shape := range []wireShape{wireRoute, wireBridge} {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			wireFamilies(t, func(t *testing.T, v6 bool) {
				s := w.serve(t, wireEcho)
				f := w.flow(t, v6)
				f.connect(wireRequest)
				f.behind = true
				before := w.verdicts(t)
				want := f.forbid()
				w.expect(t, before, want)
				f.stillWorks(s)
			})
		})
	}
}

// forbid sends one packet of every kind, and says what shall become of them.
func (f *wireFlow) forbid() wireVerdicts {
	f.t.Helper()
	want := wireVerdicts{}
	for _, name := range slices.Sorted(maps.Keys(wireForbidden)) {
		kind := wireForbidden[name]
		frames := kind.damage(f, f.frame(len(wireRequest), wireData, []byte(name)))
		for _, frame := range frames {
			f.emit(f.resummed(frame))
			want[kind.verdict]++
		}
	}
	return want
}

// resummed repairs a damaged segment's checksum: it must not be the reason why
// the kernel does not take it.
func (f *wireFlow) resummed(frame []byte) []byte {
	at := wireTCPAt(f)
	isFragment := f.v6 && frame[14+6] == byte(layers.IPProtocolIPv6Fragment)
	if isFragment {
		return frame
	}
	binary.BigEndian.PutUint16(frame[at+16:], 0)
	pseudo := binary.BigEndian.AppendUint16(nil, uint16(layers.IPProtocolTCP))
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(frame)-at))
	pseudo = append(pseudo, f.source.AsSlice()...)
	pseudo = append(pseudo, f.w.Server.Addr(f.v6).AsSlice()...)
	pseudo = append(pseudo, frame[at:]...)
	if len(pseudo)%2 == 1 {
		pseudo = append(pseudo, 0)
	}
	binary.BigEndian.PutUint16(frame[at+16:], wireSum(pseudo))
	return frame
}

func (f *wireFlow) isToServer(frame wireFrame) bool {
	if frame.out {
		return false
	}
	parsed := gopacket.NewPacket(frame.bytes, layers.LayerTypeEthernet, gopacket.NoCopy)
	network := parsed.NetworkLayer()
	return network != nil && network.NetworkFlow().Src().String() == f.source.String() &&
		parsed.Layer(layers.LayerTypeICMPv6) == nil
}

// stillWorks shows that nothing of what was sent has been taken.
func (f *wireFlow) stillWorks(s *wireServer) {
	f.t.Helper()
	f.send(len(wireRequest), wireData, []byte("more"))
	f.expectStream(wireRequest + "more")
	s.expectOnly(wireRequest + "more")
	if f.reset != nil {
		f.t.Fatal("the server has sent a RST")
	}
}
