package config

import (
	"fmt"
	"net"
	"slices"

	"smartcookie/internal/policy"
)

// placeServices settles which services are tenants'. Where there are no
// interfaces all are, whatever they say of their setup.
func (c *Server) placeServices(src *source) error {
	for i, device := range c.Tenants {
		if slices.ContainsFunc(c.Interfaces, func(other net.Interface) bool { return other.Index == device.Index }) {
			return src.fail(fmt.Sprintf("$.tenants[%d]", i), "interface %s is in interfaces, too", device.Name)
		}
	}
	tenants := 0
	for i := range c.Services {
		s := &c.Services[i]
		if len(c.Interfaces) == 0 {
			s.Setup = policy.Tenant
		}
		if s.Setup != policy.Tenant {
			continue
		}
		if tenants++; len(c.Tenants) == 0 {
			return src.fail(fmt.Sprintf("$.services[%d].setup", i), "service %q is a tenant's, but tenants lists no device", s.Name)
		}
	}
	if len(c.Tenants) > 0 && tenants == 0 {
		return src.fail("$.tenants", "no service says setup: tenant, so that these devices have none")
	}
	return nil
}
