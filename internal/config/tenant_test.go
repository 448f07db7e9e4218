package config

import (
	"testing"

	"smartcookie/internal/policy"
)

func TestWithoutInterfacesEveryServiceIsATenants(t *testing.T) {
	c, err := ReadServer(write(t, swap(t, goodServer, "interfaces: [lo]", "tenants: [lo]")))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Services {
		if s.Setup != policy.Tenant {
			t.Errorf("service %q is set up by %s", s.Name, s.Setup)
		}
	}
}

func TestTenantsAndServicesMustFit(t *testing.T) {
	for _, c := range []struct {
		old, replacement string
		line             int
		part             string
	}{
		{"interfaces: [lo]", "interfaces: [lo]\ntenants: [lo]", 3, "interface lo is in interfaces, too"},
		{"interfaces: [lo]", "tenants: [none0]", 2, `no interface "none0"`},
		{"    domain: inner\n", "    domain: inner\n    setup: tenant\n", 13, "tenants lists no device"},
	} {
		_, err := ReadServer(write(t, swap(t, goodServer, c.old, c.replacement)))
		wantFault(t, err, c.line, c.part)
	}
}
