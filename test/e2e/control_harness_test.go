package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

const controlPort = 4789

// controlAt is where a namespace of the lab's inside network speaks; the edge
// is host 1 in the server's network.
func controlAt(l *lab.Lab, host byte, ipv6 bool) netip.AddrPort {
	if ipv6 {
		a := l.Server.IPv6.As16()
		a[15] = host
		return netip.AddrPortFrom(netip.AddrFrom16(a), controlPort)
	}
	a := l.Server.IPv4.As4()
	a[3] = host
	return netip.AddrPortFrom(netip.AddrFrom4(a), controlPort)
}

// newSpeaking prepares a split defence whose halves speak to each other.
func newSpeaking(t *testing.T, l *lab.Lab, ipv6 bool, edits ...string) halves {
	t.Helper()
	edge, server := controlAt(l, 1, ipv6), controlAt(l, 2, ipv6)
	keys := labKeys(t, l)
	edits = append(edits, fmt.Sprintf("ports: [%d]", lab.HTTPPort), fmt.Sprintf("ports: [%d, %d, %d, %d-%d]", lab.HTTPPort, echoPort, closedPort, crowdPort, crowdPort+200))
	edit := strings.NewReplacer(edits...)
	write := func(name, content string) string {
		file, err := l.WriteFile(name+".yaml", edit.Replace(content))
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	edgeFile := l.EdgeConfig(keys) + fmt.Sprintf("control:\n  listen: \"%s\"\n  id: 1\n  agents:\n    - id: 21\n      address: \"%s\"\n      protects: [%s, \"%s\"]\n",
		edge, server, l.Server.IPv4, l.Server.IPv6)
	serverFile := l.ServerConfig(keys) + fmt.Sprintf("control:\n  listen: \"%s\"\n  id: 21\n  edges:\n    - id: 1\n      address: \"%s\"\n", server, edge)
	return halves{
		server: &daemon{lab: l, at: l.Server.Namespace, name: "server", args: []string{"server", "-c", write("server", serverFile)}},
		edge:   &daemon{lab: l, at: l.Edge.Namespace, name: "edge", args: []string{"edge", "-c", write("edge", edgeFile)}},
	}
}

// closedPort is protected, and nobody listens there.
const closedPort = 8009

// awaitPhase waits until the edge has this to say of its agent.
func awaitPhase(t *testing.T, edge *daemon, phase string, within time.Duration) {
	t.Helper()
	eventually(t, within, "the agent is "+phase, func() bool {
		peers, err := dataplane.ControlPeers(edge.pins())
		return err == nil && peers[dataplane.EdgeAgent][21].Phase.String() == phase
	})
}

// reboot forgets an edge's state as a reboot would.
func (d *daemon) reboot(t *testing.T) {
	t.Helper()
	d.kill(t)
	if _, err := dataplane.Detach(d.pins()); err != nil {
		t.Fatal(err)
	}
}
