package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"smartcookie/internal/lab"
)

// refusal is how the program says no.
type refusal struct {
	code int
	text string // all that it printed
}

// refuse runs the program, which has to end by itself.
func refuse(t *testing.T, at *lab.Namespace, attributes *syscall.SysProcAttr, args ...string) refusal {
	t.Helper()
	return refuseProgram(t, at, program, attributes, args...)
}

func refuseProgram(t *testing.T, at *lab.Namespace, path string, attributes *syscall.SysProcAttr, args ...string) refusal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	command := at.Command(ctx, path, args...)
	command.SysProcAttr = attributes
	out, err := command.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return refusal{command.ProcessState.ExitCode(), string(out)}
}

// is wants one line that begins so and contains the rest, and an exit code.
func (r refusal) is(t *testing.T, code int, begin string, contains ...string) {
	t.Helper()
	t.Logf("exit code %d: %s", r.code, strings.TrimSpace(r.text))
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	if !strings.HasPrefix(r.text, "smartcookie: "+begin) || strings.Count(r.text, "\n") != 1 {
		t.Errorf("%q is not one line that begins with %q", r.text, "smartcookie: "+begin)
	}
	for _, part := range contains {
		if !strings.Contains(r.text, part) {
			t.Errorf("%q does not contain %q", r.text, part)
		}
	}
}

// nothingAttached wants no program on the devices of edge and server, and no
// pins. (The lab's own programs are elsewhere, but for the host shape's edge.)
func nothingAttached(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, at := range []*lab.Namespace{l.Edge.Namespace, l.Server.Namespace} {
		for _, program := range attached(t, at) {
			t.Errorf("in %s there is %s", at.Name, program)
		}
	}
	for _, agent := range []string{"edge", "server", "host"} {
		if _, err := os.Stat(l.PinDir(agent)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", l.PinDir(agent), err)
		}
	}
}

