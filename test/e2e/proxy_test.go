package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
)

// The edge alone, with the strategy proxy: nothing runs at the server.

var (
	wireProxyRoute  = wireShape{name: "proxy route", topology: lab.Route, proxy: true}
	wireProxyBridge = wireShape{name: "proxy bridge", topology: lab.Bridge, proxy: true}
	wireProxies     = []wireShape{wireProxyRoute, wireProxyBridge}
)

func (w *wireLab) proxyConfig(t *testing.T) string {
	t.Helper()
	keys, err := w.Keys()
	if err != nil {
		t.Fatal(err)
	}
	return w.EdgeConfig(keys) + "    strategy: proxy\n"
}

// A server that speaks first is heard, whatever was lost on either line: SYNs and
// SYN-ACKs between the edge and it, the client's window update and the banner.
func TestProxiedServerMaySpeakFirst(t *testing.T) {
	const banner, clients = "SSH-2.0-lab\r\n", 40
	l := deploy(t, proxyRoute, lab.Options{InsideWire: &badwire.Faults{Loss: 15, Seed: 1}}, protection{})
	listener := listenIn(t, l.Server.Namespace, ":80")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, banner)
				_, _ = io.Copy(io.Discard, conn) // until the client ends it
			}()
		}
	}()
	heard := make(chan error, clients)
	for i := range clients {
		go func() { heard <- hearBanner(l, i%2 == 1, banner) }()
	}
	for range clients {
		if err := <-heard; err != nil {
			t.Error(err)
		}
	}
	counted(t, l, "edge", "sent_syn", "pass_opened")
}

func hearBanner(l *lab.Lab, ipv6 bool, want string) error {
	conn, err := dialIn(l.Client.Namespace, net.Dialer{}, webAddress(l, ipv6))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(40 * time.Second)); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		return fmt.Errorf("heard %q: %w", got, err)
	}
	return nil
}

// Sequence numbers, SACK blocks and timestamps are translated through every repair.
func TestProxiedTransfersSurviveLoss(t *testing.T) {
	need(t, "nginx", "curl")
	for _, shape := range proxyShapes {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{Wire: &badwire.Faults{Loss: 5, Seed: 7}}, protection{})
			root := startNginx(t, l)
			for _, ipv6 := range []bool{false, true} {
				for _, combination := range []int{everyOption, everyOption &^ 1} { // and without timestamps
					t.Run(family(ipv6)+" "+combinationName(combination), func(t *testing.T) {
						chooseOptions(t, l.Client.Namespace, combination)
						sum := randomFile(t, filepath.Join(root, "file"), 1<<20)
						downloadIs(t, l, ipv6, sum)
						uploadIs(t, l, ipv6, root, sum)
					})
				}
			}
		})
	}
}

// Errors of routers before the edge, and of the edge itself, quote numbers that the
// server has never sent.
func TestPathMTUIsFoundOnProxiedConnections(t *testing.T) {
	need(t, "nginx", "curl")
	l := deploy(t, proxyRoute, lab.Options{}, protection{})
	root := startNginx(t, l)
	runIn(t, l.Edge.Namespace, "ip", "link", "set", l.Edge.Outside[0], "mtu", "1400")
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			before := verdictsOf(t, l, "edge")
			downloadIs(t, l, ipv6, randomFile(t, filepath.Join(root, "file"), 1<<20))
			after := verdictsOf(t, l, "edge")
			if after["setup_translated"] == before["setup_translated"] || after["pass_error"] == before["pass_error"] {
				t.Errorf("nothing was tested: %v", after)
			}
		})
	}
}

// Who is refused hears of it, and the port may be asked again.
func TestProxyHandsOnTheServersRefusal(t *testing.T) {
	for _, shape := range proxyShapes {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{}, protection{})
			for _, ipv6 := range []bool{false, true} {
				conn, err := dialIn(l.Client.Namespace, net.Dialer{}, webAddress(l, ipv6))
				if err != nil {
					if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ECONNRESET) {
						t.Errorf("%s: %v", family(ipv6), err)
					}
					continue
				}
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
					t.Errorf("%s: %v, want a reset", family(ipv6), err)
				}
				conn.Close()
			}
			startNginx(t, l)
			mustGreet(t, l.Client.Namespace, url(l, false, "/hello"))
			mustGreet(t, l.Client.Namespace, url(l, true, "/hello"))
		})
	}
}

