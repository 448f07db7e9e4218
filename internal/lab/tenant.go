package lab

import (
	"errors"
	"fmt"
)

// A server that is a tenant:
//
//	edge ── in0   eth0 ── bridge ── tenant0   eth0 ── server
//	              └──────── home ────────┘
//
// Its agent is in home, at tenant0.
const (
	homeRole   = "home"
	tenantPort = "tenant0"
)

var errTenantFabric = errors.New("a lab with two edges or a way back past them has no tenant")

func (l *Lab) tenantCable() cable {
	return cable{from: l.Server.Namespace, to: l.Home, fromPort: hostPort, toPort: tenantPort}
}

func (l *Lab) joinTenant() error {
	if !l.options.Tenant {
		return nil
	}
	return l.Home.bridge(hostPort, tenantPort)
}

// AgentHome is where the server's agent runs.
func (l *Lab) AgentHome() *Namespace {
	if l.options.Tenant {
		return l.Home
	}
	return l.Server.Namespace
}

// AgentDevices is the line of the agent's configuration that says where it works.
func (l *Lab) AgentDevices() string {
	if l.options.Tenant {
		return fmt.Sprintf("tenants: [%s]\n", tenantPort)
	}
	port := l.Server.Port
	if l.options.Direct {
		port = directPort
	}
	return fmt.Sprintf("interfaces: [%s]\n", port)
}
