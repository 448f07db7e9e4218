package cli

import "testing"

func TestKernelCookiesRefuseWhatMakesNoSense(t *testing.T) {
	c := newConsole()
	for _, test := range []struct {
		part string
		args []string
	}{
		{`--cookies: "both" is none of own, kernel`, []string{"--cookies", "both"}},
		{"--flood-syns: only with --cookies kernel", []string{"--flood-syns", "10"}},
		{"--flood-within: only with --cookies kernel", []string{"--cookies", "own", "--flood-within", "1s"}},
		{"--calm: only with --cookies kernel", []string{"--calm", "1s"}},
		{"--setup: with --cookies kernel", []string{"--cookies", "kernel", "--setup", "auto"}},
		{"--detect: with --cookies kernel", []string{"--cookies", "kernel", "--detect", "syns=5"}},
		{"--flood-syns: -1 is not between 0 and 100000000", []string{"--cookies", "kernel", "--flood-syns", "-1"}},
		{"--flood-within: 1ms is not between 10ms and 1m0s", []string{"--cookies", "kernel", "--flood-within", "1ms"}},
		{"--calm: 100ms is not between --flood-within (250ms) and 24h0m0s", []string{"--cookies", "kernel", "--calm", "100ms"}},
		{"--ports: 2001 ports, at most 1024", []string{"--cookies", "kernel", "--ports", "1000-3000"}},
	} {
		c.wantError(t, exitUsage, test.part, append([]string{"host", "lo", "--ports", "80"}, test.args...)...)
	}
}
