package wire

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func newSource(t *testing.T) Source {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SMARTCOOKIE_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("SMARTCOOKIE_SEED: %v", err)
		}
		seed = given
	}
	t.Logf("SMARTCOOKIE_SEED=%d", seed)
	addresses := []netip.Addr{
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.5"),
		netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:1::5"),
	}
	return Source{Rand: rand.New(rand.NewPCG(seed, 0)), Clients: addresses, Servers: addresses, Ports: []uint16{443}}
}

// plain is a packet that gopacket decodes without limits of its own.
func plain(s Source) Packet {
	p := s.Packet()
	for !p.Source.Addr().Is4() && len(p.Extensions) > 0 || len(p.Tags) > 2 || p.More || p.Offset > 0 {
		p = s.Packet()
	}
	p.Protocol = 0
	return p
}

func TestFramesAreWhatGopacketDecodes(t *testing.T) {
	s := newSource(t)
	for range 20_000 {
		p := plain(s)
		p.Options = nil
		packet := gopacket.NewPacket(p.Frame(), layers.LayerTypeEthernet, gopacket.Default)
		tcp, ok := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok {
			t.Fatalf("%x: no TCP: %v", p.Frame(), packet.ErrorLayer())
		}
		seen := Read(p.Frame())
		if seen.Kind != KindTCP || seen.Seq != tcp.Seq || seen.Ack != tcp.Ack || seen.SourcePort != uint16(tcp.SrcPort) || seen.ToPort != uint16(tcp.DstPort) {
			t.Fatalf("%x: %+v, gopacket says %+v", p.Frame(), seen, tcp)
		}
		network := packet.NetworkLayer().NetworkFlow()
		if !bytes.Equal(network.Src().Raw(), seen.Source.AsSlice()) || !bytes.Equal(network.Dst().Raw(), seen.To.AsSlice()) {
			t.Fatalf("%x: from %v to %v, gopacket says %v", p.Frame(), seen.Source, seen.To, network)
		}
	}
}

func TestFramesHaveTheChecksumsThatGopacketWants(t *testing.T) {
	s := newSource(t)
	for range 5_000 {
		p := plain(s)
		p.Options, p.Trailer = nil, 0
		packet := gopacket.NewPacket(p.Frame(), layers.LayerTypeEthernet, gopacket.Default)
		tcp, ok := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok || tcp.SetNetworkLayerForChecksum(packet.NetworkLayer()) != nil {
			t.Fatalf("%x: no TCP", p.Frame())
		}
		faults, mismatches := packet.VerifyChecksums()
		if faults != nil || len(mismatches) > 0 {
			t.Fatalf("%x: %v %v", p.Frame(), faults, mismatches)
		}
	}
}

func TestOptionsAreWhatGopacketDecodes(t *testing.T) {
	s := newSource(t)
	compared := 0
	for range 20_000 {
		p := plain(s)
		packet := gopacket.NewPacket(p.Frame(), layers.LayerTypeEthernet, gopacket.Default)
		tcp, ok := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok || packet.ErrorLayer() != nil || bytes.IndexByte(p.Options, multipath) >= 0 {
			continue // gopacket gives up where TCP goes on, and has its own way with multipath
		}
		compared++
		want := fromGopacket(tcp)
		if got := ReadOptions(Read(p.Frame()).Options, p.Flags); got != want {
			t.Fatalf("%x: %+v, gopacket says %+v", p.Options, got, want)
		}
	}
	if compared < 5_000 {
		t.Errorf("only %d packets had options that gopacket decodes", compared)
	}
}

const multipath = 30 // RFC 8684

func fromGopacket(tcp *layers.TCP) Options {
	var o Options
	o.ECN = tcp.ECE && tcp.CWR
	for _, option := range tcp.Options {
		if option.OptionType == layers.TCPOptionKindEndList {
			break
		}
		o.take(byte(option.OptionType), option.OptionData)
	}
	return o
}

func TestFragmentsAndDeepChainsAreNotTCP(t *testing.T) {
	four := Packet{Source: netip.MustParseAddrPort("192.0.2.1:1"), To: netip.MustParseAddrPort("192.0.2.2:2")}
	six := Packet{Source: netip.MustParseAddrPort("[2001:db8::1]:1"), To: netip.MustParseAddrPort("[2001:db8::2]:2")}
	with := func(p Packet, change func(*Packet)) Packet { change(&p); return p }
	for name, c := range map[string]struct {
		packet Packet
		want   Kind
	}{
		"IPv4":          {four, KindTCP},
		"fragment":      {with(four, func(p *Packet) { p.More = true }), KindFragment},
		"UDP":           {with(four, func(p *Packet) { p.Protocol = UDP }), KindOther},
		"three tags":    {with(four, func(p *Packet) { p.Tags = threeTags() }), KindTags},
		"IPv6":          {six, KindTCP},
		"IPv6 fragment": {with(six, func(p *Packet) { p.Extensions = []Extension{FragmentHeader(0, true)} }), KindFragment},
		"seven headers": {with(six, func(p *Packet) { p.Extensions = headers(7) }), KindUnparsable},
		"six headers":   {with(six, func(p *Packet) { p.Extensions = headers(6) }), KindTCP},
	} {
		if got := Read(c.packet.Frame()).Kind; got != c.want {
			t.Errorf("%s: kind %d, want %d", name, got, c.want)
		}
	}
}

func threeTags() []Tag { return []Tag{{Customer, 1}, {Customer, 2}, {Service, 3}} }

func headers(n int) (h []Extension) {
	for range n {
		h = append(h, Padded(HopByHop, 8))
	}
	return h
}
