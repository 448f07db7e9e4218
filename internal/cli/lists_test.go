package cli

import "testing"

func TestWrongPrefixesAreRefusedBeforeAnythingIsOpened(t *testing.T) {
	c := newConsole()
	for _, u := range []struct {
		part string
		args []string
	}{
		{"deny add: give PREFIX", []string{"deny", "add"}},
		{"allow del: give PREFIX", []string{"allow", "del"}},
		{`"nobody" is no address or prefix`, []string{"deny", "add", "nobody"}},
		{"10.0.0.1/8 has bits beyond its length: did you mean 10.0.0.0/8?", []string{"allow", "add", "192.0.2.1", "10.0.0.1/8"}},
		{`"::ffff:192.0.2.1" is no address or prefix`, []string{"deny", "del", "::ffff:192.0.2.1"}},
		{"--for: 0s is no time to come", []string{"deny", "add", "192.0.2.1", "--for", "0s"}},
		{`invalid argument "soon" for "--for"`, []string{"deny", "add", "192.0.2.1", "--for", "soon"}},
		{`unknown output "xml": text or json`, []string{"deny", "list", "-o", "xml"}},
		{`unknown command "x" for "smartcookie deny list"`, []string{"deny", "list", "x"}},
		{`unknown command "drop" for smartcookie deny`, []string{"deny", "drop"}},
	} {
		c.wantError(t, exitUsage, u.part, u.args...)
	}
}

func TestListsOfNoAgentAreAnError(t *testing.T) {
	c := newConsole()
	for _, args := range [][]string{{"deny", "list"}, {"allow", "add", "192.0.2.1"}, {"deny", "del", "192.0.2.1"}} {
		if code := c.run(append(args, "--pin", t.TempDir())...); code != exitError {
			t.Errorf("%v: exit code %d, %q", args, code, c.stderr.String())
		}
	}
}
