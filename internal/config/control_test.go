package config

import (
	"net/netip"
	"strings"
	"testing"

	"smartcookie/internal/policy"
)

func TestWrongControlSectionIsNamed(t *testing.T) {
	for section, want := range map[string]string{
		"control:\n  listen: 127.0.0.1:4789\n":                        "id is missing",
		"control:\n  id: 0\n  listen: 127.0.0.1:4789\n":               "id is missing or not between",
		"control:\n  id: 1\n  listen: 127.0.0.1\n":                    `listen "127.0.0.1" is no address with a port`,
		"control:\n  id: 1\n  listen: \"[fe80::1%lo]:1\"\n":           "is no address with a port",
		"control:\n  id: 1\n  listen: 0.0.0.0:4789\n":                 "is no address with a port",
		"control:\n  id: 1\n  listen: 127.0.0.1:4789\n":               "127.0.0.1 is on the loopback device",
		"control:\n  id: 1\n  listen: 192.0.2.77:4789\n":              "no interface of this host has 192.0.2.77",
		"control:\n  id: 1\n  listen: 127.0.0.1:4789\n  agents: []\n": "unknown field",
		"control:\n  id: 1\n  port: 4789\n":                           "unknown field",
	} {
		_, err := ReadServer(write(t, goodServer+section))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", section, err, want)
		}
	}
	_, err := ReadServer(write(t, swap(t, goodServer, "keys_end: pass", "silent: maybe")))
	if err == nil || !strings.Contains(err.Error(), `unknown choice "maybe": keep, pass or stop`) {
		t.Error(err)
	}
}

func TestServiceIsCoveredByAgentsThatProtectAllOfIt(t *testing.T) {
	prefix := netip.MustParsePrefix
	c := &Control{Agents: []Agent{
		{Protects: []netip.Prefix{prefix("192.0.2.0/25")}}, {Protects: []netip.Prefix{prefix("2001:db8::/48")}},
	}}
	for _, test := range []struct {
		prefixes []netip.Prefix
		want     bool
	}{
		{[]netip.Prefix{prefix("192.0.2.1/32"), prefix("2001:db8::/64")}, true},
		{[]netip.Prefix{prefix("192.0.2.0/24")}, false},
		{[]netip.Prefix{prefix("192.0.2.1/32"), prefix("198.51.100.1/32")}, false},
	} {
		if got := c.covered(&policy.Service{Prefixes: test.prefixes}); got != test.want {
			t.Errorf("%v: %v, want %v", test.prefixes, got, test.want)
		}
	}
	if (*Control)(nil).covered(&policy.Service{}) {
		t.Error("a service is covered though there is no section")
	}
}
