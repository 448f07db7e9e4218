package config

import (
	"strings"
	"testing"
	"time"

	"smartcookie/internal/policy"
)

// goodAuth is an edge's file with a service that challenges, up to its keys.
func goodAuth(keys ...string) string {
	text := "keys: k\noutside: [lo]\ninside: [second]\nforward: route\nservices:\n" +
		"  - name: web\n    prefixes: [192.0.2.1]\n    ports: [80]\n"
	for _, key := range keys {
		text += "    " + key + "\n"
	}
	return text
}

func readServices(t *testing.T, text string) ([]policy.Service, error) {
	t.Helper()
	var f edgeFile
	src, err := read(write(t, text), &f)
	if err != nil {
		return nil, err
	}
	services, _, err := src.services(f.Services)
	return services, err
}

func TestServicesThatChallengeHaveTheirDefaults(t *testing.T) {
	for name, strategy := range map[string]policy.Strategy{
		"auth-cookie": policy.AuthCookie, "auth-full": policy.AuthFull, "auth-rst": policy.AuthRST,
	} {
		services, err := readServices(t, goodAuth("strategy: "+name))
		if err != nil {
			t.Fatal(err)
		}
		want := policy.Auth{Prefix4: 32, Prefix6: 64, Time: 10 * time.Minute, SYNs: 100, Unfinished: 200}
		if s := services[0]; s.Strategy != strategy || s.Auth != want {
			t.Errorf("%s: %d, %+v", name, s.Strategy, s.Auth)
		}
	}
	services, err := readServices(t, goodAuth("strategy: auth-rst", "auth_time: 1m30s", "auth_syns: 7",
		"auth_unfinished: 9", "auth_prefix4: 24", "auth_prefix6: 48"))
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Auth{Prefix4: 24, Prefix6: 48, Time: 90 * time.Second, SYNs: 7, Unfinished: 9}
	if got := services[0].Auth; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestFaultOfAServiceThatChallengesIsNamedWithItsLine(t *testing.T) {
	for _, c := range []struct {
		keys []string
		part string // of the error in the last of them
	}{
		{[]string{"strategy: auth"}, `unknown strategy "auth": split, `},
		{[]string{"strategy: auth-rst", "auth_time: 1500ms"}, "1.5s is no whole number of seconds"},
		{[]string{"strategy: auth-rst", "auth_time: 0s"}, "0s is not between 1s and 24h0m0s"},
		{[]string{"strategy: auth-full", "auth_syns: 0"}, "0 is not between 1 and 1000000"},
		{[]string{"strategy: auth-full", "auth_unfinished: 0"}, "0 is not between 1 and 1000000"},
		{[]string{"strategy: auth-cookie", "auth_prefix4: 33"}, "33 is not between 16 and 32"},
		{[]string{"strategy: auth-cookie", "auth_prefix6: 129"}, "129 is not between 32 and 128"},
		{[]string{"strategy: auth-cookie", "admission: on-confirm"}, "on-confirm is of the strategy split"},
		{[]string{"strategy: auth-cookie", "probes: 1"}, "probes are of the strategy split"},
		{[]string{"strategy: split", "auth_time: 1m"}, "auth_time is of the strategies auth-cookie, auth-full and auth-rst"},
		{[]string{"auth_prefix4: 24", "auth_prefix6: 64", "auth_unfinished: 2", "auth_syns: 7", "auth_time: 1m"}, "auth_time is of the strategies"},
		{[]string{"auth_prefix6: 64"}, "auth_prefix6 is of the strategies"},
	} {
		_, err := readServices(t, goodAuth(c.keys...))
		wantFault(t, err, 8+len(c.keys), c.part)
	}
}

func TestWhitelistIsBounded(t *testing.T) {
	for text, part := range map[string]string{"1023": "1023 is not between 1024 and 16777216", "1024": "", "16777217": "is not between"} {
		var f edgeFile
		src, err := read(write(t, "whitelist: "+text+"\n"+goodAuth()), &f)
		if err != nil {
			t.Fatal(err)
		}
		var c Edge
		if err := c.readWhitelist(src, &f); part == "" && err != nil {
			t.Error(err)
		} else if part != "" && (err == nil || !strings.Contains(err.Error(), part)) {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
}
