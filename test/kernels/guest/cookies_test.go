package guest

import (
	"context"
	"testing"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// The kernel's own cookies, given in XDP, are taken by the kernel that gave them:
// the programs need nothing that is younger than the oldest one here.
func TestOldKernelGivesItsOwnCookies(t *testing.T) { ownCookiesServe(t) }

// TestNativeKernelGivesItsOwnCookies is the same of a newer one.
func TestNativeKernelGivesItsOwnCookies(t *testing.T) { ownCookiesServe(t) }

func ownCookiesServe(t *testing.T) {
	t.Helper()
	l := newLab(t, lab.Route)
	serveEcho(t, l, "")
	for name, value := range map[string]string{"net.ipv4.tcp_syncookies": "2", "net.ipv4.tcp_timestamps": "2"} {
		if err := l.Server.Sysctl(name, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Edge.Pass(l.Edge.Inside); err != nil {
		t.Fatal(err)
	}
	pins := l.PinDir("host")
	host, err := l.Start(t.Context(), l.Server.Namespace, "host",
		"host", l.Server.Port, "--ports", "80", "--cookies", "kernel", "--mode", "always", "--pin", pins)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		t.Logf("host: %s", host.Log())
		out, err := l.Server.Command(context.Background(), program, "detach", "--pin", pins).CombinedOutput()
		if err != nil {
			t.Errorf("detach: %v: %s", err, out)
		}
	})
	logVerifier(t)
	mustTalk(t, l)
	verdicts, err := dataplane.Verdicts(pins)
	if err != nil {
		t.Fatal(err)
	}
	if verdicts["answer_syn"] < 2*connections || verdicts["pass_kernel_cookie"] < 2*connections || verdicts["drop_bad_cookie"] != 0 {
		t.Errorf("host: %v", verdicts)
	}
}
