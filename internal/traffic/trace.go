package traffic

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// trace is what a capture has shown.
type trace struct {
	name  string
	span  time.Duration // from its first packet to its last
	flows Schedule
}

func (t *trace) Name() string       { return t.name }
func (t *trace) Rate() float64      { return float64(len(t.flows)) / t.span.Seconds() }
func (t *trace) MeanBytes() float64 { return float64(t.flows.Bytes()) / float64(len(t.flows)) }

// Schedule replays the trace, faster or slower if another rate is wanted, and again
// from its beginning if it is too short.
func (t *trace) Schedule(w Want) (Schedule, error) {
	rate, err := w.check(t.Rate())
	if err != nil {
		return nil, err
	}
	slower := t.Rate() / rate
	var schedule Schedule
	for lap := 0; ; lap++ {
		for _, f := range t.flows {
			at := (float64(lap)*t.span.Seconds() + f.Start.Seconds()) * slower
			if at >= w.Duration.Seconds() || len(schedule) >= flowsLimit {
				return schedule, nil
			}
			schedule = append(schedule, Flow{time.Duration(at * float64(time.Second)), f.Bytes})
		}
	}
}

// packets is what both kinds of capture are read by.
type packets interface {
	ReadPacketData() ([]byte, gopacket.CaptureInfo, error)
}

// endpoints are a flow's, the smaller one first, so that both directions are one.
type endpoints struct{ low, high endpoint }

type endpoint struct {
	address [16]byte
	port    uint16
}

func (e endpoint) less(other endpoint) bool {
	if c := slices.Compare(e.address[:], other.address[:]); c != 0 {
		return c < 0
	}
	return e.port < other.port
}

// seen is what is remembered of a flow.
type seen struct {
	start time.Time
	bytes [2]int64 // from the smaller endpoint, from the other one
	isn   uint32   // of its SYN
	syn   bool
	ended bool // by a FIN or RST
}

// tracer gathers the flows of a capture.
type tracer struct {
	open        map[endpoints]*seen
	done        []*seen
	first, last time.Time

	parsers map[layers.LinkType]*gopacket.DecodingLayerParser
	decoded []gopacket.LayerType
	ip4     layers.IPv4
	ip6     layers.IPv6
}

// readTrace takes from a capture when its TCP flows begin and how much they carry.
func readTrace(path string, r io.Reader, next bool) (Source, error) {
	t := newTracer()
	var err error
	if next {
		err = t.readNext(r)
	} else {
		err = t.readClassic(r)
	}
	if err != nil {
		return nil, err
	}
	if len(t.done) == 0 {
		return nil, errors.New("no TCP flow in it")
	}
	source := &trace{name: filepath.Base(path), span: max(t.last.Sub(t.first), time.Millisecond)}
	for _, s := range t.done {
		// A server says more than a client does, and many captures have one direction.
		source.flows = append(source.flows, Flow{s.start.Sub(t.first), max(s.bytes[0], s.bytes[1])})
	}
	slices.SortStableFunc(source.flows, func(a, b Flow) int { return cmp.Compare(a.Start, b.Start) })
	return source, nil
}

func (t *tracer) readClassic(r io.Reader) error {
	in, err := pcapgo.NewReader(r)
	if err != nil {
		return fmt.Errorf("read the capture: %w", err)
	}
	return t.readAll(in, func(gopacket.CaptureInfo) layers.LinkType { return in.LinkType() })
}

func (t *tracer) readNext(r io.Reader) error {
	in, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		return fmt.Errorf("read the capture: %w", err)
	}
	return t.readAll(in, func(ci gopacket.CaptureInfo) layers.LinkType {
		link, _ := ci.AncillaryData[0].(layers.LinkType) // what WantMixedLinkType adds
		return link
	})
}

func (t *tracer) readAll(in packets, link func(gopacket.CaptureInfo) layers.LinkType) error {
	for n := 1; ; n++ {
		frame, ci, err := in.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("packet %d: %w", n, err)
		}
		if err := t.packet(link(ci), frame, ci.Timestamp); err != nil {
			return fmt.Errorf("packet %d: %w", n, err)
		}
	}
}

