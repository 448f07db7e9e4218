package upkeep

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/keys"
)

// fakeKernel holds what a keeper writes, one slot for each epoch.
type fakeKernel struct {
	slots  []map[uint64]cookie.Slot // by domain
	writes int
	offset int64
	fail   error
}

func newKernel(domains int) *fakeKernel {
	k := &fakeKernel{}
	for range domains {
		k.slots = append(k.slots, map[uint64]cookie.Slot{})
	}
	return k
}

func (k *fakeKernel) WriteKeys(domain int, slots []cookie.Slot) error {
	for _, s := range slots {
		k.slots[domain][s.Epoch] = s
	}
	k.writes += len(slots)
	return k.fail
}

func (k *fakeKernel) SetOffset(offsetNS int64) error {
	k.offset = offsetNS
	return k.fail
}

// fakeClocks are the host's clocks: real time is the monotonic one and a
// constant, unless it is stepped.
type fakeClocks struct{ mono, ahead time.Duration }

const epochSeconds = 64 // few slots for the time ahead

func (c *fakeClocks) read() keys.Reading {
	return keys.Reading{MonotonicNS: int64(c.mono), RealNS: int64(c.mono + c.ahead)}
}

func (c *fakeClocks) epoch() uint64 {
	return uint64(c.mono+c.ahead) / uint64(epochSeconds*time.Second)
}

// bench is a keeper among fakes.
type bench struct {
	*testing.T
	path   string
	file   *keys.File
	random *rand.ChaCha8
	clocks fakeClocks
	kernel *fakeKernel
	log    bytes.Buffer
	keeper *Keeper
}

func newBench(t *testing.T, domains ...string) *bench {
	t.Helper()
	b := &bench{T: t, path: filepath.Join(t.TempDir(), "keys"), random: rand.NewChaCha8([32]byte{7})}
	b.clocks = fakeClocks{mono: time.Hour, ahead: 1000 * time.Hour}
	b.kernel = newKernel(len(domains))
	var err error
	if b.file, err = keys.New(epochSeconds); err != nil {
		t.Fatal(err)
	}
	for _, d := range domains {
		if err := b.file.AddDomain(d, cookie.SipHash, 7, b.random); err != nil {
			t.Fatal(err)
		}
	}
	b.write()
	if b.keeper, err = New(b.path, domains, b.clocks.read, slog.New(slog.NewTextHandler(&b.log, nil))); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) write() {
	b.Helper()
	if err := b.file.Write(b.path); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) start() {
	b.Helper()
	if err := b.keeper.Start(b.kernel, 0); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) tick() {
	b.Helper()
	if err := b.keeper.Tick(); err != nil {
		b.Fatal(err)
	}
}

// wantKeys wants every epoch that may be needed to have the file's key.
func (b *bench) wantKeys() {
	b.Helper()
	now := b.keeper.clock.Epoch(int64(b.clocks.mono))
	for i, domain := range b.keeper.domains {
		for e := now - cookie.ServerWindow.Behind; e <= now+uint64(Ahead/b.keeper.Epoch()); e++ {
			want, _ := b.file.EpochKey(domain, e)
			if got := b.kernel.slots[i][e]; got != want {
				b.Fatalf("%s, epoch %d (now %d): another key than the file's", domain, e, now)
			}
		}
	}
}

func (b *bench) logged(part string) int { return strings.Count(b.log.String(), part) }

func TestStartWritesKeysForAllThatIsAcceptedAndForThreeDays(t *testing.T) {
	b := newBench(t, "default", "inner")
	b.start()
	b.wantKeys()
	if ahead := time.Duration(b.keeper.Epochs()) * b.keeper.Epoch(); ahead < Ahead {
		t.Errorf("room for %s", ahead)
	}
}

func TestEachEpochAddsOneKeyAndNoTickRepeatsOne(t *testing.T) {
	b := newBench(t, "default")
	b.start()
	b.kernel.writes = 0
	for range 10 * epochSeconds {
		b.clocks.mono += time.Second
		b.tick()
	}
	if b.kernel.writes != 10 {
		t.Errorf("%d keys were written in 10 epochs", b.kernel.writes)
	}
	b.wantKeys()
}

func TestKeeperThatSleptForDaysCatchesUp(t *testing.T) {
	for _, slept := range []time.Duration{time.Hour, Ahead, 2 * Ahead} {
		b := newBench(t, "default")
		b.start()
		b.clocks.mono += slept
		b.tick()
		b.wantKeys()
	}
}

