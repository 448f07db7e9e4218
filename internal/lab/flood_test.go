package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/test/wire"
)

func TestFloodPacketsAreWellFormedAndAllDifferent(t *testing.T) {
	lab := newLab(t, Options{})
	tap := openTap(t, lab.Edge.Namespace, "out1")
	for _, ipv6 := range []bool{false, true} {
		for _, profile := range []Profile{Plain, Linux} {
			for _, kind := range []Kind{SYN, ACK, RST, FIN, SYNACK, PSH} {
				options := FloodOptions{Kind: kind, Profile: profile, IPv6: ipv6, Rate: 20_000}
				name := fmt.Sprintf("flags %#x profile %d IPv6 %t", kind.flags(), profile, ipv6)
				t.Run(name, func(t *testing.T) { checkFlood(t, lab, tap, options) })
			}
		}
	}
}

func checkFlood(t *testing.T, lab *Lab, tap int, options FloodOptions) {
	flood, err := lab.StartFlood(options)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := flood.Stop(); err != nil {
			t.Error(err)
		}
	}()
	seen := map[string]bool{}
	frame := make([]byte, 2048)
	for len(seen) < 200 {
		n, err := unix.Read(tap, frame)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatalf("after %d packets: %v", len(seen), err)
		}
		packet, ours := parseFlood(frame[:n], options)
		if !ours {
			continue
		}
		if fault := packet.fault(lab, options); fault != "" {
			t.Fatalf("%s: % x", fault, frame[:n])
		}
		seen[fmt.Sprint(packet.source, packet.segment[:8])] = true
	}
}

// openTap returns a packet socket on a port.
func openTap(t *testing.T, namespace *Namespace, port string) (tap int) {
	t.Helper()
	everything := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	err := namespace.Do(func() (err error) {
		if tap, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(everything)); err != nil {
			return err
		}
		link, err := namespace.link.LinkByName(port)
		if err != nil {
			return err
		}
		return errors.Join(
			unix.Bind(tap, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: link.Attrs().Index}),
			unix.SetsockoptTimeval(tap, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(tap) })
	return tap
}

// floodPacket is a frame that the generator has sent.
type floodPacket struct {
	header         []byte
	segment        []byte
	source, target netip.Addr
}

// parseFlood tells the flood's packets from what else is on the wire.
func parseFlood(frame []byte, options FloodOptions) (p floodPacket, ours bool) {
	etherType, headerBytes := uint16(unix.ETH_P_IP), ip4Bytes
	if options.IPv6 {
		etherType, headerBytes = unix.ETH_P_IPV6, ip6Bytes
	}
	if len(frame) < ethernetBytes+headerBytes+tcpBytes || binary.BigEndian.Uint16(frame[12:]) != etherType {
		return p, false
	}
	packet := frame[ethernetBytes:]
	p.header, p.segment = packet[:headerBytes], packet[headerBytes:]
	half := headerBytes - 8
	if options.IPv6 {
		half = headerBytes - 32
	}
	size := (headerBytes - half) / 2
	p.source, _ = netip.AddrFromSlice(packet[half : half+size])
	p.target, _ = netip.AddrFromSlice(packet[half+size : headerBytes])
	protocol := packet[9]
	if options.IPv6 {
		protocol = packet[6]
	}
	sources := FloodSources4
	if options.IPv6 {
		sources = FloodSources6
	}
	return p, protocol == unix.IPPROTO_TCP && sources.Contains(p.source) && p.segment[13] == options.Kind.flags()
}

// fault names what is wrong with a packet.
func (p floodPacket) fault(lab *Lab, options FloodOptions) string {
	want := tcpBytes
	if options.Profile == Linux {
		want += len(linuxOptions)
	}
	pseudo := append(p.source.AsSlice(), p.target.AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(p.segment)))
	switch {
	case p.target != lab.Server.Addr(options.IPv6):
		return "wrong target"
	case len(p.segment) != want || int(p.segment[12]>>4)*4 != want:
		return "wrong length"
	case fold(sum(pseudo)+sum(p.segment)) != 0xffff:
		return "wrong TCP checksum"
	case !options.IPv6 && fold(sum(p.header)) != 0xffff:
		return "wrong IP checksum"
	case !options.IPv6 && p.header[6] != 0x40:
		return "fragmentation allowed"
	case binary.BigEndian.Uint16(p.segment[2:]) != HTTPPort:
		return "wrong port"
	}
	return ""
}

func fold(total uint32) uint32 {
	for total > 0xffff {
		total = total&0xffff + total>>16
	}
	return total
}

// What a defence has to lose by its form alone is what it is called.
func TestMalformedFloodsAreMalformedAsTheyShould(t *testing.T) {
	lab := newLab(t, Options{})
	for _, ipv6 := range []bool{false, true} {
		for kind, want := range map[Kind][]string{
			Fragment:     {"fragment"},
			IllegalFlags: {"flags 0x0", "flags 0x29", "flags 0x3", "flags 0x6"},
			BadLength:    {"unparsable"},
		} {
			t.Run(fmt.Sprintf("%s IPv6 %t", kind, ipv6), func(t *testing.T) {
				tap := openTap(t, lab.Edge.Namespace, "out1") // its own: without the last flood's
				flood, err := lab.StartFlood(FloodOptions{Kind: kind, IPv6: ipv6, Rate: 20_000})
				if err != nil {
					t.Fatal(err)
				}
				got := formsOf(t, tap, lab.Server.Addr(ipv6))
				if err := flood.Stop(); err != nil {
					t.Error(err)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%q, want %q", got, want)
				}
			})
		}
	}
}

