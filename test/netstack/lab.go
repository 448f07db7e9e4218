package netstack

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"smartcookie/internal/lab"
)

// Where the stack is in a lab: on the client's link, as its neighbour. Its IPv6
// network is its own, since some defences take a network for one client.
var (
	labAddress4 = netip.MustParseAddr("10.99.1.3")
	labAddress6 = netip.MustParseAddr("fd99:0:0:7::3")
	labGateway4 = netip.MustParseAddr("10.99.1.1")
	labGateway6 = netip.MustParseAddr("fd99:0:0:1::1")
)

// InLab opens a stack on the port of a lab's client.
func InLab(l *lab.Lab, timeWait time.Duration) (s *Stack, err error) {
	options := Options{Device: l.Client.Port, TimeWait: timeWait}
	if l.Switch != nil { // all are on one link
		options.Addresses = []netip.Prefix{netip.PrefixFrom(labAddress4, 16), netip.PrefixFrom(labAddress6, 48)}
	} else {
		options.Addresses = []netip.Prefix{netip.PrefixFrom(labAddress4, 24), netip.PrefixFrom(labAddress6, 64)}
		options.Gateways = []netip.Addr{labGateway4, labGateway6}
		route := []string{"-6", "route", "replace", options.Addresses[1].Masked().String(), "dev", l.Edge.Outside[0]}
		if out, err := l.Edge.Command(context.Background(), "ip", route...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("show the edge the way to %s: %w: %s", labAddress6, err, out)
		}
	}
	err = l.Client.Do(func() error {
		s, err = Open(options)
		return err
	})
	return s, err
}