// A server that says nothing is asked again three times; then the client is told,
// with the number that he waits for.
func TestProxyTellsOfASilentServer(t *testing.T) {
	need(t, "nft")
	for _, shape := range wireProxies {
		t.Run(shape.name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, shape, wireSettings{})
			runIn(t, w.Server.Namespace, "nft", "add table inet mute; add chain inet mute in { type filter hook input priority 0; }; "+
				"add rule inet mute in tcp dport 80 drop")
			server := newWireTap(t, w.Server.Namespace, w.Server.Port)
			before := w.verdicts(t)
			for _, v6 := range []bool{false, true} {
				f := w.flow(t, v6)
				f.open()
				f.send(0, wireACK, nil)
				defer func() {
					f.t = t
					if !wirePoll(t, 3*wirePatience, func() bool { f.drain(); return f.reset != nil }) {
						t.Fatal("the client is not told")
					}
					if seq := f.reset.tcp.Seq; seq != f.cookie+1 || f.reset.tcp.Ack != f.isn+1 {
						t.Errorf("RST at %d, want cookie+1 = %d", seq, f.cookie+1)
					}
					syns := server.frames(func(frame wireFrame) bool {
						p, ok := parseWirePacket(frame.bytes)
						return ok && !frame.out && p.tcp.SYN && uint16(p.tcp.SrcPort) == f.port && p.tcp.Seq == f.isn
					})
					if len(syns) != 4 {
						t.Errorf("the server saw %d SYNs, want one and three more", len(syns))
					}
					w.expect(t, before, wireVerdicts{"sent_syn": 6, "sent_reset": 2, "setup_translated": 2})
				}()
			}
		})
	}
}

// The window is closed until the server has answered. A client whose ACK was lost
// asks with his ISN for a number; what ignores the window comes again; and neither
// makes a hole in the stream.
func TestProxyOpensTheWindow(t *testing.T) {
	for _, shape := range wireProxies {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{inside: &badwire.Faults{Delay: tenantDelay}})
			s := w.serve(t, wireEcho)
			server := newWireTap(t, w.Server.Namespace, w.Server.Port)
			wireFamilies(t, func(t *testing.T, v6 bool) {
				asks := w.flow(t, v6)
				asks.open()
				before := w.verdicts(t)
				asks.send(-1, wireACK, nil)
				asks.expectWindow()
				w.expect(t, before, wireVerdicts{"setup_translated": 1, "pass_opened": 1})
				serverHasTheClientsWindow(t, server, asks)
				asks.count = 0
				asks.send(-1, wireACK, nil) // the update was lost, say
				asks.expectWindow()
				asks.send(0, wireData, []byte(wireRequest))
				asks.expectStream(wireRequest)

				ignores := w.flow(t, v6)
				ignores.stamps = false
				ignores.open()
				first := ignores.send(0, wireData, []byte("first "))
				second := ignores.send(6, wireData, []byte("second"))
				ignores.expectWindow()
				ignores.emit(second, first)
				ignores.expectStream("first second")
			})
			if got, want := s.received(), []string{wireRequest, "first second", wireRequest, "first second"}; !slices.Equal(got, want) {
				t.Errorf("the server has received %q, want %q", got, want)
			}
		})
	}
}

// serverHasTheClientsWindow looks at the ACK that ends the edge's handshake.
func serverHasTheClientsWindow(t *testing.T, server *wireTap, f *wireFlow) {
	t.Helper()
	var ack *wirePacket
	eventually(t, wirePatience, "the server gets its ACK", func() bool {
		for _, frame := range server.frames(func(frame wireFrame) bool { return !frame.out }) {
			if p, ok := parseWirePacket(frame.bytes); ok && uint16(p.tcp.SrcPort) == f.port && p.tcp.ACK {
				ack = &p
				return true
			}
		}
		return false
	})
	if tsval, _, ok := ack.stamps(); ack.tcp.Window != wireWindow || ack.tcp.Seq != f.isn+1 || !ok || tsval != f.tsval {
		t.Errorf("the server's ACK has window %d, number ISN+%d, TSval %d", ack.tcp.Window, ack.tcp.Seq-f.isn, tsval)
	}
}

