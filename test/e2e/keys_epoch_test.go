package e2e

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// smartcookie runs a command line of the program in a namespace.
func smartcookie(t *testing.T, at *lab.Namespace, args ...string) string {
	t.Helper()
	out, err := at.Command(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("smartcookie %v: %v: %s", args, err, out)
	}
	return string(out)
}

// shortEpochs makes a key file with epochs of one second.
func shortEpochs(t *testing.T, l *lab.Lab) string {
	t.Helper()
	path := filepath.Join(l.Dir(), "short-epochs")
	smartcookie(t, l.Server.Namespace, "keys", "new", path, "--epoch", "1s")
	return path
}

// bothFamilies loads the server over IPv4 and IPv6 at once.
func bothFamilies(t *testing.T, l *lab.Lab, duration time.Duration) (finish func(what string)) {
	t.Helper()
	loads := []*lab.Load{
		startLoad(t, l, lab.LoadOptions{Duration: duration, Rate: 100}),
		startLoad(t, l, lab.LoadOptions{Duration: duration, Rate: 100, URL: l.URL(true)}),
	}
	return func(what string) {
		t.Helper()
		finishLoad(t, what+", IPv4", loads[0])
		finishLoad(t, what+", IPv6", loads[1])
	}
}

// hesitant loads the server with clients of which many answer in the epoch
// after that of their cookie.
func hesitant(t *testing.T, l *lab.Lab, duration time.Duration) (finish func()) {
	t.Helper()
	done := make(chan *outcome, 1)
	go func() {
		done <- requests(50, duration, func(i int) error {
			pause := hesitation * time.Duration(i%10) / 10
			return hesitantRequest(context.Background(), l.Client.Namespace, httpAddress(l, false), pause)
		})
	}()
	return func() {
		t.Helper()
		result := <-done
		if len(result.failures) > 0 {
			t.Errorf("hesitant clients: %v", result.failures[0])
		}
		t.Logf("hesitant clients: %s", result)
	}
}

func TestNoConnectionIsRefusedWithEpochsOfOneSecond(t *testing.T) {
	duration := 20 * time.Second
	if long() {
		duration = 5 * time.Minute
	}
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	split := newHalves(t, l, shortEpochs(t, l))
	split.start(t)
	finish := hesitant(t, l, duration)
	bothFamilies(t, l, duration)("epochs of one second")
	finish()
	split.noBadCookie(t)
}

func TestNoConnectionIsRefusedWhenKeyAndHashChangeUnderLoad(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	keyFile := shortEpochs(t, l)
	split := newHalves(t, l, keyFile)
	split.start(t)
	finish, finishHesitant := bothFamilies(t, l, 16*time.Second), hesitant(t, l, 16*time.Second)
	for i, change := range [][]string{{}, {"--hash", "halfsiphash-2-4", "--window-scale", "9"}} {
		smartcookie(t, l.Server.Namespace, append([]string{"keys", "rotate", keyFile, "--in", "5s"}, change...)...)
		for _, d := range split.list() {
			eventually(t, 4*time.Second, d.name+" takes the key file over", func() bool {
				return bytes.Count(d.process.Log(), []byte("key file taken over")) == i+1
			})
		}
	}
	eventually(t, 10*time.Second, "the new hash is in force", func() bool {
		return hashNow(t, split.edge, dataplane.EdgeAgent) == cookie.HalfSipHash &&
			hashNow(t, split.server, dataplane.ServerAgent) == cookie.HalfSipHash
	})
	finish("keys and hash change")
	finishHesitant()
	split.noBadCookie(t)
}

// hashNow reads the hash of the present epoch, of one second, from the kernel.
func hashNow(t *testing.T, d *daemon, agent string) cookie.Hash {
	t.Helper()
	slots := pinnedMap(t, d, agent, "keys")
	epoch := uint64(time.Now().Unix())
	var slot []byte
	if err := slots.Lookup(uint32(epoch)&(slots.MaxEntries()-1), &slot); err != nil {
		t.Fatal(err)
	}
	const hashAt = 24 // in struct key_slot
	return cookie.Hash(slot[hashAt])
}

func TestDaemonsStoppedForSeveralEpochsRefuseNobody(t *testing.T) {
	beside(t)
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	split := newHalves(t, l, shortEpochs(t, l))
	split.start(t)
	signal := func(s unix.Signal) {
		for _, d := range split.list() {
			if err := unix.Kill(d.process.Pid(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	signal(unix.SIGSTOP)
	t.Cleanup(func() { signal(unix.SIGCONT) })
	bothFamilies(t, l, 4*time.Second)("stopped")
	for _, d := range split.list() {
		if !isStopped(t, d.process.Pid()) {
			t.Errorf("%s was not stopped all the time", d.name)
		}
	}
	signal(unix.SIGCONT)
	bothFamilies(t, l, 2*time.Second)("going on")
	split.noBadCookie(t)
}

func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(bytes.Split(status, []byte("\n")), func(line []byte) bool {
		return bytes.HasPrefix(line, []byte("State:\tT"))
	})
}
