package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// A lab whose packets have a choice of ways has two routers more:
//
//	client ──┐         ┌── edge ───┐
//	         ├─ front ─┤           ├─ back ── server
//	attacker ┘    │    └── edge2 ──┘    │
//	              └────── bypass ───────┘    asymmetric: the way back
//
// Both routers choose the edge by a hash of addresses and ports that is the
// same in both directions, so that a flow's two halves meet at one edge.
const (
	frontRole      = "front"
	backRole       = "back"
	secondEdgeRole = "edge2"
	bypassPort     = "bypass"
	backPort       = "in0"
)

// The networks of the fabric; of each edge's, the edge has host 2.
const (
	clientNetwork   = 1
	attackerNetwork = 2
	serverNetwork   = 3
	outsideNetworks = 11
	insideNetworks  = 21
	bypassNetwork   = 31
)

// Edges a lab can have.
const edgesLimit = 2

// weights is how finely flows can be shared out, as multipath routes can.
const weights = 256

var (
	errNoFabric = errors.New("only a routed lab has two edges or a way back past them")
	errOneEdge  = errors.New("this lab has one edge")
)

// fabric tells whether the lab has the two routers.
func (l *Lab) fabric() bool { return l.options.Edges > 1 || l.options.Asymmetric }

// Check tells what no lab can be.
func (o Options) Check() error {
	if o.Edges < 0 || o.Edges > edgesLimit {
		return fmt.Errorf("a lab has 1 or 2 edges, not %d", o.Edges)
	}
	if o.Topology != Route && (o.Edges > 1 || o.Asymmetric) {
		return errNoFabric
	}
	if o.Tenant && (o.Edges > 1 || o.Asymmetric) {
		return errTenantFabric
	}
	return nil
}

// Edges lists the lab's edges.
func (l *Lab) Edges() []EdgeHost {
	if l.options.Edges > 1 {
		return []EdgeHost{l.Edge, l.SecondEdge}
	}
	return []EdgeHost{l.Edge}
}

// fabricMembers are the namespaces that only such a lab has.
func (l *Lab) fabricMembers() []member {
	if !l.fabric() {
		return nil
	}
	all := []member{{frontRole, &l.front}, {backRole, &l.back}}
	if l.options.Edges > 1 {
		all = append(all, member{secondEdgeRole, &l.SecondEdge.Namespace})
	}
	return all
}

func edgePort(i int) string { return fmt.Sprintf("edge%d", i) }

func (l *Lab) fabricCables() []cable {
	outside, inside := l.badWires()
	all := []cable{
		{l.Client.Namespace, l.front, hostPort, "out0", outside},
		{l.Attacker.Namespace, l.front, hostPort, "out1", nil},
		{l.Server.Namespace, l.back, hostPort, backPort, inside},
		{l.front, l.back, bypassPort, bypassPort, nil},
	}
	for i, edge := range l.Edges() {
		all = append(all,
			cable{edge.Namespace, l.front, edge.Outside[0], edgePort(i), nil},
			cable{edge.Namespace, l.back, edge.Inside, edgePort(i), nil})
	}
	return all
}

// finishFabric makes the routers' ends take what the edges send by XDP_TX.
func (l *Lab) finishFabric() error {
	errs := []error{l.Client.Pass(hostPort), l.Attacker.Pass(hostPort)}
	for i := range l.Edges() {
		errs = append(errs, l.front.Pass(edgePort(i)))
	}
	return errors.Join(errs...)
}

// stub is a network of two.
type stub struct {
	network byte
	one     *Namespace // has host 1
	onePort string
	two     *Namespace // has host 2
	twoPort string
}

func (l *Lab) stubs() []stub {
	all := []stub{
		{clientNetwork, l.front, "out0", l.Client.Namespace, hostPort},
		{attackerNetwork, l.front, "out1", l.Attacker.Namespace, hostPort},
		{serverNetwork, l.back, backPort, l.Server.Namespace, hostPort},
		{bypassNetwork, l.front, bypassPort, l.back, bypassPort},
	}
	for i, edge := range l.Edges() {
		all = append(all,
			stub{outsideNetworks + byte(i), l.front, edgePort(i), edge.Namespace, edge.Outside[0]},
			stub{insideNetworks + byte(i), l.back, edgePort(i), edge.Namespace, edge.Inside})
	}
	return all
}

// makeStub gives both ends their addresses and makes them neighbours.
func (l *Lab) makeStub(s stub) error {
	ends := [2]neighbour{
		{s.one, s.onePort, []netip.Addr{address4(s.network, 1), address6(s.network, 1)}},
		{s.two, s.twoPort, []netip.Addr{address4(s.network, 2), address6(s.network, 2)}},
	}
	for _, end := range ends {
		if err := end.namespace.assign(end.port, end.address[0], routedBits4, end.address[1], routedBits6); err != nil {
			return err
		}
	}
	return errors.Join(l.introduce(ends[0], ends[1]), l.introduce(ends[1], ends[0]))
}

