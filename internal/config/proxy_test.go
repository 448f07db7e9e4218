package config

import (
	"strings"
	"testing"

	"smartcookie/internal/policy"
)

// proxyEdge reads an edge's file whose only service is proxied, with more lines of
// the service and of the file.
func proxyEdge(t *testing.T, service, file string) (*Edge, error) {
	t.Helper()
	src, f := edgeSource(t, goodEdge+"    strategy: proxy\n"+service+file)
	c := &Edge{ReturnTraffic: f.ReturnTraffic == nil || *f.ReturnTraffic}
	var err error
	if c.Services, c.Table, err = src.services(f.Services); err != nil {
		t.Fatal(err)
	}
	return c, c.readProxy(src, f)
}

func TestProxiedServiceIsTranslatedAndClosesTheWindow(t *testing.T) {
	c, err := proxyEdge(t, "    window: 1000\n    setup: native\n", "proxied: 7\n")
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Services[0]; s.Setup != policy.Tenant || s.Window != 0 || c.Proxied != 7 {
		t.Errorf("%+v, %d connections", s, c.Proxied)
	}
}

func TestProxyRefusesWhatItCannotDo(t *testing.T) {
	for _, c := range []struct {
		service, file string
		line          int
		part          string
	}{
		{"", "return_traffic: false\n", 9, "needs return traffic"},
		{"    mode: \"off\"\n", "return_traffic: false\n", 9, "needs return traffic"},
		{"    admission: on-confirm\n", "", 9, "neither admission on-confirm nor probes"},
		{"    probes: 10\n", "", 9, "neither admission on-confirm nor probes"},
		{"", "proxied: 0\n", 10, "0 is not between"},
	} {
		_, err := proxyEdge(t, c.service, c.file)
		wantFault(t, err, c.line, c.part)
	}
}

// A file that both halves read may say of another edge's service that it is a
// tenant's: that is nothing to this one.
func TestEdgeTranslatesNobodysTenants(t *testing.T) {
	src, f := edgeSource(t, strings.Replace(goodEdge, "    ports: [80]\n", "    ports: [80]\n    setup: tenant\n", 1))
	c := &Edge{ReturnTraffic: true}
	var err error
	if c.Services, c.Table, err = src.services(f.Services); err != nil {
		t.Fatal(err)
	}
	if err := c.readProxy(src, f); err != nil || c.Services[0].Setup != policy.Auto {
		t.Errorf("%v, set up by %s", err, c.Services[0].Setup)
	}
}
