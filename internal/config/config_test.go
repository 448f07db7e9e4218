package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/policy"
)

// Every test uses the loopback device: the one that is everywhere.
const (
	goodServer = `keys: /etc/smartcookie/keys
interfaces: [lo]
services:
  - name: web
    prefixes: [192.0.2.1, "2001:db8::/64"]
    ports: [80, 8000-8099]
  - name: ssh
    prefixes: [192.0.2.0/24]
    ports: [22]
    mode: "off"
    keys_end: pass
    domain: inner
    mss: 1400
    window: 1000
    options: [sack, ecn]
`
	goodEdge = `keys: k
outside: [lo]
inside: [second]
forward: route
services:
  - name: web
    prefixes: [192.0.2.1]
    ports: [80]
`
)

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// swap replaces one piece of a good file.
func swap(t *testing.T, text, old, replacement string) string {
	t.Helper()
	if strings.Count(text, old) != 1 {
		t.Fatalf("%q is there %d times", old, strings.Count(text, old))
	}
	return strings.Replace(text, old, replacement, 1)
}

// wantFault wants one line that names file, line and cause, and exit code 2.
func wantFault(t *testing.T, err error, line int, part string) {
	t.Helper()
	var fault *Error
	if !errors.As(err, &fault) {
		t.Fatalf("got %v, want an error with %q", err, part)
	}
	if fault.Line != line || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %q (line %d), want line %d and %q", err, fault.Line, line, part)
	}
	if fault.ExitCode() != 2 {
		t.Errorf("exit code %d", fault.ExitCode())
	}
}

func TestServerFileIsReadWithItsDefaults(t *testing.T) {
	c, err := ReadServer(write(t, goodServer))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Interfaces) != 1 || c.Interfaces[0].Name != "lo" || c.Recent != DefaultRecent || c.Strict {
		t.Errorf("%+v", c)
	}
	web, ssh := c.Services[0], c.Services[1]
	if web.Mode != policy.Always || web.KeysEnd != policy.Stop || web.Domain != "default" || web.Options != policy.AllOptions {
		t.Errorf("web: %+v", web)
	}
	if web.MSS4 != 1460 || web.MSS6 != 1440 || web.Window != 65535 || len(web.Prefixes) != 2 || web.Ports[1] != (policy.PortRange{Low: 8000, High: 8099}) {
		t.Errorf("web: %+v", web)
	}
	if ssh.Mode != policy.Off || ssh.KeysEnd != policy.Pass || ssh.Domain != "inner" || ssh.Options != policy.SACK|policy.ECN {
		t.Errorf("ssh: %+v", ssh)
	}
	if ssh.MSS4 != 1400 || ssh.MSS6 != 1380 || ssh.Window != 1000 {
		t.Errorf("ssh: %+v", ssh)
	}
	if len(c.Table.Prefixes) != 3 {
		t.Errorf("table: %+v", c.Table)
	}
}

