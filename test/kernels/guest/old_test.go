package guest

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/keys"
	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

// Before Linux 6.9 the kernel adopts no cookie, before 6.6 there is no tcx: the
// server's agent translates, in filters of clsact.
func TestOldKernelServesBothFamiliesByTranslation(t *testing.T) { translationServes(t, "auto") }

// A newer kernel translates if told to.
func TestTranslationServesBothFamilies(t *testing.T) { translationServes(t, "translate") }

func translationServes(t *testing.T, setup string) {
	t.Helper()
	l := newLab(t, lab.Route)
	serveEcho(t, l, "")
	path, err := l.Keys()
	if err != nil {
		t.Fatal(err)
	}
	answerSYNs(t, l, path)
	file, err := l.WriteFile("server.yaml", strings.Replace(l.ServerConfig(path), "setup: auto", "setup: "+setup, 1)+"strict: true\n")
	if err != nil {
		t.Fatal(err)
	}
	pins := l.PinDir("server")
	server, err := l.Start(t.Context(), l.Server.Namespace, "server", "server", "-c", file, "--pin", pins)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		t.Logf("server: %s", server.Log())
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
	// More, if a guest without acceleration is too slow for a client's patience.
	if verdicts["setup_translated"] < 2*connections || verdicts["setup"] != 0 || verdicts["pass_translated"] == 0 || verdicts["drop_bad_cookie"] != 0 {
		t.Errorf("server: %v", verdicts)
	}
}

// answerSYNs is an edge by the reference model, for the programs of the real one
// are too much for an old verifier. SYNs go on to the server all the same, whose
// agent is strict and drops them.
func answerSYNs(t *testing.T, l *lab.Lab, path string) {
	t.Helper()
	file, err := keys.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	tap := openTap(t, l.Edge.Namespace, l.Edge.Outside[0])
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			frame := tap.receive()
			s := wire.Read(frame)
			if s.Kind != wire.KindTCP || s.Flags&(wire.SYN|wire.ACK) != wire.SYN || s.ToPort != lab.HTTPPort {
				continue
			}
			now := time.Now()
			slot, ok := file.EpochKey("default", file.Epoch(now))
			if !ok {
				continue
			}
			edge := wire.Answerer{Slot: slot, Offer: cookie.OfferAll, MSS4: 1460, MSS6: 1440, Window: 65535}
			_, _ = unix.Write(tap.fd, edge.Answer(frame, s, uint64(now.UnixNano()))) // lost: the client asks again
		}
	}()
	t.Cleanup(func() { close(stop); <-ended })
}
