package config

import (
	"fmt"

	"smartcookie/internal/policy"
)

// maxProbes is a rate that one daemon carries on the side.
const maxProbes = 10_000

// serviceAdmission reads what makes an edge let flows through.
func (s *source) serviceAdmission(path string, f *serviceFile, out *policy.Service) (err error) {
	switch f.Admission {
	case "", "on-cookie":
		out.Admission = policy.OnCookie
	case "on-confirm":
		out.Admission = policy.OnConfirm
	default:
		return s.fail(path+".admission", "unknown choice %q: on-cookie or on-confirm", f.Admission)
	}
	out.Probes, err = s.bounded(path+".probes", f.Probes, 0, 0, maxProbes)
	return err
}

// checkRelays wants agents to which packets can go, wherever packets shall.
func (c *Edge) checkRelays(src *source) error {
	for i := range c.Services {
		s := &c.Services[i]
		if !s.Relays() || c.Control.covered(s) {
			continue
		}
		key := "admission"
		if s.Admission != policy.OnConfirm {
			key = "probes"
		}
		return src.fail(fmt.Sprintf("$.services[%d].%s", i, key),
			"service %q: %s needs agents (control) that cover all of its prefixes", s.Name, key)
	}
	return nil
}