func TestChangedKeyFileIsTakenOverEntirely(t *testing.T) {
	b := newBench(t, "default", "inner")
	b.start()
	if err := b.file.Rotate("inner", b.clocks.epoch()+2, cookie.HalfSipHash, 9, b.random); err != nil {
		t.Fatal(err)
	}
	b.write()
	b.tick()
	b.wantKeys()
	if got := b.kernel.slots[1][b.clocks.epoch()+2]; got.Hash != cookie.HalfSipHash || got.WindowScale != 9 {
		t.Errorf("epoch of the new key: %v, scale %d", got.Hash, got.WindowScale)
	}
	b.kernel.writes = 0
	b.tick()
	if b.kernel.writes > 0 || b.logged("key file taken over") != 1 {
		t.Errorf("%d keys written again: %s", b.kernel.writes, &b.log)
	}
}

func TestBadKeyFileChangesNothingAndIsReportedOnce(t *testing.T) {
	for name, spoil := range map[string]func(*bench) error{
		"garbage":      func(b *bench) error { return os.WriteFile(b.path, []byte("{"), 0o600) },
		"permissions":  func(b *bench) error { return errors.Join(os.Chmod(b.path, 0o644), touch(b.path)) },
		"gone":         func(b *bench) error { return os.Remove(b.path) },
		"domain":       func(b *bench) error { return rewrite(b, epochSeconds, "another") },
		"epoch length": func(b *bench) error { return rewrite(b, epochSeconds/2, "default") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "default")
			b.start()
			if err := spoil(b); err != nil {
				t.Fatal(err)
			}
			b.kernel.writes = 0
			for range 3 {
				b.tick()
			}
			if b.logged("key file not taken over") != 1 || b.kernel.writes > 0 {
				t.Errorf("%d keys written: %s", b.kernel.writes, &b.log)
			}
			b.clocks.mono += epochSeconds * time.Second
			b.tick()
			b.wantKeys()
			_ = os.Remove(b.path)
			b.write()
			b.tick()
			if b.logged("key file taken over") != 1 {
				t.Errorf("the mended file is not taken over: %s", &b.log)
			}
		})
	}
}

// touch makes a file look changed.
func touch(path string) error {
	later := time.Now().Add(time.Hour)
	return os.Chtimes(path, later, later)
}

func rewrite(b *bench, seconds uint32, domain string) error {
	other, err := keys.New(seconds)
	if err != nil {
		return err
	}
	if err := other.AddDomain(domain, cookie.SipHash, 7, b.random); err != nil {
		return err
	}
	return other.Write(b.path)
}

func TestStepIsRefusedAndReportedOnceUntilConfirmed(t *testing.T) {
	b := newBench(t, "default")
	b.start()
	before, epoch := b.keeper.OffsetNS(), b.clocks.epoch()
	b.clocks.ahead += time.Hour
	for range 100 {
		b.clocks.mono += time.Second
		b.tick()
	}
	if b.kernel.offset != before || b.logged("real time has stepped by") != 1 {
		t.Errorf("offset moved by %s: %s", time.Duration(b.kernel.offset-before), &b.log)
	}
	if got := b.keeper.clock.Epoch(int64(b.clocks.mono)); got != epoch+1 && got != epoch+2 {
		t.Errorf("epoch %d after 100 s, was %d", got, epoch)
	}
	b.wantKeys()
	if err := b.keeper.Confirm(); err != nil {
		t.Fatal(err)
	}
	if got := b.kernel.offset - before; got != int64(time.Hour) {
		t.Errorf("confirmed, the offset moved by %s", time.Duration(got))
	}
	b.wantKeys()
	b.tick()
	if b.logged("agrees with real time again") != 1 {
		t.Errorf("the end of it is not reported once: %s", &b.log)
	}
}

func TestConfirmedStepBackHasTheKeysOfEarlierEpochs(t *testing.T) {
	b := newBench(t, "default")
	b.start()
	b.clocks.ahead -= 10 * time.Hour
	b.tick()
	if err := b.keeper.Confirm(); err != nil {
		t.Fatal(err)
	}
	b.wantKeys()
}

func TestSmallDifferenceIsSlewed(t *testing.T) {
	b := newBench(t, "default")
	b.start()
	before := b.keeper.OffsetNS()
	b.clocks.ahead += time.Second
	b.tick()
	last := b.kernel.offset
	for range 4000 {
		b.clocks.mono += time.Second
		b.tick()
		if step := b.kernel.offset - last; step < 0 || step > int64(time.Millisecond) {
			t.Fatalf("the offset jumped by %s", time.Duration(step))
		}
		last = b.kernel.offset
	}
	if moved := time.Duration(b.kernel.offset - before); moved.Round(time.Millisecond) != time.Second {
		t.Errorf("followed by %s", moved)
	}
}

