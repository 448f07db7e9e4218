package config

import (
	"fmt"
	"net/netip"
)

// ParseMetrics reads where metrics are served: an address of this host, or 0.0.0.0
// or [::] for all of them, with a port.
func ParseMetrics(value string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(value)
	if err != nil || at.Port() == 0 || at.Addr().Is4In6() {
		return netip.AddrPort{}, fmt.Errorf("%q is no address with a port, such as 127.0.0.1:9465", value)
	}
	return at, nil
}

func (s *source) metrics(value string) (netip.AddrPort, error) {
	if value == "" {
		return netip.AddrPort{}, nil
	}
	at, err := ParseMetrics(value)
	if err != nil {
		return at, s.fail("$.metrics", "metrics: %s", err)
	}
	return at, nil
}

// AtMetrics places an error at the address of the metrics.
func (c *Edge) AtMetrics(err error) error { return c.source.at("$.metrics", err) }

// AtMetrics places an error at the address of the metrics.
func (c *Server) AtMetrics(err error) error { return c.source.at("$.metrics", err) }