func TestFaultOfAServerFileIsNamedWithItsLine(t *testing.T) {
	for _, test := range []struct {
		old, replacement string
		line             int
		part             string
	}{
		{"keys: /etc/smartcookie/keys\n", "", 0, "keys is missing"},
		{"interfaces: [lo]", "interfaces: [lo, none0]", 2, `no interface "none0"`},
		{"interfaces: [lo]", "interfaces: [lo, lo]", 2, "interface lo is listed twice"},
		{"interfaces: [lo]", "interfaces: []", 2, "interfaces is missing"},
		{"interfaces: [lo]", "interface: [lo]", 2, `unknown field "interface"`},
		{"interfaces: [lo]", "interfaces: [lo]\nstrict: perhaps", 3, "bool"},
		{"interfaces: [lo]", "interfaces: [lo]\nrecent: 5", 3, "5 is not between 1024 and"},
		{"interfaces: [lo]", "interfaces: [lo]\nallowed: [10.0.0.1/8]", 3, "did you mean 10.0.0.0/8"},
		{"192.0.2.1, ", "192.0.2.300, ", 5, `"192.0.2.300" is no address or prefix`},
		{"192.0.2.1, ", `"::ffff:192.0.2.1", `, 5, "is no address or prefix"},
		{"8000-8099", "8099-8000", 6, `"8099-8000" is no port`},
		{"[22]", "[0]", 9, `"0" is no port`},
		{"[22]", "[65536]", 9, `"65536" is no port`},
		{"[22]", "[]", 9, `service "ssh" has no ports`},
		{"[192.0.2.0/24]", "[]", 8, `service "ssh" has no prefixes`},
		{"name: ssh", "name: web", 7, `a second service "web"`},
		{"[22]", "[80]", 8, `service "ssh" overlaps service "web" at 192.0.2.1/32 port 80`},
		{`mode: "off"`, "mode: starting", 10, `unknown mode "starting"`},
		{`mode: "off"`, "detect: {syns: 0}", 10, "0 is not between 1 and"},
		{`mode: "off"`, "detect: {unfinished: 101}", 10, "101 is not between 0 and 100"},
		{`mode: "off"`, "detect: {half_open: -1}", 10, "-1 is not between 0 and"},
		{`mode: "off"`, "detect: {calm: 1ms}", 10, "1ms is not between 1s and"},
		{`mode: "off"`, "detect: {calm: soon}", 10, `"soon" is no duration`},
		{`mode: "off"`, "detect: {rate: 1}", 10, `unknown field "rate"`},
		{"name: ssh", "name: " + strings.Repeat("s", 64), 7, "a name of 64 bytes: at most 63"},
		{"keys_end: pass", "keys_end: never", 11, `unknown choice "never"`},
		{"mss: 1400", "mss: 100", 13, "100 is not between 536 and"},
		{"window: 1000", "window: 0", 14, "0 is not between 1 and 65535"},
		{"[sack, ecn]", "[sack, md5]", 15, `unknown option "md5"`},
		{"[sack, ecn]", "[sack, sack]", 15, "an option is listed twice"},
		{"    domain: inner\n", "    domain: inner\n    colour: red\n", 13, `unknown field "colour"`},
		{"mss: 1400", "mss: [", 13, ""},
	} {
		t.Run(test.replacement, func(t *testing.T) {
			_, err := ReadServer(write(t, swap(t, goodServer, test.old, test.replacement)))
			wantFault(t, err, test.line, test.part)
		})
	}
}

// The inside device is not there: what is wrong before it has to be found
// before it.
func TestFaultOfAnEdgeFileIsNamedWithItsLine(t *testing.T) {
	for _, test := range []struct {
		old, replacement string
		line             int
		part             string
	}{
		{"inside: [second]", "inside: [second]", 3, `no interface "second"`},
		{"inside: [second]", "inside: [lo]", 3, "interface lo is both inside and outside"},
		{"inside: [second]\nforward: route", "inside: [lo]\nforward: tunnel", 4, `unknown way of forwarding "tunnel"`},
		{"inside: [second]\nforward: route\n", "inside: [lo]\n", 0, "forward is missing"},
		{"inside: [second]\nforward: route", "inside: [lo]\nforward: route\nxdp: offload", 5, `unknown XDP mode "offload"`},
	} {
		t.Run(test.replacement, func(t *testing.T) {
			_, err := ReadEdge(write(t, swap(t, goodEdge, test.old, test.replacement)))
			wantFault(t, err, test.line, test.part)
		})
	}
}

// source of a file that is read part by part, without devices.
func edgeSource(t *testing.T, text string) (*source, *edgeFile) {
	t.Helper()
	var f edgeFile
	src, err := read(write(t, text), &f)
	if err != nil {
		t.Fatal(err)
	}
	return src, &f
}

