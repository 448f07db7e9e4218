package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

// A VLAN device is an upper device whose frames carry a tag on the lower one.
// Kernels without 8021q have none; a macvlan that takes everything is the upper
// device here, and two programs on the lower one push and pop the tags.
const upperPort = "lan0"

// stackVLAN puts an upper device on a port, which gets the addresses and, if
// there are any, the default gateways. Its MTU leaves room for the tags.
func stackVLAN(t *testing.T, at *lab.Namespace, port string, tags []wire.Tag, addresses, gateways []string) {
	t.Helper()
	runIn(t, at, "ip", "address", "flush", "dev", port, "scope", "global")
	runIn(t, at, "ip", "link", "add", upperPort, "link", port, "mtu", fmt.Sprint(1500-4*len(tags)), "type", "macvlan", "mode", "passthru")
	runIn(t, at, "ip", "link", "set", upperPort, "up")
	for _, address := range addresses {
		runIn(t, at, "ip", "address", "add", address, "dev", upperPort, "nodad")
	}
	for _, gateway := range gateways {
		runIn(t, at, "ip", "route", "replace", "default", "via", gateway)
	}
	tagFrames(t, at, port, tags)
}

// runIn runs a program in a namespace.
func runIn(t *testing.T, at *lab.Namespace, args ...string) string {
	t.Helper()
	need(t, args[0])
	out, err := at.Command(context.Background(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// tagFrames pushes tags, the outer one first in the list, onto what leaves by a
// port and pops as many off what comes in, until the test ends.
func tagFrames(t *testing.T, at *lab.Namespace, port string, tags []wire.Tag) {
	t.Helper()
	var push, pop asm.Instructions
	push, pop = append(push, asm.Mov.Reg(asm.R6, asm.R1)), append(pop, asm.Mov.Reg(asm.R6, asm.R1))
	for _, tag := range slices.Backward(tags) {
		push = append(push, asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, int32(swap16(tag.Type))),
			asm.Mov.Imm(asm.R3, int32(tag.ID)), asm.FnSkbVlanPush.Call())
		pop = append(pop, asm.Mov.Reg(asm.R1, asm.R6), asm.FnSkbVlanPop.Call())
	}
	attachTC(t, at, port, ebpf.AttachTCXEgress, push)
	attachTC(t, at, port, ebpf.AttachTCXIngress, pop)
}

func swap16(v uint16) uint16 { return v<<8 | v>>8 }

func attachTC(t *testing.T, at *lab.Namespace, port string, where ebpf.AttachType, body asm.Instructions) {
	t.Helper()
	const next = -1 // TCX_NEXT
	body = append(body, asm.Mov.Imm(asm.R0, next), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: body, License: "GPL"})
	if err != nil {
		t.Fatalf("load %v: %v", where, err)
	}
	defer program.Close()
	var attached link.Link
	err = at.Do(func() error {
		device, err := net.InterfaceByName(port)
		if err != nil {
			return err
		}
		attached, err = link.AttachTCX(link.TCXOptions{Interface: device.Index, Program: program, Attach: where})
		return err
	})
	if err != nil {
		t.Fatalf("attach to %s in %s: %v", port, at.Name, err)
	}
	t.Cleanup(func() { attached.Close() })
}

// tagsOf returns the tags of a frame, the outer one first.
func tagsOf(frame []byte) (tags []wire.Tag) {
	for at := 12; ; at += 4 {
		kind := binary.BigEndian.Uint16(frame[at:])
		if kind != wire.Customer && kind != wire.Service {
			return tags
		}
		tags = append(tags, wire.Tag{Type: kind, ID: binary.BigEndian.Uint16(frame[at+2:])})
	}
}

var taggings = []struct {
	name string
	tags []wire.Tag
}{
	{"one tag", []wire.Tag{{Type: wire.Customer, ID: 10}}},
	{"two tags", []wire.Tag{{Type: wire.Service, ID: 20}, {Type: wire.Customer, ID: 10}}},
}

// onVLAN moves an end host's addresses to a VLAN.
func onVLAN(t *testing.T, topology lab.Topology, h lab.Host, tags []wire.Tag) {
	t.Helper()
	if topology == lab.Bridge {
		stackVLAN(t, h.Namespace, h.Port, tags, []string{h.IPv4.String() + "/16", h.IPv6.String() + "/48"}, nil)
		return
	}
	stackVLAN(t, h.Namespace, h.Port, tags, []string{h.IPv4.String() + "/24", h.IPv6.String() + "/64"},
		[]string{gatewayOf(h, false).String(), gatewayOf(h, true).String()})
}

func TestBridgingEdgeDefendsTaggedFrames(t *testing.T) {
	need(t, "curl", "nginx", "ip")
	for _, test := range taggings {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, lab.Options{Topology: lab.Bridge, Resolve: true})
			onVLAN(t, lab.Bridge, l.Client, test.tags)
			onVLAN(t, lab.Bridge, l.Server, test.tags)
			l.Server.Port = upperPort // where the server's agent belongs
			splitBridge.protect(t, l, protection{})
			root := startNginx(t, l)
			sum := randomFile(t, root+"/file", 1<<20)
			tap := newTap(t, l.Client.Namespace, l.Client.Port)
			for _, ipv6 := range []bool{false, true} {
				mustGreet(t, l.Client.Namespace, url(l, ipv6, "/hello"))
				synackHasTags(t, tap, test.tags)
				downloadIs(t, l, ipv6, sum)
				uploadIs(t, l, ipv6, root, sum)
			}
			counted(t, l, "edge", "answer_syn")
			counted(t, l, "server", "setup")
		})
	}
}

