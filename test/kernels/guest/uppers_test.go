package guest

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

var (
	customerTag = wire.Tag{Type: wire.Customer, ID: 10}
	serviceTag  = wire.Tag{Type: wire.Service, ID: 20}

	taggings = []struct {
		name string
		tags []wire.Tag
	}{
		{"one tag", []wire.Tag{customerTag}},
		{"two tags", []wire.Tag{serviceTag, customerTag}},
	}
)

func TestNativeListenerOnVLANDeviceBehindABridgingEdge(t *testing.T) {
	for _, test := range taggings {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, lab.Bridge)
			stackVLAN(t, l.Client.Namespace, l.Client.Port, test.tags, hostAddressing(lab.Bridge, l.Client))
			l.Server.Port = stackVLAN(t, l.Server.Namespace, l.Server.Port, test.tags, hostAddressing(lab.Bridge, l.Server))
			serveEcho(t, l, l.Server.Port)
			tap := openTap(t, l.Client.Namespace, l.Client.Port)
			mustBeDefended(t, l, defend(t, l, "split"))
			tap.mustSeeSYNACKs(t, 2*connections, test.tags)
		})
	}
}

func TestNativeListenerOnVLANDeviceBehindARoutingEdge(t *testing.T) {
	for _, test := range taggings {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, lab.Route)
			stackVLAN(t, l.Client.Namespace, l.Client.Port, test.tags, hostAddressing(lab.Route, l.Client))
			stackVLAN(t, l.Edge.Namespace, l.Edge.Outside[0], test.tags, gatewayAddressing(l.Client))
			stackVLAN(t, l.Edge.Namespace, l.Edge.Inside, test.tags, gatewayAddressing(l.Server))
			l.Server.Port = stackVLAN(t, l.Server.Namespace, l.Server.Port, test.tags, hostAddressing(lab.Route, l.Server))
			serveEcho(t, l, l.Server.Port)
			tap := openTap(t, l.Client.Namespace, l.Client.Port)
			mustBeDefended(t, l, defend(t, l, "split"))
			tap.mustSeeSYNACKs(t, 2*connections, test.tags)
		})
	}
}

// The host shape is on the port itself, which is where XDP is.
func TestNativeHostDefendsAListenerBelowATag(t *testing.T) {
	l := newLab(t, lab.Route)
	tags := []wire.Tag{customerTag}
	stackVLAN(t, l.Edge.Namespace, l.Edge.Inside, tags, gatewayAddressing(l.Server))
	stackVLAN(t, l.Server.Namespace, l.Server.Port, tags, hostAddressing(lab.Route, l.Server))
	serveEcho(t, l, "")
	mustBeDefended(t, l, defend(t, l, "host"))
}

const vrf = "vrf-blue"

// newVRFLab makes a lab whose server has its port in a VRF, in which unbound
// sockets are if accept is "1".
func newVRFLab(t *testing.T, accept string) *lab.Lab {
	t.Helper()
	l := newLab(t, lab.Route)
	addVRF(t, l.Server.Namespace, vrf, l.Server.Port, hostAddressing(lab.Route, l.Server))
	if err := l.Server.Sysctl("net.ipv4.tcp_l3mdev_accept", accept); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestNativeListenerInVRF(t *testing.T) {
	for _, test := range []struct {
		name, device, accept, defence string
	}{
		{"bound to the VRF", vrf, "0", "split"},
		{"bound to the port", "eth0", "0", "split"},
		{"unbound", "", "1", "split"},
		{"bound to the VRF of a host", vrf, "0", "host"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newVRFLab(t, test.accept)
			serveEcho(t, l, test.device)
			mustTalk(t, l) // without a defence
			mustBeDefended(t, l, defend(t, l, test.defence))
		})
	}
}

// The copy of a packet that goes to the back of the queue finds its way, too.
func TestNativePortIsReusedInVRF(t *testing.T) {
	l := newVRFLab(t, "0")
	serve(t, l, vrf, greet)
	guard := defend(t, l, "split")
	mustBeGreeted(t, l)
	_, server := countsOf(t, guard)
	t.Logf("server: %v", server)
	if server["requeue_timewait"] != 2*(connections-1) || server["setup"] != 2*connections {
		t.Errorf("requeue_timewait is %d and setup is %d, want %d and %d", server["requeue_timewait"], server["setup"], 2*(connections-1), 2*connections)
	}
}

// Who comes through a VRF does not reach what is outside it.
func TestNativeListenerOutsideTheVRFIsNotReached(t *testing.T) {
	l := newVRFLab(t, "0")
	serveEcho(t, l, "")
	guard := defend(t, l, "split")
	for _, ipv6 := range []bool{false, true} {
		if err := talk(l, ipv6, []byte("hello")); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v, want a reset", l.Server.Addr(ipv6), err)
		}
	}
	_, server := countsOf(t, guard)
	t.Logf("server: %v", server)
	if server["setup"] != 0 || server["pass_closed_port"] < 2 {
		t.Errorf("setup is %d and pass_closed_port is %d, want none and one for each family", server["setup"], server["pass_closed_port"])
	}
}

func TestNativeServerRefusesTheDeviceOfAVRF(t *testing.T) {
	l := newVRFLab(t, "0")
	l.Server.Port = vrf
	_, err := l.Defend(t.Context(), "split")
	t.Log(err)
	if err == nil || !strings.Contains(err.Error(), "name the ports of the VRF") {
		t.Errorf("the agent does not refuse it: %v", err)
	}
}

func TestNativeListenerOnBond(t *testing.T) {
	l := newLab(t, lab.Route)
	addBond(t, l.Server.Namespace, "bond0", l.Server.Port, hostAddressing(lab.Route, l.Server))
	l.Server.Port = "bond0"
	serveEcho(t, l, "")
	mustBeDefended(t, l, defend(t, l, "split"))
}
