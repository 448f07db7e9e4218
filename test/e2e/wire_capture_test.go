package e2e

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"smartcookie/internal/lab"
)

// After the handshake every byte on one side is on the other: a bridge changes
// nothing at all, a router MAC addresses, hops and the checksum over them.
func TestNothingOnTheWireIsAltered(t *testing.T) {
	need(t, "curl", "nginx", "tshark", "ip")
	for _, shape := range []wireShape{wireRoute, wireBridge} {
		t.Run(shape.name, func(t *testing.T) {
			w := newWire(t, shape, wireSettings{})
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
			}
			sameFrames(t, "from the client", client, server, shape.topology == lab.Route)
			sameFrames(t, "from the server", server, client, shape.topology == lab.Route)
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
	for at, names := range ports {
		for _, name := range names {
			out, err := at.Command(t.Context(), "ip", "link", "set", "dev", name, "gro_max_size", "1", "gro_ipv4_max_size", "1").CombinedOutput()
			if err != nil {
				t.Fatalf("ip link set %s: %v: %s", name, err, out)
			}
		}
	}
}

// established says whether a frame is HTTP after its handshake. Only a SYN and
// its answer belong to one side alone.
func established(f wireFrame) bool {
	p, ok := parseWirePacket(f.bytes)
	return ok && !p.tcp.SYN && (p.tcp.SrcPort == lab.HTTPPort || p.tcp.DstPort == lab.HTTPPort)
}

// sameFrames checks that what one port has sent is what the other has received.
func sameFrames(t *testing.T, what string, from, to *wireTap, routed bool) {
	t.Helper()
	var sent, arrived []wireFrame
	eventually(t, wirePatience, "all frames "+what+" have arrived", func() bool {
		sent = from.frames(func(f wireFrame) bool { return f.out && established(f) })
		arrived = to.frames(func(f wireFrame) bool { return !f.out && established(f) })
		return len(sent) == len(arrived)
	})
	if len(sent) < 100 {
		t.Fatalf("only %d frames %s: the test has not tested what it should", len(sent), what)
	}
	for i := range sent {
		want := sent[i].bytes
		if routed {
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
		var sum uint32
		for i := range 10 {
			sum += uint32(binary.BigEndian.Uint16(ip[2*i:]))
		}
		sum = sum&0xffff + sum>>16
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	}
	return want
}

// dissect lets tshark look for what is wrong with a capture.
func (tap *wireTap) dissect(t *testing.T) {
	file := tap.write(t)
	good := "tcp and tcp.checksum.status == Good"
	if all, right := tshark(t, file, "tcp"), tshark(t, file, good); len(all) < 100 || len(all) != len(right) {
		t.Errorf("of %d TCP segments %d have a good checksum", len(all), len(right))
	}
	for _, filter := range []string{
		"tcp.checksum.status != Good", "ip.checksum.status == Bad", "_ws.malformed", "_ws.expert.severity >= warning",
		"tcp.analysis.retransmission || tcp.analysis.lost_segment || tcp.analysis.out_of_order || tcp.analysis.ack_lost_segment",
	} {
		if found := tshark(t, file, filter); len(found) > 0 {
			t.Errorf("%d packets are %q, the first is %s", len(found), filter, found[0])
		}
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

func (tap *wireTap) write(t *testing.T) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "wire.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	pcap := pcapgo.NewWriter(file)
	if err := pcap.WriteFileHeader(1<<17, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, f := range tap.frames(func(wireFrame) bool { return true }) {
		info := gopacket.CaptureInfo{Timestamp: f.at, CaptureLength: len(f.bytes), Length: len(f.bytes)}
		if err := pcap.WritePacket(info, f.bytes); err != nil {
			t.Fatal(err)
		}
	}
	return file.Name()
}