// attached lists the XDP and tcx programs of a namespace's devices.
func attached(t *testing.T, at *lab.Namespace) (all []string) {
	t.Helper()
	err := at.Do(func() error {
		devices, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, device := range devices {
			a := device.Attrs()
			if a.Xdp != nil && a.Xdp.Attached {
				all = append(all, "XDP on "+a.Name)
			}
			for _, where := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				result, err := link.QueryPrograms(link.QueryOptions{Target: a.Index, Attach: where})
				if err != nil {
					return fmt.Errorf("query %s: %w", a.Name, err)
				}
				for range result.Programs {
					all = append(all, fmt.Sprintf("%v on %s", where, a.Name))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// configured is a lab with good configuration files.
type configured struct {
	*lab.Lab
	keys, edge, server string // edge and server are texts
}

func newConfigured(t *testing.T, options lab.Options) configured {
	t.Helper()
	l := newLab(t, options)
	keys := keysOf(t, l)
	return configured{l, keys, l.EdgeConfig(keys), l.ServerConfig(keys)}
}

// edit replaces text that must be there, and returns the line where it is.
func edit(t *testing.T, text, old, replacement string) (edited string, line int) {
	t.Helper()
	before, _, found := strings.Cut(text, old)
	if !found {
		t.Fatalf("%q is not in %q", old, text)
	}
	return strings.Replace(text, old, replacement, 1), 1 + strings.Count(before, "\n")
}

func TestWrongEdgeConfigurationIsRefusedWithItsLine(t *testing.T) {
	c := newConfigured(t, lab.Options{})
	for _, test := range []struct {
		name, old, replacement string
		further                int // lines below the replaced text
		message                string
	}{
		{"unknown key", "learn: 0s", "lern: 0s", 0, `unknown field "lern"`},
		{"unknown key of a service", "    mode: always", "    moed: always", 0, `unknown field "moed"`},
		{"no YAML", "learn: 0s", "learn: [0s", 1, ""},
		{"missing interface", "inside: [in0]", "inside: [in7]", 0, `no interface "in7"`},
		{"interface on both sides", "inside: [in0]", "inside: [out0]", 0, "both inside and outside"},
		{"unknown way of forwarding", "forward: route", "forward: fly", 0, `"fly": bridge or route`},
		{"bridge of three ports", "forward: route", "forward: bridge", 0, "one outside and one inside port"},
		{"port 0", "[80]", "[0]", 0, `"0" is no port`},
		{"port beyond 65535", "[80]", "[65536]", 0, `"65536" is no port`},
		{"reversed range of ports", "[80]", "[90-80]", 0, `"90-80" is no port`},
		{"host bits", c.Server.IPv4.String() + "/32", "10.99.3.2/24", 0, "did you mean 10.99.3.0/24?"},
		{"no prefix", c.Server.IPv4.String() + "/32", "10.99.3", 0, `"10.99.3" is no address or prefix`},
		{"always without return traffic", "learn: 0s", "return_traffic: false", 5, "always needs return traffic"},
		{"overlapping services", "    mode: always", "    mode: always\n  - name: other\n    prefixes: [10.0.0.0/8]\n    ports: [1-100]", 2,
			`service "other" overlaps service "web" at 10.99.3.2/32 port 80`},
		{"second service of a name", "    mode: always", "    mode: always\n  - name: web\n    prefixes: [10.98.0.0/16]\n    ports: [1]", 1, `a second service "web"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, line := edit(t, c.edge, test.old, test.replacement)
			file := fileOf(t, c.Lab, "edge.yaml", text)
			refuse(t, c.Edge.Namespace, nil, "edge", "-c", file, "--pin", c.PinDir("edge")).
				is(t, 2, fmt.Sprintf("%s:%d: ", file, line+test.further), test.message)
			nothingAttached(t, c.Lab)
		})
	}
}

func TestWrongServerConfigurationIsRefusedWithItsLine(t *testing.T) {
	c := newConfigured(t, lab.Options{})
	for _, test := range []struct {
		name, old, replacement, message string
	}{
		{"unknown key", "interfaces:", "interface:", `unknown field "interface"`},
		{"missing interface", "[eth0]", "[eth0, eth7]", `no interface "eth7"`},
		{"interface twice", "[eth0]", "[eth0, eth0]", "interface eth0 is listed twice"},
		{"host bits", c.Server.IPv6.String() + "/128", "fd99:0:0:3::2/64", "did you mean fd99:0:0:3::/64?"},
		{"bad port", "[80]", "[http]", `"http" is no port`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, line := edit(t, c.server, test.old, test.replacement)
			file := fileOf(t, c.Lab, "server.yaml", text)
			refuse(t, c.Server.Namespace, nil, "server", "-c", file, "--pin", c.PinDir("server")).
				is(t, 2, fmt.Sprintf("%s:%d: ", file, line), test.message)
			nothingAttached(t, c.Lab)
		})
	}
}

func TestWrongKeysAreRefused(t *testing.T) {
	c := newConfigured(t, lab.Options{})
	key, err := os.ReadFile(c.keys)
	if err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(c.Dir(), "open")
	if err := errors.Join(os.WriteFile(open, key, 0o600), os.Chmod(open, 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, old, replacement string
		begin, message         string // no begin: the line that is edited
	}{
		{"readable by all", c.keys, open, open + ": ", "chmod 600"},
		{"missing file", c.keys, c.keys + "7", c.keys + "7: ", "no such file"},
		{"missing domain", "    mode: always", "    domain: bank", "", `no key domain "bank"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, line := edit(t, c.edge, test.old, test.replacement)
			file := fileOf(t, c.Lab, "edge.yaml", text)
			if test.begin == "" {
				test.begin = fmt.Sprintf("%s:%d: ", file, line)
			}
			refused := refuse(t, c.Edge.Namespace, nil, "edge", "-c", file, "--pin", c.PinDir("edge"))
			refused.is(t, 2, test.begin, test.message)
			if bytes.Contains([]byte(refused.text), bytes.TrimSpace(key)) {
				t.Error("it prints the key")
			}
			nothingAttached(t, c.Lab)
		})
	}
}

func TestWrongCommandLineIsRefused(t *testing.T) {
	c := newConfigured(t, lab.Options{})
	for _, test := range []struct {
		name  string
		args  []string
		begin string
	}{
		{"edge without a file", []string{"edge"}, "edge: give -c FILE"},
		{"server without a file", []string{"server"}, "server: give -c FILE"},
		{"missing file", []string{"edge", "-c", "/nowhere.yaml"}, "/nowhere.yaml: no such file"},
		{"host without an interface", []string{"host", "--ports", "80"}, "host: give IFACE"},
		{"host on a missing interface", []string{"host", "eth7", "--ports", "80"}, `no interface "eth7"`},
		{"host without ports", []string{"host", "eth0"}, "host: give --ports"},
		{"host with a bad port", []string{"host", "eth0", "--ports", "0"}, `--ports: "0" is no port`},
		{"host with a port twice", []string{"host", "eth0", "--ports", "80,1-100"}, "--ports: a port is listed twice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			refuse(t, c.Server.Namespace, nil, append(test.args, "--pin", c.PinDir(test.args[0]))...).is(t, 2, test.begin)
			nothingAttached(t, c.Lab)
		})
	}
}

// publicProgram is a copy that everybody may execute, in a directory that everybody
// may enter.
func publicProgram(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "smartcookie-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "smartcookie")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// nobody is who has no rights.
func nobody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

func TestAgentsNeedRoot(t *testing.T) {
	c := newConfigured(t, lab.Options{})
	edge := fileOf(t, c.Lab, "edge.yaml", c.edge)
	path := publicProgram(t)
	for _, args := range [][]string{{"edge", "-c", edge}, {"server", "-c", edge}, {"host", "eth0", "--ports", "80"}, {"detach"}} {
		t.Run(args[0], func(t *testing.T) {
			refuseProgram(t, c.Server.Namespace, path, nobody(), args...).is(t, 1, "this needs root")
			nothingAttached(t, c.Lab)
		})
	}
}

func TestStrippedTagsAreRefusedOnABridge(t *testing.T) {
	need(t, "ethtool")
	c := newConfigured(t, lab.Options{Topology: lab.Bridge})
	file := fileOf(t, c.Lab, "edge.yaml", c.edge)
	for line, port := range map[int]string{2: c.Edge.Outside[0], 3: c.Edge.Inside} {
		runIn(t, c.Edge.Namespace, "ethtool", "-K", port, "rxvlan", "on")
		refuse(t, c.Edge.Namespace, nil, "edge", "-c", file, "--pin", c.PinDir("edge")).
			is(t, 2, fmt.Sprintf("%s:%d: interface %s: VLAN tags are stripped", file, line, port), "mend it: ethtool -K "+port+" rxvlan off")
		nothingAttached(t, c.Lab)
		runIn(t, c.Edge.Namespace, "ethtool", "-K", port, "rxvlan", "off") // the mend that it names
	}
	startAgent(t, c.Lab, c.Edge.Namespace, "edge", "-c", file)
}

func TestDeviceThatCannotTransmitFromXDPIsRefused(t *testing.T) {
	need(t, "ethtool")
	c := newConfigured(t, lab.Options{})
	deaf := func(h lab.Host) { // neither a program nor GRO at the other end
		t.Helper()
		if err := h.Bare(h.Port); err != nil {
			t.Fatal(err)
		}
		runIn(t, h.Namespace, "ethtool", "-K", h.Port, "gro", "off")
	}
	t.Run("edge", func(t *testing.T) {
		deaf(c.Client)
		file := fileOf(t, c.Lab, "edge.yaml", c.edge)
		refuse(t, c.Edge.Namespace, nil, "edge", "-c", file, "--pin", c.PinDir("edge")).
			is(t, 1, "try XDP_TX on out0: XDP cannot transmit", "on a veth")
		nothingAttached(t, c.Lab)
	})
	t.Run("host", func(t *testing.T) {
		startNginx(t, c.Lab) // without a listener there would be a warning
		runIn(t, c.Edge.Namespace, "ethtool", "-K", c.Edge.Inside, "gro", "off")
		refuse(t, c.Server.Namespace, nil, "host", "eth0", "--ports", "80", "--pin", c.PinDir("host")).
			is(t, 1, "try XDP_TX on eth0: XDP cannot transmit", "on a veth")
		nothingAttached(t, c.Lab)
	})
}
