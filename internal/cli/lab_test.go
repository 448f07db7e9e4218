package cli

import (
	"os"
	"testing"

	"smartcookie/internal/lab"
)

func TestLabRefusesWhatMakesNoSense(t *testing.T) {
	c := newConsole()
	for _, u := range []struct {
		part string
		args []string
	}{
		{`"--flood" flag: want max, 0 or packets per second`, []string{"lab", "--flood", "fast"}},
		{"there are auth-cookie, auth-full, auth-rst, host, host-kernel, kernel, none, proxy, split", []string{"lab", "--defence", "hope"}},
		{"--duration: want a time above 0", []string{"lab", "--duration", "0s"}},
		{`unknown command "upp"`, []string{"lab", "upp"}},
		{"lab exec: give client, attacker, edge or server, and a command", []string{"lab", "exec", "client"}},
		{"lab exec: give client", []string{"lab", "exec"}},
		{"there are syn, ack, rst, fin, synack", []string{"lab", "flood", "--kind", "udp"}},
		{"lab exec: give client", []string{"lab", "exec", "client", "--"}},
		{"--loss: want 0 to 100 percent", []string{"lab", "--loss", "101"}},
		{"--inside-reorder: want 0 to 100 percent", []string{"lab", "up", "--inside-reorder", "-1%"}},
		{`"--duplicate" flag: want a share such as 5`, []string{"lab", "--duplicate", "some"}},
		{"a lab has 1 or 2 edges, not 3", []string{"lab", "--edges", "3"}},
		{"only a routed lab has two edges", []string{"lab", "--bridge", "--edges", "2"}},
		{"--kill-after needs --edges 2", []string{"lab", "--kill-after", "1s"}},
		{"--move-after: want a time above 0", []string{"lab", "--edges", "2", "--move-after", "-1s"}},
		{`--server: "magic" is none of auto, native, translate`, []string{"lab", "--server", "magic"}},
		{`--mode: "sometimes" is none of off, monitor, auto, always`, []string{"lab", "--mode", "sometimes"}},
		{"--delay: want 0 to 10s", []string{"lab", "--delay", "1h"}},
		{`"--inside-jitter" flag: want milliseconds`, []string{"lab", "--inside-jitter", "short"}},
	} {
		c.wantError(t, exitUsage, u.part, u.args...)
	}
}

func TestLabSaysThatItNeedsRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("this test needs to be another user than root")
	}
	c := newConsole()
	for _, args := range [][]string{{"lab"}, {"lab", "up"}, {"lab", "down"}, {"lab", "exec", "client", "--", "true"}} {
		c.wantError(t, exitError, lab.ErrNotRoot.Error(), args...)
	}
}

func TestLabRefusesAnUnknownChild(t *testing.T) {
	newConsole().wantError(t, exitError, "no such child of a lab", "lab", "child", "nobody")
}