func TestLearningLastsTwoGenerationsUnlessToldOtherwise(t *testing.T) {
	for _, test := range []struct {
		text              string
		generation, learn time.Duration
	}{
		{"", DefaultGeneration, 2 * DefaultGeneration},
		{"generation: 5s\n", 5 * time.Second, 10 * time.Second},
		{"generation: 5s\nlearn: 0s\n", 5 * time.Second, 0},
	} {
		src, f := edgeSource(t, goodEdge+test.text)
		var c Edge
		if err := c.readFilter(src, f); err != nil {
			t.Fatal(err)
		}
		if c.Generation != test.generation || c.Learn != test.learn {
			t.Errorf("%q: generation %s, learning %s", test.text, c.Generation, c.Learn)
		}
	}
}

func TestFilterOutOfBoundsIsRefused(t *testing.T) {
	for text, part := range map[string]string{
		"flows: 10":         "10 is not between 1000 and",
		"generation: 1s":    "1s is not between 5s and 1h0m0s",
		"generation: 2h":    "2h0m0s is not between",
		"generation: often": `"often" is no duration, such as 60s`,
		"learn: -1s":        "-1s is not between 0s and",
	} {
		src, f := edgeSource(t, goodEdge+text+"\n")
		wantFault(t, (&Edge{}).readFilter(src, f), 9, part)
	}
}

func TestAlwaysWithoutReturnTrafficIsRefused(t *testing.T) {
	src, f := edgeSource(t, goodEdge+"return_traffic: false\n")
	services, _, err := src.services(f.Services)
	if err != nil {
		t.Fatal(err)
	}
	c := &Edge{Services: services, Generation: DefaultGeneration}
	wantFault(t, c.checkReturn(src), 6, "mode always needs return traffic")
	c.Services[0].Mode = policy.Off
	if err := c.checkReturn(src); err != nil {
		t.Errorf("mode off: %v", err)
	}
	c.Services[0].Mode, c.ReturnTraffic = policy.Always, true
	if err := c.checkReturn(src); err != nil {
		t.Errorf("with return traffic: %v", err)
	}
}

func TestFileThatCannotBeReadIsNamed(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	for _, readFile := range []func(string) error{
		func(name string) error { _, err := ReadServer(name); return err },
		func(name string) error { _, err := ReadEdge(name); return err },
	} {
		err := readFile(missing)
		wantFault(t, err, 0, "no such file or directory")
		if strings.Count(err.Error(), missing) != 1 {
			t.Errorf("the file is not named once: %v", err)
		}
	}
}

func TestPrefixesAndPortsAreReadStrictly(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "192.0.2.0/24": "192.0.2.0/24", "2001:db8::1": "2001:db8::1/128", "::/0": "::/0",
	} {
		if got, err := ParsePrefix(text); err != nil || got.String() != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "lo", "192.0.2.1/33", "192.0.2.1/24", "fe80::1%lo", "::ffff:192.0.2.1/120"} {
		if got, err := ParsePrefix(text); err == nil {
			t.Errorf("%q is read as %s", text, got)
		}
	}
	for text, want := range map[string]policy.PortRange{
		"1": {Low: 1, High: 1}, "65535": {Low: 65535, High: 65535}, " 80-90 ": {Low: 80, High: 90}, "7-7": {Low: 7, High: 7},
	} {
		if got, err := ParsePorts(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-", "80-", "-80", "0-5", "9-8", "+1", "1-70000", "http"} {
		if got, err := ParsePorts(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

func FuzzServerFile(f *testing.F) {
	f.Add(goodServer)
	f.Add(goodEdge)
	f.Add("a: &a [*a]\n")
	f.Add("keys: 0\ninterfaces: !0\n0\n  -0") // the YAML library panics
	f.Fuzz(func(t *testing.T, text string) {
		_, err := ReadServer(write(t, text))
		var fault *Error
		if err != nil && (!errors.As(err, &fault) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q", err)
		}
	})
}