// formsOf tells what the next hundred packets to an address are, each form once.
func formsOf(t *testing.T, tap int, to netip.Addr) []string {
	t.Helper()
	forms, frame := map[string]bool{}, make([]byte, 2048)
	for n := 0; n < 100; {
		length, err := unix.Read(tap, frame)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatalf("after %d packets: %v", n, err)
		}
		seen := wire.Read(frame[:length])
		if seen.To != to || !FloodSources4.Contains(seen.Source) && !FloodSources6.Contains(seen.Source) {
			continue
		}
		n++
		switch seen.Kind {
		case wire.KindFragment:
			forms["fragment"] = true
		case wire.KindUnparsable:
			forms["unparsable"] = true
		default:
			forms[fmt.Sprintf("flags %#x", uint8(seen.Flags))] = true
		}
	}
	return slices.Sorted(maps.Keys(forms))
}

func TestFloodsHaveNames(t *testing.T) {
	for _, kind := range Kinds() {
		if got, err := ParseKind(kind.String()); err != nil || got != kind {
			t.Errorf("%s is read as %v, %v", kind, got, err)
		}
	}
	if _, err := ParseKind("water"); err == nil {
		t.Error("there is a flood of water")
	}
}

func TestFloodEndsAtItsLimit(t *testing.T) {
	lab := newLab(t, Options{})
	flood, err := lab.StartFlood(FloodOptions{Rate: MaxRate, Limit: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-flood.Done():
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
	if err := flood.Stop(); err != nil {
		t.Error(err)
	}
}

// Children end with the thread that has started them.
func TestFloodGivesItsThreadBack(t *testing.T) {
	lab := newLab(t, Options{})
	flood, err := lab.StartFlood(FloodOptions{Rate: 100})
	if err != nil {
		t.Fatal(err)
	}
	tick, deadline := time.NewTicker(time.Millisecond), time.Now().Add(10*time.Second)
	defer tick.Stop()
	thread := flood.thread.Load()
	for ; thread == 0 && time.Now().Before(deadline); thread = flood.thread.Load() {
		<-tick.C
	}
	if err := flood.Stop(); err != nil {
		t.Fatal(err)
	}
	var usual, now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &usual); err != nil {
		t.Fatal(err)
	}
	if thread == 0 || unix.SchedGetaffinity(int(thread), &now) != nil || now != usual {
		t.Errorf("thread %d is gone, or still bound to the flood's CPU", thread)
	}
}

func TestFloodWithoutRateIsRefused(t *testing.T) {
	if flood, err := (&Lab{}).StartFlood(FloodOptions{}); err == nil {
		t.Errorf("got %v", flood)
	}
}

func TestRateIsReadAsPeopleWriteIt(t *testing.T) {
	for text, want := range map[string]Rate{
		"0": 0, "max": MaxRate, "1": 1, "200000": 200_000, "200k": 200_000, "2M": 2_000_000,
	} {
		var got Rate
		if err := got.Set(text); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "k", "2G", "1.5M", "2000M", "99999999999999999999", "MAX"} {
		var got Rate
		if err := got.Set(text); err == nil {
			t.Errorf("%q was taken for %v", text, got)
		}
	}
}

func TestEveryRateFitsTheGeneratorsClock(t *testing.T) {
	for _, rate := range []Rate{1, 2, 1000, rateLimit} {
		want := 1e9 * 1024 / float64(rate)
		if got := float64(rate.interval()); got < want*0.999 || got > want {
			t.Errorf("%v: interval %v, want %v", rate, got, want)
		}
		if q := rate.quantum(); q < 1 || q > 16 {
			t.Errorf("%v: quantum %d", rate, q)
		}
	}
}

// One operation is one packet, dropped by the program of the next port.
func BenchmarkFlood(b *testing.B) {
	for name, options := range map[string]FloodOptions{
		"ipv4":       {},
		"ipv4-linux": {Profile: Linux},
		"ipv6":       {IPv6: true},
		"ipv6-linux": {IPv6: true, Profile: Linux},
	} {
		b.Run(name, func(b *testing.B) { benchmarkFlood(b, options) })
	}
}

func benchmarkFlood(b *testing.B, options FloodOptions) {
	lab := newLab(b, Options{})
	if err := lab.Edge.Drop("out1"); err != nil {
		b.Fatal(err)
	}
	options.Rate = MaxRate
	flood, err := lab.StartFlood(options)
	if err != nil {
		b.Fatal(err)
	}
	offered := func() uint64 {
		n, err := flood.Offered()
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	eventually(b, "the flood begins", func() bool { return offered() > 0 })
	b.ResetTimer()
	want := offered() + uint64(b.N)
	eventually(b, "the flood goes on", func() bool { return offered() >= want })
	b.StopTimer()
	if err := flood.Stop(); err != nil {
		b.Error(err)
	}
}
