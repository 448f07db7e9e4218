package traffic

import (
	"bytes"
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

var update = flag.Bool("update", false, "write testdata/small.pcap anew")

const smallTrace = "testdata/small.pcap"

// captured headers are cut, as those of public traces are.
const snapLength = 90

// packet is a frame of the synthetic capture.
type packet struct {
	at    time.Duration
	frame []byte // whole
}

// synthetic is a capture of flows that are invented, with all that a real one has
// between them.
type synthetic struct{ packets []packet }

func (s *synthetic) add(at time.Duration, all ...gopacket.SerializableLayer) {
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true}, all...); err != nil {
		panic(err)
	}
	s.packets = append(s.packets, packet{at, slices.Clone(buffer.Bytes())})
}

// segment is one of TCP; of IPv4 it has a VLAN tag.
func (s *synthetic) segment(at time.Duration, from, to netip.AddrPort, tcp layers.TCP, payload int) {
	tcp.SrcPort, tcp.DstPort = layers.TCPPort(from.Port()), layers.TCPPort(to.Port())
	ethernet := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
	data := gopacket.Payload(make([]byte, payload))
	if from.Addr().Is6() {
		ethernet.EthernetType = layers.EthernetTypeIPv6
		s.add(at, ethernet, &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolTCP, HopLimit: 64, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}, &tcp, data)
		return
	}
	ethernet.EthernetType = layers.EthernetTypeDot1Q
	s.add(at, ethernet, &layers.Dot1Q{VLANIdentifier: 7, Type: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}, &tcp, data)
}

const segmentSize = 1400

// flow is a request and its answer. The SYN and its options come twice.
func (s *synthetic) flow(client, server netip.AddrPort, f Flow, isn uint32) {
	at := f.Start
	next := func() time.Duration { at += 100 * time.Microsecond; return at - 100*time.Microsecond }
	mss := []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 180}}}
	s.segment(next(), client, server, layers.TCP{Seq: isn, SYN: true, Options: mss}, 0)
	s.segment(next(), client, server, layers.TCP{Seq: isn, SYN: true, Options: mss}, 0)
	s.segment(next(), server, client, layers.TCP{Seq: 1, Ack: isn + 1, SYN: true, ACK: true, Options: mss}, 0)
	s.segment(next(), client, server, layers.TCP{Seq: isn + 1, Ack: 2, ACK: true, PSH: true}, int(min(f.Bytes, 70)))
	for sent := int64(0); sent < f.Bytes; sent += segmentSize {
		s.segment(next(), server, client, layers.TCP{Seq: 2 + uint32(sent), Ack: isn + 71, ACK: true}, int(min(f.Bytes-sent, segmentSize)))
	}
	s.segment(next(), server, client, layers.TCP{Seq: 2, Ack: isn + 71, ACK: true, FIN: true}, 0)
}

// small is the capture in testdata, and what is in it.
func small() (*synthetic, Schedule) {
	var s synthetic
	var flows Schedule
	server4, server6 := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("[2001:db8:2::1]:80") // one is less than its clients, one more
	for i := range 12 {
		f := Flow{time.Duration(i) * 25 * time.Millisecond, int64(100 << (i % 8))}
		client, server := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), uint16(40000+i%6)), server4 // ports are used again
		if i%3 == 2 {
			client, server = netip.AddrPortFrom(netip.MustParseAddr("2001:db8:1::1"), uint16(40000+i)), server6
		}
		s.flow(client, server, f, uint32(i)<<20)
		flows = append(flows, f)
	}
	s.add(130*time.Millisecond, &layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{192, 0, 2, 9}, DstIP: net.IP{192, 0, 2, 8}},
		&layers.UDP{SrcPort: 53, DstPort: 53}, gopacket.Payload("no flow of TCP"))
	s.packets = append(s.packets, packet{500 * time.Millisecond, []byte{1, 2, 3}}) // rubbish, and the end
	slices.SortStableFunc(s.packets, func(a, b packet) int { return int(a.at - b.at) })
	return &s, flows
}

var captureStart = time.Unix(1_500_000_000, 0)

// pcap writes what is there of each packet from an offset on.
func (s *synthetic) pcap(link layers.LinkType, from int) []byte {
	var text bytes.Buffer
	out := pcapgo.NewWriterNanos(&text)
	if err := out.WriteFileHeader(snapLength, link); err != nil {
		panic(err)
	}
	for _, p := range s.packets {
		frame := p.frame[min(from, len(p.frame)):]
		cut := frame[:min(len(frame), snapLength)]
		info := gopacket.CaptureInfo{Timestamp: captureStart.Add(p.at), CaptureLength: len(cut), Length: len(frame)}
		if err := out.WritePacket(info, cut); err != nil {
			panic(err)
		}
	}
	return text.Bytes()
}

