package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// floodsOf reads the part of a file that is about floods, without devices but
// the loopback one.
func floodsOf(t *testing.T, text string) (*Edge, error) {
	t.Helper()
	src, f := edgeSource(t, text)
	c := &Edge{}
	var err error
	if c.Outside, err = src.interfaces("$.outside", f.Outside, true); err != nil {
		t.Fatal(err)
	}
	if c.Services, c.Table, err = src.services(f.Services); err != nil {
		return nil, err
	}
	return c, c.readFloods(src, &f.Floods)
}

func listFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestFloodsAreReadAndOffByDefault(t *testing.T) {
	c, err := floodsOf(t, goodEdge)
	if err != nil {
		t.Fatal(err)
	}
	if f := c.Floods; f.DropOther || f.Answers != 0 || len(f.Deny)+len(f.Allow)+f.Places() != 0 {
		t.Errorf("by default: %+v", f)
	}
	if s := c.Services[0]; s.MinTTL != 0 || s.PacketsPerFlow != 0 {
		t.Errorf("by default: %+v", s)
	}
	file := listFile(t, "# bad ones\n10.0.0.0/8\n\n2001:db8::1 # one address\n")
	c, err = floodsOf(t, goodEdge+`    min_ttl: 5
    packets_per_flow: 20000
other_tcp: drop
answers_per_network: 5000
network4: 20
deny: [192.0.2.9]
deny_file: `+file+`
allow: ["2001:db8::/32"]
inside_only: [203.0.113.0/24]
bypass_without_protection:
  - sources: [198.51.100.0/24, "2001:db8:7::/48"]
    interface: lo
    syns: 50
`)
	if err != nil {
		t.Fatal(err)
	}
	f := c.Floods
	if !f.DropOther || f.Answers != 5000 || f.Network4 != 20 || f.Network6 != 64 || f.Places() != 3 {
		t.Errorf("%+v", f)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("192.0.2.9/32"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::1/128")}; !slices.Equal(f.Deny, want) {
		t.Errorf("deny %v, want %v", f.Deny, want)
	}
	if len(f.Bypass) != 1 || f.Bypass[0].SYNs != 50 || f.Bypass[0].Port != 1 || len(f.Bypass[0].Sources) != 2 {
		t.Errorf("%+v", f.Bypass)
	}
	if s := c.Services[0]; s.MinTTL != 5 || s.PacketsPerFlow != 20000 {
		t.Errorf("%+v", s)
	}
}

func TestFaultsInFloodsAreNamedWithTheirLine(t *testing.T) {
	bypass := "bypass_without_protection:\n  - sources: [198.51.100.0/24]\n    interface: lo\n    syns: 50\n"
	const end = 8 // lines of goodEdge
	for _, test := range []struct {
		more string
		line int
		part string
	}{
		{"    min_ttl: 65\n", end + 1, "65 is not between 0 and 64"},
		{"    packets_per_flow: -1\n", end + 1, "-1 is not between 0 and 1000000"},
		{"other_tcp: block\n", end + 1, `unknown choice "block": forward or drop`},
		{"answers_per_network: -5\n", end + 1, "-5 is not between 0 and 100000000"},
		{"network4: 33\n", end + 1, "33 is not between 8 and 32"},
		{"network6: 65\n", end + 1, "65 is not between 16 and 64"},
		{"network4: 20\n", end + 1, "network4 is of a limit: give answers_per_network"},
		{"answers_per_network: 0\nnetwork6: 48\n", end + 2, "network6 is of a limit: give answers_per_network"},
		{"deny: [192.0.2.1/24]\n", end + 1, "did you mean 192.0.2.0/24?"},
		{"allow:\n  - 192.0.2.1\n  - nobody\n", end + 3, `"nobody" is no address or prefix`},
		{"deny_file: /nowhere\n", end + 1, "/nowhere: no such file or directory"},
		{"inside_only: [10.0.0.0/8, 10.0.0.0/8]\n", end + 1, "10.0.0.0/8 has a place already"},
		{swap(t, bypass, "    syns: 50\n", ""), end + 2, "a bypass without syns"},
		{swap(t, bypass, "50", "0"), end + 4, "0 is not between 1 and 100000"},
		{swap(t, bypass, "interface: lo", "interface: eth7"), end + 3, `interface "eth7" is none of outside`},
		{swap(t, bypass, "[198.51.100.0/24]", "[]"), end + 2, "a bypass without sources"},
		{bypass + "inside_only: [198.51.100.0/24]\n", end + 2, "198.51.100.0/24 has a place already"},
	} {
		t.Run(test.more, func(t *testing.T) {
			_, err := floodsOf(t, goodEdge+test.more)
			wantFault(t, err, test.line, test.part)
		})
	}
}

func TestFaultOfAListIsNamedWithItsOwnFileAndLine(t *testing.T) {
	file := listFile(t, "10.0.0.0/8\n\n10.0.0.1/8\n")
	_, err := floodsOf(t, goodEdge+"deny_file: "+file+"\n")
	var fault *Error
	if !errors.As(err, &fault) || fault.File != file || fault.Line != 3 || fault.ExitCode() != 2 {
		t.Errorf("%v", err)
	}
}