func (s *wireServer) received() (all []string) {
	for _, c := range s.conns() {
		got, _ := c.read()
		all = append(all, string(got))
	}
	return all
}

// A client may come back from one port again and again: the server's TIME_WAIT
// yields.
func TestProxiedPortIsReusedManyTimes(t *testing.T) {
	w := newWire(t, wireProxyRoute, wireSettings{})
	wireFamilies(t, func(t *testing.T, v6 bool) {
		s, f := w.serve(t, wireEcho), w.flow(t, v6)
		const rounds = 30
		for n := range rounds {
			f.connect(wireOld)
			s.conn(n).Close()
			f.expectFIN()
			f.send(len(wireOld), wireFINACK, nil)
			next := f.reuse()
			next.tsval = f.tsval - 10
			f = next
		}
		if n := len(s.conns()); n != rounds {
			t.Fatalf("%d connections, want %d", n, rounds)
		}
	})
}

// When all places are taken, newcomers wait and nobody is thrown out; what ends
// makes room.
func TestProxiedConnectionsBeyondTheLimitWait(t *testing.T) {
	const places = 4
	w := newWire(t, wireProxyRoute, wireSettings{server: fmt.Sprintf("proxied: %d\n", places)})
	s := w.serve(t, wireEcho)
	var live []*wireFlow
	for n := range places {
		f := w.flow(t, n%2 == 1)
		f.connect(wireRequest)
		live = append(live, f)
	}
	before := w.verdicts(t)
	late := w.flow(t, false)
	late.open()
	setup := late.send(0, wireData, []byte(wireRequest))
	w.await(t, before, 1, "drop_flows_full")
	for _, f := range live {
		f.send(len(wireRequest), wireData, []byte("more"))
		f.expectStream(wireRequest + "more")
	}
	for n, f := range live {
		s.conn(n).abort()
		f.expectReset()
	}
	eventually(t, 40*time.Second, "there is room again", func() bool {
		late.drain()
		if late.reset != nil { // told that it cannot be
			late = w.flow(t, false)
			late.open()
			setup = late.frame(0, wireData, []byte(wireRequest))
		}
		late.emit(setup)
		return len(late.got) > 0
	})
}

// Live connections outlive the daemon, begin without it, and its successor knows
// them; detach leaves nothing.
func TestProxiedConnectionsSurviveTheDaemon(t *testing.T) {
	for _, shape := range wireProxies {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			w.serve(t, wireEcho)
			f := w.flow(t, false)
			f.connect("one ")
			if err := w.daemon.Kill(); err != nil {
				t.Fatal(err)
			}
			f.send(4, wireData, []byte("two "))
			f.expectStream("one two ")
			other := w.flow(t, true)
			other.connect(wireRequest)
			f.send(8, wireACK, nil) // or the server repeats itself, and its flow is known
			other.send(len(wireRequest), wireACK, nil)
			// Another size of the filter makes a new one, which knows nobody.
			w.daemon = w.start(t, w.Edge.Namespace, "edge", "flows: 2000000\n"+w.proxyConfig(t))
			before := w.verdicts(t)
			f.send(8, wireData, []byte("three"))
			f.expectStream("one two three")
			w.await(t, before, 1, "pass_proxied")
			other.send(len(wireRequest), wireData, []byte("again"))
			other.expectStream(wireRequest + "again")
			runIn(t, w.Edge.Namespace, program, "detach", "--pin", w.PinDir("edge"))
			if left, err := os.ReadDir(w.PinDir("edge")); err == nil {
				t.Errorf("detach leaves %v", left)
			}
		})
	}
}