// routeFabric gives everybody a way to everybody.
func (l *Lab) routeFabric() error {
	for _, s := range l.stubs() {
		if err := l.makeStub(s); err != nil {
			return err
		}
	}
	for i, host := range l.hosts() {
		if err := host.routeBoth(true, byte(i+1), 1); err != nil {
			return err
		}
	}
	for i, edge := range l.Edges() {
		if err := errors.Join(edge.routeBoth(true, outsideNetworks+byte(i), 1), edge.routeBoth(false, insideNetworks+byte(i), 1)); err != nil {
			return err
		}
	}
	if l.options.Asymmetric {
		if err := l.back.routeBoth(true, bypassNetwork, 1); err != nil {
			return err
		}
	}
	return errors.Join(l.routeSources(l.front), l.spread(l.evenly()))
}

// routeBoth routes either everything or the server's network, of both families,
// by way of a host of a network.
func (n *Namespace) routeBoth(all bool, network, host byte) error {
	via4, via6 := address4(network, host), address6(network, host)
	to4, to6 := serverPrefixes()
	if all {
		to4, to6 = everything(via4), everything(via6)
	}
	return errors.Join(n.route(to4, via4), n.route(to6, via6))
}

func serverPrefixes() (netip.Prefix, netip.Prefix) {
	return netip.PrefixFrom(address4(serverNetwork, 0), routedBits4), netip.PrefixFrom(address6(serverNetwork, 0), routedBits6)
}

// evenly shares the flows out evenly.
func (l *Lab) evenly() []int {
	shares := make([]int, len(l.Edges()))
	for i := range shares {
		shares[i] = weights / len(shares)
	}
	return shares
}

// Move gives the edge of a number, 0 or 1, that share of all flows, 0 to 1, and
// the other one the rest. Flows whose share does not change stay where they are.
func (l *Lab) Move(share float64, to int) error {
	if l.options.Edges < edgesLimit {
		return errOneEdge
	}
	if !(share >= 0 && share <= 1) || to < 0 || to >= edgesLimit {
		return fmt.Errorf("move flows: want a share of 0 to 1 and edge 0 or 1, not %v and %d", share, to)
	}
	shares := make([]int, edgesLimit)
	shares[to] = int(share * weights)
	shares[1-to] = weights - shares[to]
	return l.spread(shares)
}

// Kill takes an edge off the net, as a power failure would. The routers see
// that the line is dead and send everything to the other edge.
func (l *Lab) Kill(edge int) error {
	if l.options.Edges < edgesLimit {
		return errOneEdge
	}
	if edge < 0 || edge >= edgesLimit {
		return fmt.Errorf("kill an edge: want 0 or 1, not %d", edge)
	}
	dead := l.Edges()[edge]
	return errors.Join(dead.down(dead.Outside[0]), dead.down(dead.Inside))
}

// spread makes both routers choose edges in these proportions, of 256.
func (l *Lab) spread(shares []int) error {
	to4, to6 := serverPrefixes()
	for _, to := range []netip.Prefix{to4, to6} {
		if err := l.front.routeBy(to, shares, outsideNetworks); err != nil {
			return err
		}
		if l.options.Asymmetric {
			continue
		}
		if err := l.back.routeBy(everything(to.Addr()), shares, insideNetworks); err != nil {
			return err
		}
	}
	return nil
}

// routeBy replaces a route by one by way of the edges that have a share.
func (n *Namespace) routeBy(to netip.Prefix, shares []int, networks byte) error {
	route := &netlink.Route{Dst: network(to)}
	for i, share := range shares {
		if share == 0 {
			continue
		}
		link, err := n.link.LinkByName(edgePort(i))
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", edgePort(i), n.Name, err)
		}
		via := address4(networks+byte(i), 2)
		if to.Addr().Is6() {
			via = address6(networks+byte(i), 2)
		}
		hop := &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: via.AsSlice(), Hops: share - 1}
		route.MultiPath = append(route.MultiPath, hop)
	}
	if err := n.link.RouteReplace(route); err != nil {
		return fmt.Errorf("share %s out in %s: %w", to, n.Name, err)
	}
	return nil
}

func (n *Namespace) down(port string) error {
	link, err := n.link.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", port, n.Name, err)
	}
	if err := n.link.LinkSetDown(link); err != nil {
		return fmt.Errorf("set %s in %s down: %w", port, n.Name, err)
	}
	return nil
}

// routing lets a namespace route.
var routing = []setting{
	{"net.ipv4.ip_forward", "1"},
	{"net.ipv6.conf.all.forwarding", "1"},
}

// hashFields are addresses, protocol and ports.
const hashFields = "0x37"

// choosing lets routers choose by a hash of these, and among live lines only.
// Policy 1 names the same fields, but takes the hash that the sender's socket
// left with a packet: on a veth that is random, and another one each way. A
// port takes the default over when it is made.
var choosing = []setting{
	{"net.ipv4.fib_multipath_hash_policy", "3"},
	{"net.ipv6.fib_multipath_hash_policy", "3"},
	{"net.ipv4.fib_multipath_hash_fields", hashFields},
	{"net.ipv6.fib_multipath_hash_fields", hashFields},
	{"net.ipv4.conf.default.ignore_routes_with_linkdown", "1"},
	{"net.ipv6.conf.default.ignore_routes_with_linkdown", "1"},
}

// tuneFabric is the part of tune that only such a lab has.
func (l *Lab) tuneFabric() error {
	if !l.fabric() {
		return nil
	}
	routers := []*Namespace{l.front, l.back}
	for _, edge := range l.Edges() {
		routers = append(routers, edge.Namespace)
	}
	for _, router := range routers {
		if err := router.sysctls(routing); err != nil {
			return err
		}
	}
	return nil
}
