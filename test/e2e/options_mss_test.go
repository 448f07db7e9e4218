package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"smartcookie/internal/cookie"
	"smartcookie/internal/lab"
)

// jumboMTU lets both families carry the largest MSS of a cookie, 8960.
const jumboMTU = 9020

func TestConnectionHasTheMSSOfItsClientRoundedDown(t *testing.T) {
	need(t, "ss", "nginx", "ip")
	for _, test := range []struct {
		shape
		stride int // of the listed values; each is tried on one shape
	}{{splitRoute, 5}, {splitBridge, 1}, {hostShape, 5}} {
		t.Run(test.name, func(t *testing.T) {
			l := deploy(t, test.shape, lab.Options{MTU: jumboMTU}, protection{mss: jumboMTU - 40})
			startNginx(t, l)
			r := trial{Lab: l, tap: newTap(t, l.Client.Namespace, l.Client.Port), mtu: jumboMTU, offered: jumboMTU - 40}
			for _, ipv6 := range []bool{false, true} {
				for _, timestamps := range []bool{true, false} {
					r.ipv6 = ipv6
					t.Run(fmt.Sprintf("%s timestamps %t", family(ipv6), timestamps), func(t *testing.T) {
						r.tap.t = t
						r.advertise(t, test.topology, timestamps, test.stride)
					})
				}
			}
		})
	}
}

// advertise connects with the listed values and those one below them.
func (r trial) advertise(t *testing.T, topology lab.Topology, timestamps bool, stride int) {
	t.Helper()
	combination := everyOption
	if !timestamps {
		combination &^= 1
	}
	chooseOptions(t, r.Client.Namespace, combination)
	values := cookie.MSSValues(r.family(), timestamps)
	for i := 0; i < len(values); i += stride {
		for _, mss := range []int{int(values[i]) - 1, int(values[i])} {
			setAdvertisedMSS(t, r.Lab, topology, r.ipv6, mss)
			if asked := r.connect(t, net.Dialer{}); int(asked.MSS) != mss {
				t.Errorf("the client's SYN has MSS %d, not %d", asked.MSS, mss)
			}
		}
	}
}

// setAdvertisedMSS sets the MSS that the client announces to the server.
func setAdvertisedMSS(t *testing.T, l *lab.Lab, topology lab.Topology, ipv6 bool, mss int) {
	t.Helper()
	server := l.Server.Addr(ipv6)
	args := []string{"route", "replace", netip.PrefixFrom(server, server.BitLen()).String()}
	if topology == lab.Route {
		args = append(args, "via", gatewayOf(l.Client, ipv6).String())
	}
	args = append(args, "dev", l.Client.Port, "advmss", fmt.Sprint(mss))
	if out, err := l.Client.Command(context.Background(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// gatewayOf is the edge's address in the network of a host, when it routes.
func gatewayOf(h lab.Host, ipv6 bool) netip.Addr {
	return h.Addr(ipv6).Prev()
}