// Modes change under connections of either kind, and under a handshake.
func TestProxiedServiceChangesItsMode(t *testing.T) {
	for _, shape := range wireProxies {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			w.serve(t, wireEcho)
			mode := func(name string) {
				runIn(t, w.Edge.Namespace, program, "mode", "web", name, "--pin", w.PinDir("edge"))
			}
			wireFamilies(t, func(t *testing.T, v6 bool) {
				translated, begun, direct := w.flow(t, v6), w.flow(t, v6), w.flow(t, v6)
				translated.connect("one ")
				begun.open()
				mode("off")
				translated.send(4, wireData, []byte("two "))
				translated.expectStream("one two ")
				begun.send(0, wireACK, nil)
				begun.expectWindow()
				direct.open()
				before := w.verdicts(t)
				direct.send(0, wireData, []byte("one "))
				direct.expectStream("one ")
				if got := w.verdicts(t).since(before); got["pass_translated"]+got["setup_translated"] != 0 {
					t.Errorf("a service that is off translates: %v", got)
				}
				mode("always")
				for f, was := range map[*wireFlow]string{translated: "one two ", begun: "", direct: "one "} {
					f.send(len(was), wireData, []byte("three"))
					f.expectStream(was + "three")
				}
				w.flow(t, v6).connect(wireRequest)
			})
		})
	}
}

// Neither end sees anything amiss: checksums, options and numbers fit.
func TestProxiedWireIsSound(t *testing.T) {
	need(t, "curl", "nginx", "tshark")
	for _, shape := range wireProxies {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			w.neverMerge(t)
			root := startNginx(t, w.Lab)
			randomFile(t, filepath.Join(root, "file"), 256<<10)
			taps := map[string]*wireTap{
				"client": newWireTap(t, w.Client.Namespace, w.Client.Port), "server": newWireTap(t, w.Server.Namespace, w.Server.Port),
			}
			for _, v6 := range []bool{false, true} {
				if out, err := curl(w.Client.Namespace, "-o", "/dev/null", url(w.Lab, v6, "/file")); err != nil {
					t.Fatalf("curl: %v: %s", err, out)
				}
				if out, err := curl(w.Client.Namespace, "-T", filepath.Join(root, "file"), url(w.Lab, v6, "/up/"+family(v6))); err != nil {
					t.Fatalf("curl -T: %v: %s", err, out)
				}
			}
			for name, tap := range taps {
				t.Run("tshark at the "+name, func(t *testing.T) { tap.dissect(t) })
			}
		})
	}
}

func TestProxyServesEverythingDuringAFlood(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			report, err := newLab(t, lab.Options{}).Run(t.Context(), lab.Case{
				Defence: "proxy", Flood: lab.MaxRate, Duration: floodTime(), IPv6: ipv6,
			})
			if err != nil {
				t.Fatal(err)
			}
			allServed(t, "proxy", report.Benign)
			if report.Flood.OfferedPPS < aFlood || report.Flood.AnsweredPPS < aFlood {
				t.Errorf("%.0f packets per second offered, %.0f answered", report.Flood.OfferedPPS, report.Flood.AnsweredPPS)
			}
			t.Logf("%.0f SYNs per second offered, %.0f answered", report.Flood.OfferedPPS, report.Flood.AnsweredPPS)
		})
	}
}

// A router before the edge quotes what the client would have received.
func TestErrorsFromOutsideReachTheProxiedServer(t *testing.T) {
	for _, shape := range wireProxies {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
			w.serve(t, wireEcho)
			wireFamilies(t, func(t *testing.T, v6 bool) {
				f := w.flow(t, v6)
				f.connect(wireRequest) // whose echo the client has not acknowledged
				f.emit(f.tooBig(1300))
				if !wirePoll(t, wirePatience, func() bool {
					out, err := w.Server.Command(t.Context(), "ss", "-Htin", fmt.Sprintf("sport = :80 and dport = :%d", f.port)).Output()
					return err == nil && strings.Contains(string(out), "pmtu:1300")
				}) {
					t.Error("the server has not heard of the path's MTU")
				}
			})
		})
	}
}

