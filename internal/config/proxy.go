package config

import (
	"fmt"

	"smartcookie/internal/policy"
)

// readProxy settles what follows for a service if the edge itself stands between
// its clients and servers: it translates as for a tenant, and its SYN-ACKs close
// the window.
func (c *Edge) readProxy(src *source, f *edgeFile) (err error) {
	if c.Proxied, err = src.bounded("$.proxied", f.Proxied, DefaultTranslated, 1, MaxTranslated); err != nil {
		return err
	}
	for i := range c.Services {
		s := &c.Services[i]
		if s.Setup == policy.Tenant {
			s.Setup = policy.Auto // its own agent's, elsewhere
		}
		if !s.Proxied() {
			continue
		}
		if !c.ReturnTraffic {
			return src.fail(fmt.Sprintf("$.services[%d].strategy", i),
				"service %q: strategy proxy needs return traffic through this edge, which translates it", s.Name)
		}
		if s.Relays() {
			return src.fail(fmt.Sprintf("$.services[%d].strategy", i),
				"service %q: strategy proxy has no agent to ask: neither admission on-confirm nor probes", s.Name)
		}
		s.Setup, s.Window = policy.Tenant, 0
	}
	return nil
}
