package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"

	"smartcookie/internal/lab"
)

// After the handshake every byte on one side is on the other: a bridge changes
// nothing at all, a router MAC addresses, hops and the checksum over them. (Taps
// at a server that translates see the kernel's numbers.)
func TestNothingOnTheWireIsAltered(t *testing.T) {
	need(t, "curl", "nginx", "tshark")
	for _, shape := range []wireShape{wireRoute, wireBridge} {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{setup: "native"})
			w.neverMerge(t)
			root := startNginx(t, w.Lab)
			page := bytes.Repeat([]byte("0123456789abcdef"), 1<<14) // 256 kB
			if err := os.WriteFile(filepath.Join(root, "page"), page, 0o600); err != nil {
				t.Fatal(err)
			}
			client := newWireTap(t, w.Client.Namespace, w.Client.Port)
			server := newWireTap(t, w.Server.Namespace, w.Server.Port)
			for _, v6 := range []bool{false, true} {
				if out, err := curl(w.Client.Namespace, url(w.Lab, v6, "/page")); err != nil || out != string(page) {
					t.Fatalf("curl: %v, %d bytes", err, len(out))
				}
				if out, err := curl(w.Client.Namespace, "-T", filepath.Join(root, "page"), url(w.Lab, v6, "/up/"+family(v6))); err != nil {
					t.Fatalf("curl -T: %v: %s", err, out)
				}
				pingIs(t, w.Client, w.Server.Addr(v6))
				datagramReturns(t, w.Client.Namespace, echoUDP(t, w.Server, v6), 20_000) // in fragments
			}
			w.sameFrames(t, "from the client", client, server)
			w.sameFrames(t, "from the server", server, client)
			for name, tap := range map[string]*wireTap{"client": client, "server": server} {
				t.Run("tshark at the "+name, func(t *testing.T) { tap.dissect(t) })
			}
		})
	}
}

// neverMerge keeps packets as they are on the wire: GRO would merge them and
// GSO cut them again.
func (w *wireLab) neverMerge(t *testing.T) {
	t.Helper()
	ports := map[*lab.Namespace][]string{
		w.Client.Namespace: {w.Client.Port}, w.Server.Namespace: {w.Server.Port},
		w.Edge.Namespace: append([]string{w.Edge.Inside}, w.Edge.Outside...),
	}
	if w.Switch != nil {
		ports[w.Switch] = []string{"client", "edge"}
	}
	const least = 1 // byte
	for at, names := range ports {
		for _, name := range names {
			err := at.Do(func() error {
				link, err := netlink.LinkByName(name)
				if err != nil {
					return fmt.Errorf("find %s: %w", name, err)
				}
				return errors.Join(netlink.LinkSetGROMaxSize(link, least), netlink.LinkSetGROIPv4MaxSize(link, least))
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// between says whether a frame goes from one host to the other. Only a SYN and
// its answer belong to one side alone.
func (w *wireLab) between(f wireFrame) bool {
	if p, ok := parseWirePacket(f.bytes); ok && p.tcp.SYN {
		return false
	}
	network := gopacket.NewPacket(f.bytes, layers.LayerTypeEthernet, gopacket.NoCopy).NetworkLayer()
	if network == nil {
		return false
	}
	from, to := network.NetworkFlow().Endpoints()
	for _, v6 := range []bool{false, true} {
		hosts := []string{w.Client.Addr(v6).String(), w.Server.Addr(v6).String()}
		if slices.Contains(hosts, from.String()) && slices.Contains(hosts, to.String()) {
			return true
		}
	}
	return false
}

// sameFrames checks that what one port has sent is what the other has received.
func (w *wireLab) sameFrames(t *testing.T, what string, from, to *wireTap) {
	t.Helper()
	var sent, arrived []wireFrame
	eventually(t, wirePatience, "all frames "+what+" have arrived", func() bool {
		sent = from.frames(func(f wireFrame) bool { return f.out && w.between(f) })
		arrived = to.frames(func(f wireFrame) bool { return !f.out && w.between(f) })
		return len(sent) == len(arrived)
	})
	if len(sent) < 100 {
		t.Fatalf("only %d frames %s: the test has not tested what it should", len(sent), what)
	}
	for i := range sent {
		want := sent[i].bytes
		if w.shape.topology == lab.Route {
			want = hopLater(t, want, arrived[i].bytes)
		}
		if !bytes.Equal(want, arrived[i].bytes) {
			t.Fatalf("frame %d %s is altered\n sent    %x\n arrived %x", i, what, want, arrived[i].bytes)
		}
	}
	t.Logf("%d frames %s are unaltered", len(sent), what)
}

// hopLater is a frame as a router passes it on, with the MAC addresses of how
// it arrived.
func hopLater(t *testing.T, sent, arrived []byte) []byte {
	t.Helper()
	want := append(append([]byte{}, arrived[:12]...), sent[12:]...)
	if ip := want[14:]; ip[0]>>4 == 6 {
		ip[7]--
	} else {
		ip[8]--
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], wireSum(ip[:20]))
	}
	return want
}

// wireWrong is what tshark finds wrong with a packet. What it says of sequence
// numbers is left out: a sender that fills the window, or repeats itself on a
// busy machine, is no fault of the wire.
const wireWrong = `ip.checksum.status == Bad || _ws.malformed || (tcp && (tcp.checksum.status != Good ||
	tcp.analysis.lost_segment || tcp.analysis.ack_lost_segment ||
	(_ws.expert.severity >= warning && !(_ws.expert.group == Sequence))))`

// dissect lets tshark look for what is wrong with a capture.
func (tap *wireTap) dissect(t *testing.T) {
	frames := tap.frames(func(wireFrame) bool { return true }) // others may follow
	file := writeCapture(t, frames)
	all := 0
	for _, f := range frames {
		if _, ok := parseWirePacket(f.bytes); ok {
			all++
		}
	}
	if good := len(tshark(t, file, "tcp.checksum.status == Good")); good != all {
		t.Errorf("of %d TCP segments %d have a good checksum", all, good)
	}
	if wrong := tshark(t, file, strings.Join(strings.Fields(wireWrong), " ")); len(wrong) > 0 {
		t.Errorf("tshark finds %d packets wrong, the first is %s", len(wrong), wrong[0])
	}
}

// tshark lists the packets of a file that a filter selects.
func tshark(t *testing.T, file, filter string) []string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "tshark", "-n", "-r", file, "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-Y", filter)
	out, err := command.Output()
	if err != nil {
		t.Fatalf("tshark -Y %q: %v", filter, err)
	}
	return slices.Collect(strings.Lines(string(out)))
}

// writeCapture makes a capture file (pcap 2.4, microseconds, Ethernet).
func writeCapture(t *testing.T, frames []wireFrame) string {
	t.Helper()
	const magic, version, snapLength, ethernet = 0xa1b2c3d4, 2 | 4<<16, 1 << 17, 1
	native := binary.NativeEndian
	var file []byte
	for _, word := range []uint32{magic, version, 0, 0, snapLength, ethernet} {
		file = native.AppendUint32(file, word)
	}
	for _, f := range frames {
		length := uint32(len(f.bytes))
		for _, word := range []uint32{uint32(f.at.Unix()), uint32(f.at.Nanosecond() / 1000), length, length} {
			file = native.AppendUint32(file, word)
		}
		file = append(file, f.bytes...)
	}
	name := filepath.Join(t.TempDir(), "wire.pcap")
	if err := os.WriteFile(name, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