func TestRestartedDaemonGoesOnWithTheOffsetItFinds(t *testing.T) {
	b := newBench(t, "default")
	old := b.clocks.read().RealNS - b.clocks.read().MonotonicNS
	b.clocks.ahead += time.Hour // stepped while no daemon ran
	if err := b.keeper.Start(b.kernel, old); err != nil {
		t.Fatal(err)
	}
	b.tick()
	if b.kernel.offset != old || b.logged("real time has stepped by") != 1 {
		t.Errorf("offset moved by %s: %s", time.Duration(b.kernel.offset-old), &b.log)
	}
	b.wantKeys()
}

func TestKeyThatIsNotYetInForceLeavesEmptySlots(t *testing.T) {
	b := newBench(t, "default")
	later := b.clocks.epoch() + 3
	text := strings.Replace(string(b.file.Text()), "from_epoch: 0", "from_epoch: "+strconv.FormatUint(later, 10), 1)
	if err := os.WriteFile(b.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.tick()
	for e, want := range map[uint64]cookie.Hash{later - 1: 0, later: cookie.SipHash} {
		if slot, ok := b.kernel.slots[0][e]; !ok || slot.Hash != want {
			t.Errorf("epoch %d: written %t, hash %d, want %d", e, ok, slot.Hash, want)
		}
	}
}

func TestKeeperRefusesAFileThatLacksADomain(t *testing.T) {
	b := newBench(t, "default")
	_, err := New(b.path, []string{"default", "inner"}, b.clocks.read, slog.New(slog.DiscardHandler))
	var lacks *DomainError
	if !errors.As(err, &lacks) || lacks.ExitCode() != 2 || lacks.Domain != "inner" {
		t.Errorf("got %v", err)
	}
	var fault *keys.FileError
	if _, err := New(b.path+"x", nil, b.clocks.read, slog.New(slog.DiscardHandler)); !errors.As(err, &fault) || strings.Count(err.Error(), b.path) != 1 {
		t.Errorf("got %v", err)
	}
}

func TestKernelThatRefusesIsReported(t *testing.T) {
	b := newBench(t, "default")
	b.start()
	b.kernel.fail = errors.New("out of memory")
	if err := b.keeper.Tick(); !errors.Is(err, b.kernel.fail) {
		t.Errorf("got %v", err)
	}
}

func TestClockOfTheDataPlaneLearnsForTheTimeGiven(t *testing.T) {
	b := newBench(t, "default")
	b.start()
	c := b.keeper.Clock(time.Minute)
	if c.EpochNS != uint64(epochSeconds*time.Second) || c.OffsetNS != int64(b.clocks.ahead) || c.LearnUntilNS != uint64(b.clocks.mono+time.Minute) {
		t.Errorf("%+v", c)
	}
}

func TestLoopEndsWithItsContextOrTheAgent(t *testing.T) {
	b := newBench(t, "default")
	b.start()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	never, nothing := func() bool { return false }, func() {}
	log := slog.New(slog.NewTextHandler(&b.log, nil))
	if err := Loop(ctx, log, b.keeper, Work{Gone: never, Tick: nothing}); err != nil || b.logged("the protection goes on") != 1 {
		t.Errorf("%v: %s", err, &b.log)
	}
	if err := Loop(t.Context(), log, b.keeper, Work{Gone: func() bool { return true }, Tick: nothing}); err != nil || b.logged("msg=detached") != 1 {
		t.Errorf("%v: %s", err, &b.log)
	}
}

func TestSystemClocksAreCoarseMonotonicAndReal(t *testing.T) {
	before := time.Now()
	r := SystemClocks()
	const tick = 20 * time.Millisecond
	if d := time.Unix(0, r.RealNS).Sub(before); d < -tick || d > time.Second {
		t.Errorf("real time is off by %s", d)
	}
	if later := SystemClocks(); later.MonotonicNS < r.MonotonicNS {
		t.Error("monotonic time runs back")
	}
}

func TestKeeperMovesToOtherTablesAndBack(t *testing.T) {
	b := newBench(t, "default", "inner")
	b.start()
	first, next := b.kernel, newKernel(1)
	if _, err := b.keeper.Move(next, []string{"nobody"}); err == nil || b.keeper.Check([]string{"nobody"}) == nil {
		t.Fatal("moved for a domain that the key file lacks")
	}
	back, err := b.keeper.Move(next, []string{"inner"})
	if err != nil {
		t.Fatal(err)
	}
	b.kernel = next
	b.wantKeys()
	b.clocks.mono += time.Hour
	b.tick()
	b.wantKeys()
	if n := first.writes; n == 0 || next.offset != b.keeper.OffsetNS() {
		t.Errorf("%d keys at first; the clock is %d, want %d", n, next.offset, b.keeper.OffsetNS())
	}
	back()
	b.kernel = first
	b.tick()
	b.wantKeys()

	next.fail = errors.New("no room")
	if _, err := b.keeper.Move(next, []string{"inner"}); err == nil {
		t.Error("moved to tables that take no keys")
	}
	b.tick()
	b.wantKeys()
}
