package config

import (
	"fmt"
	"net/netip"
	"testing"

	"smartcookie/internal/policy"
)

// admitting reads an edge's services with more lines in the last of them.
func admitting(t *testing.T, lines string) (*Edge, *source, error) {
	t.Helper()
	src, f := edgeSource(t, goodEdge+lines)
	services, _, err := src.services(f.Services)
	return &Edge{Services: services}, src, err
}

func TestAdmissionAndProbesAreRead(t *testing.T) {
	for _, test := range []struct {
		lines     string
		admission policy.Admission
		probes    int
		mss4      uint16
		mss6      uint16
	}{
		{"", policy.OnCookie, 0, 1460, 1440},
		{"    admission: on-cookie\n", policy.OnCookie, 0, 1460, 1440},
		{"    probes: 10000\n", policy.OnCookie, 10000, 1460, 1440},
		{"    admission: on-confirm\n    probes: 1\n", policy.OnConfirm, 1, 1312, 1292},
		{"    admission: on-confirm\n    mss: 1300\n", policy.OnConfirm, 0, 1300, 1280},
		{"    mss: 9000\n    admission: on-confirm\n", policy.OnConfirm, 0, 1312, 1292},
	} {
		c, _, err := admitting(t, test.lines)
		if err != nil {
			t.Fatal(err)
		}
		s := c.Services[0]
		if s.Admission != test.admission || s.Probes != test.probes || s.MSS4 != test.mss4 || s.MSS6 != test.mss6 {
			t.Errorf("%q: admission %d, %d probes, MSS %d and %d", test.lines, s.Admission, s.Probes, s.MSS4, s.MSS6)
		}
	}
}

func TestFaultOfAdmissionIsNamedWithItsLine(t *testing.T) {
	for lines, part := range map[string]string{
		"    admission: always\n": `unknown choice "always": on-cookie or on-confirm`,
		"    probes: 10001\n":     "10001 is not between 0 and 10000",
		"    probes: -1\n":        "-1 is not between 0 and 10000",
	} {
		_, _, err := admitting(t, lines)
		wantFault(t, err, 9, part)
	}
}

func TestAdmissionOnConfirmNeedsAgentsForAllPrefixes(t *testing.T) {
	for key, line := range map[string]string{"admission": "    admission: on-confirm\n", "probes": "    probes: 5\n"} {
		c, src, err := admitting(t, line)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`service "web": %s needs agents (control) that cover all of its prefixes`, key)
		wantFault(t, c.checkRelays(src), 9, want)
		c.Control = &Control{Agents: []Agent{{ID: 1, Protects: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}
		if err := c.checkRelays(src); err != nil {
			t.Errorf("%s, covered: %v", key, err)
		}
		c.Services[0].Prefixes = append(c.Services[0].Prefixes, netip.MustParsePrefix("192.0.3.0/24"))
		wantFault(t, c.checkRelays(src), 9, want)
	}
}
