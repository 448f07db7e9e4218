package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"smartcookie/internal/lab"
)

const packaging = "../../packaging"

// confinedUser stands for the user of the package, which exists only where it is
// installed.
const confinedUser = 65534

// confined runs the agents of a lab as the package's units do: as a user of their
// own, with few capabilities.
type confined struct {
	script, granted string
}

func newConfined(t *testing.T) *confined {
	t.Helper()
	need(t, "setpriv")
	program := publicProgram(t)
	c := &confined{program + ".sh", program + ".granted"}
	text := fmt.Sprintf(`#!/bin/sh
case $1 in
edge | server)
	granted=$(cat %s)
	exec setpriv --reuid %[2]d --regid %[2]d --clear-groups --no-new-privs \
		--bounding-set="$granted" --inh-caps="$granted" --ambient-caps="$granted" %[3]s "$@"
	;;
*) exec %[3]s "$@" ;;
esac
`, c.granted, confinedUser, program)
	if err := os.WriteFile(c.script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return c
}

// grant says which capabilities the agents have that start from now on.
func (c *confined) grant(t *testing.T, capabilities []string) {
	t.Helper()
	list := "-all"
	for _, name := range capabilities {
		list += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	if err := os.WriteFile(c.granted, []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unitCapabilities are those that the unit of an agent grants.
func unitCapabilities(t *testing.T, agent string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(packaging, "systemd", "smartcookie-"+agent+".service"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^AmbientCapabilities=(.+)$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("the unit of the %s grants nothing", agent)
	}
	return strings.Fields(string(found[1]))
}

// exampleConfig is the package's example, made to fit the lab.
func exampleConfig(t *testing.T, l *lab.Lab, agent string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(packaging, "etc", agent+".yaml.example"))
	if err != nil {
		t.Fatal(err)
	}
	device := l.Edge.Outside
	if agent == "server" {
		device = []string{"eth0"}
	}
	file, err := l.WriteFile(agent+".yaml", strings.NewReplacer(
		"/etc/smartcookie/keys/fleet.keys", labKeys(t, l), "/etc/smartcookie/keys/web.keys", labKeys(t, l),
		"[eth0]", "["+strings.Join(device, ", ")+"]", "[eth1]", "["+l.Edge.Inside+"]",
		"forward: bridge", "forward: route\nlearn: 0s", "domain: web", "domain: default", "mode: monitor", "mode: always",
		"203.0.113.0/24", l.Server.IPv4.String(), "203.0.113.10", l.Server.IPv4.String(),
		"2001:db8:1::/48", l.Server.IPv6.String(), "2001:db8:1::10", l.Server.IPv6.String(),
	).Replace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// What the package's user, units and examples are is enough to serve a client, and no
// capability of the units is too much.
func TestPackagedAgentsNeedAllThatTheirUnitsGrantAndNoMore(t *testing.T) {
	beside(t)
	c := newConfined(t)
	l := newLab(t, lab.Options{Executable: c.script})
	if _, err := l.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	for agent, at := range map[string]*lab.Namespace{"server": l.Server.Namespace, "edge": l.Edge.Namespace} {
		d := &daemon{lab: l, at: at, name: agent, args: []string{agent, "-c", exampleConfig(t, l, agent)}}
		if err := errors.Join(os.Mkdir(d.pins(), 0o700), os.Chown(d.pins(), confinedUser, confinedUser)); err != nil {
			t.Fatal(err)
		}
		all := unitCapabilities(t, agent)
		for _, name := range all {
			c.grant(t, slices.DeleteFunc(slices.Clone(all), func(other string) bool { return other == name }))
			if _, err := l.Start(t.Context(), at, agent, append(d.args, "--pin", d.pins())...); err == nil {
				t.Errorf("the %s does without %s", agent, name)
			}
		}
		c.grant(t, all)
		d.start(t)
	}
	for _, ipv6 := range []bool{false, true} {
		runIn(t, l.Client.Namespace, "curl", "--silent", "--fail", "--max-time", "10", "--output", "/dev/null", l.URL(ipv6))
	}
}