// tooBig is a router's error about the server's first segment.
func (f *wireFlow) tooBig(mtu uint16) []byte {
	f.t.Helper()
	protocol := layers.IPProtocolICMPv4
	if f.v6 {
		protocol = layers.IPProtocolICMPv6
	}
	_, back := f.w.network(f.v6, f.w.Server.Addr(f.v6), layers.IPProtocolTCP)
	if f.v6 {
		back.(*layers.IPv6).DstIP = f.source.AsSlice()
	} else {
		back.(*layers.IPv4).DstIP = f.source.AsSlice()
	}
	tcp := &layers.TCP{SrcPort: lab.HTTPPort, DstPort: layers.TCPPort(f.port), Seq: f.cookie + 1, ACK: true}
	if err := tcp.SetNetworkLayerForChecksum(back); err != nil {
		f.t.Fatal(err)
	}
	quote := gopacket.Payload(serializeWire(f.t, back.(gopacket.SerializableLayer), tcp))
	ethernet, network := f.w.network(f.v6, f.source, protocol)
	if !f.v6 {
		code := layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodeFragmentationNeeded)
		return serializeWire(f.t, ethernet, network.(gopacket.SerializableLayer), &layers.ICMPv4{TypeCode: code, Seq: mtu}, quote)
	}
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypePacketTooBig, 0)}
	if err := icmp.SetNetworkLayerForChecksum(network); err != nil {
		f.t.Fatal(err)
	}
	return serializeWire(f.t, ethernet, network.(gopacket.SerializableLayer), icmp, gopacket.Payload(append([]byte{0, 0, byte(mtu >> 8), byte(mtu)}, quote...)))
}

// Below one tag connections are proxied, below two the service passes.
func TestProxyingBridgeKnowsOneTag(t *testing.T) {
	need(t, "curl", "nginx", "ip")
	for _, test := range taggings {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, lab.Options{Topology: lab.Bridge, Resolve: true})
			onVLAN(t, lab.Bridge, l.Client, test.tags)
			onVLAN(t, lab.Bridge, l.Server, test.tags)
			proxyBridge.protect(t, l, protection{})
			root := startNginx(t, l)
			sum := randomFile(t, root+"/file", 1<<20)
			for _, ipv6 := range []bool{false, true} {
				mustGreet(t, l.Client.Namespace, url(l, ipv6, "/hello"))
				downloadIs(t, l, ipv6, sum)
				uploadIs(t, l, ipv6, root, sum)
			}
			if len(test.tags) == 1 {
				counted(t, l, "edge", "answer_syn", "pass_opened")
			} else if verdicts := verdictsOf(t, l, "edge"); verdicts["answer_syn"]+verdicts["pass_opened"] != 0 {
				t.Errorf("proxied below two tags: %v", verdicts)
			}
		})
	}
}

// What was merged on its way is translated at once, and cut up behind; and what the
// server leaves to its device, sums and cutting up, is done at last.
func TestProxiedTransfersArriveIntactWithOffloads(t *testing.T) {
	need(t, "nginx", "curl", "ethtool")
	for _, shape := range proxyShapes {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{}, protection{})
			for _, port := range append([]string{l.Edge.Inside}, l.Edge.Outside...) {
				runIn(t, l.Edge.Namespace, "ethtool", "-K", port, "gro", "on")
			}
			runIn(t, l.Server.Namespace, "ethtool", "-K", l.Server.Port, "tx", "on", "tso", "on")
			root := startNginx(t, l)
			for _, ipv6 := range []bool{false, true} {
				sum := randomFile(t, filepath.Join(root, "file"), 20<<20)
				downloadIs(t, l, ipv6, sum)
				uploadIs(t, l, ipv6, root, sum)
			}
		})
	}
}

// The kernel's own XDP comes before TC as the drivers' does.
func TestProxyWorksWithGenericXDP(t *testing.T) {
	for _, shape := range wireProxies {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{server: "xdp: generic\n"})
			s := w.serve(t, wireEcho)
			wireFamilies(t, func(t *testing.T, v6 bool) { w.flow(t, v6).connect(wireRequest) })
			s.listener.Close()
			refused := w.flow(t, false)
			refused.open()
			refused.send(0, wireACK, nil)
			refused.expectReset()
		})
	}
}

func TestProxyRefusesARouterThatDoesNotForward(t *testing.T) {
	l := newLab(t, lab.Options{})
	file := fileOf(t, l, "edge.yaml", l.EdgeConfig(keysOf(t, l))+"    strategy: proxy\n")
	for _, setting := range []string{"net.ipv6.conf.in0.forwarding", "net.ipv4.conf.out0.forwarding"} {
		if err := l.Edge.Sysctl(setting, "0"); err != nil {
			t.Fatal(err)
		}
		refuse(t, l.Edge.Namespace, nil, "edge", "-c", file, "--pin", l.PinDir("edge")).
			is(t, 2, file+":11: ", "sysctl "+setting+"=1")
	}
}