func synackHasTags(t *testing.T, tap *tap, want []wire.Tag) {
	t.Helper()
	_, frame := tap.find("SYN-ACK", func(s wire.Seen, _ []byte) bool {
		return s.Kind == wire.KindTCP && s.Flags&(wire.SYN|wire.ACK) == wire.SYN|wire.ACK
	})
	if got := tagsOf(frame); !slices.Equal(got, want) {
		t.Errorf("the SYN-ACK has tags %x, want %x", got, want)
	}
}

// The edge answers tagged SYNs itself and leaves the routing of tagged frames
// to the kernel, which owns the VLAN devices.
func TestRoutingEdgeAnswersTaggedSYNsAndItsKernelRoutesTheRest(t *testing.T) {
	need(t, "curl", "nginx", "ip")
	for _, test := range taggings {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, lab.Options{Resolve: true})
			onVLAN(t, lab.Route, l.Client, test.tags)
			stackVLAN(t, l.Edge.Namespace, l.Edge.Outside[0], test.tags,
				[]string{gatewayOf(l.Client, false).String() + "/24", gatewayOf(l.Client, true).String() + "/64"}, nil)
			splitRoute.protect(t, l, protection{})
			root := startNginx(t, l)
			sum := randomFile(t, root+"/file", 1<<20)
			tap := newTap(t, l.Client.Namespace, l.Client.Port)
			for _, ipv6 := range []bool{false, true} {
				mustGreet(t, l.Client.Namespace, url(l, ipv6, "/hello"))
				synackHasTags(t, tap, test.tags)
				downloadIs(t, l, ipv6, sum)
				uploadIs(t, l, ipv6, root, sum)
			}
			counted(t, l, "edge", "answer_syn", "pass_verified", "pass_inside")
			counted(t, l, "server", "setup")
		})
	}
}

func TestHostDefendsServicesBelowOneTagAndPassesWhatHasTwo(t *testing.T) {
	need(t, "curl", "nginx", "ip")
	for _, test := range taggings {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, lab.Options{Resolve: true})
			onVLAN(t, lab.Route, l.Server, test.tags)
			stackVLAN(t, l.Edge.Namespace, l.Edge.Inside, test.tags,
				[]string{gatewayOf(l.Server, false).String() + "/24", gatewayOf(l.Server, true).String() + "/64"}, nil)
			hostShape.protect(t, l, protection{})
			root := startNginx(t, l)
			sum := randomFile(t, root+"/file", 1<<20)
			for _, ipv6 := range []bool{false, true} {
				mustGreet(t, l.Client.Namespace, url(l, ipv6, "/hello"))
				downloadIs(t, l, ipv6, sum)
				uploadIs(t, l, ipv6, root, sum)
			}
			if len(test.tags) == 1 {
				counted(t, l, "host", "answer_syn", "setup")
			} else if verdicts := verdictsOf(t, l, "host"); verdicts["answer_syn"] != 0 {
				t.Errorf("SYNs are answered for which the kernel sets nothing up: %v", verdicts)
			}
		})
	}
}

// A tag beside the frame is hidden from XDP on a veth, whatever rxvlan says
// there: the sender's txvlan decides where it is.
func TestVethShowsXDPTheTagsThatItsPeerPutsIntoTheFrame(t *testing.T) {
	need(t, "curl", "nginx", "ip", "ethtool")
	l := newLab(t, lab.Options{Topology: lab.Bridge, Resolve: true})
	tags := taggings[0].tags
	onVLAN(t, lab.Bridge, l.Client, tags)
	onVLAN(t, lab.Bridge, l.Server, tags)
	l.Server.Port = upperPort
	splitBridge.protect(t, l, protection{})
	startNginx(t, l)
	tap := newTap(t, l.Client.Namespace, l.Client.Port)
	for _, test := range []struct {
		at            *lab.Namespace
		port, offload string
		seen          []wire.Tag
	}{
		{l.Edge.Namespace, "out0", "rxvlan", tags},
		{l.Edge.Namespace, "out0", "txvlan", tags},
		{l.Client.Namespace, "eth0", "txvlan", tags}, // the switch puts it into the frame
		{l.Switch, "edge", "txvlan", nil},
	} {
		runIn(t, test.at, "ethtool", "-K", test.port, test.offload, "on")
		mustGreet(t, l.Client.Namespace, url(l, false, "/hello"))
		t.Logf("%s of %s on", test.offload, test.port)
		synackHasTags(t, tap, test.seen)
	}
}