func newTracer() *tracer {
	t := &tracer{open: make(map[endpoints]*seen)}
	parser := func(first gopacket.LayerType) *gopacket.DecodingLayerParser {
		p := gopacket.NewDecodingLayerParser(first, &layers.Ethernet{}, &layers.LinuxSLL{}, &layers.Dot1Q{}, &t.ip4, &t.ip6)
		p.IgnoreUnsupported = true // what is above IP is ours
		return p
	}
	t.parsers = map[layers.LinkType]*gopacket.DecodingLayerParser{
		layers.LinkTypeEthernet: parser(layers.LayerTypeEthernet),
		layers.LinkTypeLinuxSLL: parser(layers.LayerTypeLinuxSLL),
		layers.LinkTypeIPv4:     parser(layers.LayerTypeIPv4),
		layers.LinkTypeIPv6:     parser(layers.LayerTypeIPv6),
	}
	return t
}

// packet takes note of one. Those that cannot be read are not TCP to us.
func (t *tracer) packet(link layers.LinkType, frame []byte, at time.Time) error {
	if link == layers.LinkTypeRaw && len(frame) > 0 { // either version of IP
		link = layers.LinkTypeIPv4
		if frame[0]>>4 == 6 {
			link = layers.LinkTypeIPv6
		}
	}
	parser, ok := t.parsers[link]
	if !ok {
		return fmt.Errorf("link type %v; want Ethernet, raw IP or Linux cooked", link)
	}
	if t.first.IsZero() || at.Before(t.first) {
		t.first = at
	}
	if at.After(t.last) {
		t.last = at
	}
	if parser.DecodeLayers(frame, &t.decoded) != nil || len(t.decoded) == 0 {
		return nil
	}
	switch t.decoded[len(t.decoded)-1] {
	case layers.LayerTypeIPv4:
		if t.ip4.Protocol == layers.IPProtocolTCP && t.ip4.FragOffset == 0 {
			return t.segment(t.ip4.SrcIP, t.ip4.DstIP, t.ip4.Payload, int(t.ip4.Length)-4*int(t.ip4.IHL), at)
		}
	case layers.LayerTypeIPv6:
		if t.ip6.NextHeader == layers.IPProtocolTCP {
			return t.segment(t.ip6.SrcIP, t.ip6.DstIP, t.ip6.Payload, int(t.ip6.Length), at)
		}
	}
	return nil
}

// segment takes note of a TCP segment, of which there may be less than its length
// on the wire: captures often keep nothing but headers (RFC 9293, 3.1).
func (t *tracer) segment(from, to net.IP, header []byte, length int, at time.Time) error {
	if len(header) < 14 {
		return nil
	}
	source := endpoint{port: binary.BigEndian.Uint16(header)}
	destination := endpoint{port: binary.BigEndian.Uint16(header[2:])}
	copy(source.address[:], from.To16())
	copy(destination.address[:], to.To16())
	key, side := endpoints{source, destination}, 0
	if destination.less(source) {
		key, side = endpoints{destination, source}, 1
	}
	isn, flags := binary.BigEndian.Uint32(header[4:]), header[13]
	syn := flags&(flagSYN|flagACK) == flagSYN
	flow := t.open[key]
	if flow == nil || syn && flow.another(isn) {
		if len(t.done) == flowsLimit {
			return fmt.Errorf("more than %d flows; give a part of the capture", flowsLimit)
		}
		flow = &seen{start: at}
		t.open[key], t.done = flow, append(t.done, flow)
	}
	if syn {
		flow.syn, flow.isn = true, isn
	}
	flow.ended = flow.ended || flags&(flagFIN|flagRST) != 0
	flow.bytes[side] += int64(max(0, length-4*int(header[12]>>4)))
	return nil
}

// Flags of TCP.
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// another tells whether a SYN begins another flow with the same ports: a repeated
// one has the same number.
func (s *seen) another(isn uint32) bool { return s.ended || s.syn && s.isn != isn }
