package config

import (
	"net"
	"slices"
	"strings"
	"testing"

	"smartcookie/internal/policy"
)

func TestChangesAreFoundByNameWhateverTheOrder(t *testing.T) {
	port := func(p uint16) []policy.PortRange { return []policy.PortRange{{Low: p, High: p}} }
	before := &Edge{Services: []policy.Service{{Name: "stays", Ports: port(1)}, {Name: "goes"}, {Name: "moves", Ports: port(2)}}}
	now := &Edge{Services: []policy.Service{{Name: "moves", Ports: port(3)}, {Name: "comes"}, {Name: "stays", Ports: port(1)}}}
	c := now.Since(before)
	for _, row := range []struct {
		what      string
		got, want []string
	}{
		{"added", c.Added, []string{"comes"}},
		{"removed", c.Removed, []string{"goes"}},
		{"changed", c.Changed, []string{"moves"}},
		{"settings", c.Settings, nil},
	} {
		if !slices.Equal(row.got, row.want) {
			t.Errorf("%s: %q, want %q", row.what, row.got, row.want)
		}
	}
	if c.None() || c.Refusal() != nil {
		t.Errorf("%+v: none: %v, refused: %v", c, c.None(), c.Refusal())
	}
	slices.Reverse(now.Services)
	if again := now.Since(now); !again.None() {
		t.Errorf("a file differs from itself: %+v", again)
	}
}

func TestReloadRefusesEveryFixedSettingByName(t *testing.T) {
	eth := func(index int) []net.Interface {
		return []net.Interface{{Name: "eth0", Index: index, MTU: 1500 + index}}
	}
	edge := (&Edge{Keys: "b", Flows: 2, Whitelist: 2, Forward: "route", Generic: true, Outside: eth(2), Inside: eth(3), Learn: 1}).
		Since(&Edge{Keys: "a", Flows: 1, Whitelist: 1, Forward: "bridge", Outside: eth(1), Inside: eth(1)})
	server := (&Server{Keys: "b", Recent: 2, Translated: 2, Interfaces: eth(2), Tenants: eth(2), Strict: true}).
		Since(&Server{Keys: "a", Recent: 1, Translated: 1, Interfaces: eth(1), Tenants: eth(1)})
	for _, row := range []struct {
		changes Changes
		want    string
	}{
		{edge, "keys, outside, inside, forward, xdp, flows, whitelist cannot be changed while the daemon runs: start the daemon anew"},
		{server, "keys, interfaces, tenants, recent, translated cannot be changed while the daemon runs: smartcookie detach, then start the daemon anew"},
	} {
		if err := row.changes.Refusal(); err == nil || err.Error() != row.want {
			t.Errorf("%v\nwant %s", err, row.want)
		}
	}
	if !slices.Contains(edge.Settings, "learn") || strings.Contains(edge.Refusal().Error(), "learn") {
		t.Errorf("learn can be changed: %+v", edge)
	}
	if c := (&Edge{Outside: []net.Interface{{Name: "eth0", Index: 1, MTU: 9000}}}).Since(&Edge{Outside: eth(1)}); !c.None() {
		t.Errorf("the same device: %+v", c)
	}
}
