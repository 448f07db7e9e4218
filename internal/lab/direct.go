package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	directPort = "direct0"
	// SYNs bear a mark in the client's own stack and have a table of routes.
	synMark  = 1
	synTable = 100
)

// loose lets answers come in where no request has gone out.
var loose = []setting{
	{"net.ipv4.conf.all.rp_filter", "0"},
	{"net.ipv4.conf.default.rp_filter", "0"},
}

// makeDirect connects client and server by a second link and leaves only the
// client's SYNs to the edge: it answers them, and what follows is between the
// two alone. No XDP is there, and the kernel's offloads are as they are.
func (l *Lab) makeDirect() error {
	if !l.options.Direct {
		return nil
	}
	if l.options.Topology != Route {
		return errors.New("a direct link needs a lab that routes")
	}
	if err := errors.Join(l.Client.sysctls(loose), l.Server.sysctls(loose)); err != nil {
		return err
	}
	if err := l.join(cable{from: l.Client.Namespace, to: l.Server.Namespace, fromPort: directPort, toPort: directPort}); err != nil {
		return err
	}
	client, server := l.Client.neighbour(), l.Server.neighbour()
	client.port, server.port = directPort, directPort
	if err := errors.Join(l.towards(client, server), l.towards(server, client)); err != nil {
		return err
	}
	return l.divertSYNs()
}

// towards sends what is for the other end out of the direct link.
func (l *Lab) towards(from, to neighbour) error {
	if err := l.introduce(from, to); err != nil {
		return err
	}
	link, err := from.namespace.link.LinkByName(from.port)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", from.port, from.namespace.Name, err)
	}
	for _, address := range to.address {
		route := &netlink.Route{
			LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK,
			Dst: network(netip.PrefixFrom(address, address.BitLen())),
		}
		if err := from.namespace.link.RouteAdd(route); err != nil {
			return fmt.Errorf("route %s to %s in %s: %w", address, from.port, from.namespace.Name, err)
		}
	}
	return nil
}

// divertSYNs gives the client's SYNs the way that all packets have otherwise.
func (l *Lab) divertSYNs() error {
	rules := fmt.Sprintf(`table inet lab {
	chain divert {
		type route hook output priority mangle
		tcp flags & (syn | ack) == syn meta mark set %d
	}
}`, synMark)
	nft := l.Client.Command(context.Background(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("mark SYNs in %s (%v): %s", l.Client.Name, err, out)
	}
	for family, via := range map[int]netip.Addr{unix.AF_INET: address4(1, 1), unix.AF_INET6: address6(1, 1)} {
		rule := netlink.NewRule()
		rule.Family, rule.Mark, rule.Table = family, synMark, synTable
		if err := l.Client.link.RuleAdd(rule); err != nil {
			return fmt.Errorf("add a rule for SYNs in %s: %w", l.Client.Name, err)
		}
		route := &netlink.Route{Dst: network(everything(via)), Gw: via.AsSlice(), Table: synTable}
		if err := l.Client.link.RouteAdd(route); err != nil {
			return fmt.Errorf("route SYNs via %s in %s: %w", via, l.Client.Name, err)
		}
	}
	return nil
}