func (s *synthetic) pcapng(t *testing.T) []byte {
	var text bytes.Buffer
	out, err := pcapgo.NewNgWriter(&text, layers.LinkTypeEthernet)
	for _, p := range s.packets {
		info := gopacket.CaptureInfo{Timestamp: captureStart.Add(p.at), CaptureLength: len(p.frame), Length: len(p.frame)}
		if err == nil {
			err = out.WritePacket(info, p.frame)
		}
	}
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

func TestSmallTraceIsWhatTheTestMakes(t *testing.T) {
	s, _ := small()
	made := s.pcap(layers.LinkTypeEthernet, 0)
	if *update {
		if err := os.WriteFile(smallTrace, made, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	there, err := os.ReadFile(smallTrace)
	if err != nil || !bytes.Equal(made, there) {
		t.Errorf("%v; %s differs: run the test with -update", err, smallTrace)
	}
}

func TestTraceHasTheFlowsOfACapture(t *testing.T) {
	s, want := small()
	four := slices.DeleteFunc(slices.Clone(want), func(f Flow) bool { return f.Start/(25*time.Millisecond)%3 == 2 })
	for name, c := range map[string]struct {
		text []byte
		want Schedule
	}{
		"pcap":   {s.pcap(layers.LinkTypeEthernet, 0), want},
		"pcapng": {s.pcapng(t), want},
		"raw IP": {s.pcap(layers.LinkTypeIPv4, 18), four}, // behind Ethernet and tag; IPv6 has none, and is cut into
	} {
		source, err := read("x/small.pcap", bytes.NewReader(c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := source.(*trace); !slices.Equal(got.flows, c.want) || got.span != 500*time.Millisecond {
			t.Errorf("%s: %v in %v, want %v", name, got.flows, got.span, c.want)
		}
	}
	source, err := Open(smallTrace)
	if err != nil || source.Name() != "small.pcap" || source.Rate() != 24 {
		t.Errorf("%v, %v", source, err)
	}
}

func TestTraceIsReplayedFasterAndAgain(t *testing.T) {
	source := &trace{name: "x", span: 4 * time.Second, flows: Schedule{{0, 1}, {3 * time.Second, 2}}}
	for _, c := range []struct {
		want  Want
		flows Schedule
	}{
		{Want{Duration: 4 * time.Second}, source.flows},
		{Want{Duration: 2 * time.Second}, source.flows[:1]},
		{Want{Duration: 3 * time.Second, Rate: 1}, Schedule{{0, 1}, {1500 * time.Millisecond, 2}, {2 * time.Second, 1}}},
	} {
		got, err := source.Schedule(c.want)
		if err != nil || !slices.Equal(got, c.flows) {
			t.Errorf("%+v: %v, %v, want %v", c.want, got, err, c.flows)
		}
	}
}

func TestHostileCapturesEndInErrors(t *testing.T) {
	s, _ := small()
	whole := s.pcap(layers.LinkTypeEthernet, 0)
	huge := slices.Clone(whole[:24+16])
	copy(huge[24+8:], bytes.Repeat([]byte{0x7f}, 8)) // a packet of 2 GB
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"nothing":       {nil, "sizes: want"},
		"half a header": {whole[:20], "read the capture"},
		"no packet":     {whole[:24], "no TCP flow"},
		"half a packet": {whole[:24+16+30], "packet 1"},
		"a huge packet": {huge, "packet 1"},
		"a USB capture": {s.pcap(layers.LinkTypeLinuxUSB, 0), "want Ethernet"},
		"compressed":    {[]byte{0x1f, 0x8b, 8, 0}, "unpack it"},
		"a picture":     {append([]byte("\x89PNG"), make([]byte, 100)...), "neither a capture"},
	} {
		source, err := read("x", bytes.NewReader(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want %q", name, source, err, c.want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there is opened")
	}
}

// manyFlows is an endless capture in which each packet is another flow.
type manyFlows struct {
	n     uint32
	frame []byte
}

func (m *manyFlows) ReadPacketData() ([]byte, gopacket.CaptureInfo, error) {
	if m.n > 2*flowsLimit {
		return nil, gopacket.CaptureInfo{}, io.EOF
	}
	m.n++
	copy(m.frame[12:], []byte{byte(m.n >> 24), byte(m.n >> 16), byte(m.n >> 8), byte(m.n)}) // source address
	return m.frame, gopacket.CaptureInfo{Timestamp: captureStart}, nil
}

func TestTraceWithTooManyFlowsIsRefused(t *testing.T) {
	var s synthetic
	s.segment(0, netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2"), layers.TCP{SYN: true}, 0)
	link := func(gopacket.CaptureInfo) layers.LinkType { return layers.LinkTypeRaw }
	err := newTracer().readAll(&manyFlows{frame: s.packets[0].frame[18:]}, link)
	if err == nil || !strings.Contains(err.Error(), "give a part of the capture") {
		t.Error(err)
	}
}

func FuzzTrace(f *testing.F) {
	s, _ := small()
	s.packets = s.packets[:8] // more take the fuzzer long to make smaller
	f.Add(s.pcap(layers.LinkTypeEthernet, 0))
	f.Add(s.pcap(layers.LinkTypeRaw, 18))
	f.Fuzz(func(t *testing.T, text []byte) {
		source, err := read("x", bytes.NewReader(text))
		if err != nil {
			return
		}
		schedule, err := source.Schedule(Want{Rate: 10, Duration: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range schedule {
			if f.Start < 0 || f.Start >= time.Second || f.Bytes < 0 {
				t.Errorf("%+v", f)
			}
		}
	})
}
