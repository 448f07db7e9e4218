package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"smartcookie/internal/config"
	"smartcookie/internal/edge"
	"smartcookie/internal/keys"
	"smartcookie/internal/lab"
	"smartcookie/internal/server"
	"smartcookie/internal/upkeep"
)

// wall is a real-time clock that can be stepped, as seen by the daemons.
type wall struct{ stepped atomic.Int64 }

func (w *wall) read() keys.Reading {
	now := upkeep.SystemClocks()
	now.RealNS += w.stepped.Load()
	return now
}

// journal is a daemon's log.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(line)
}

func (j *journal) count(part string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), part)
}

// runHere runs a daemon of a split defence in this process, by another clock.
func runHere(t *testing.T, d *daemon, clocks func() keys.Reading) *journal {
	t.Helper()
	text := &journal{}
	log := slog.New(slog.NewTextHandler(text, nil))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.at.Do(func() error { return d.run(ctx, log, clocks) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
	})
	eventually(t, 15*time.Second, d.name+" is ready", func() bool { return text.count("msg=ready") == 1 })
	return text
}

func (d *daemon) run(ctx context.Context, log *slog.Logger, clocks func() keys.Reading) error {
	file := d.args[len(d.args)-1]
	if d.name == "edge" {
		c, err := config.ReadEdge(file)
		if err != nil {
			return err
		}
		return edge.Run(ctx, c, edge.Options{Pins: d.pins(), Log: log, Clocks: clocks})
	}
	c, err := config.ReadServer(file)
	if err != nil {
		return err
	}
	return server.Run(ctx, c, server.Options{Pins: d.pins(), Log: log, Clocks: clocks})
}

// agentClock is the kernel's clock of an agent, struct agent_clock.
func agentClock(t *testing.T, d *daemon) (clock *ebpf.Map, value []byte) {
	t.Helper()
	clock = pinnedMap(t, d, d.name, "clock")
	if err := clock.Lookup(uint32(0), &value); err != nil {
		t.Fatal(err)
	}
	return clock, value
}

func offsetOf(t *testing.T, d *daemon) time.Duration {
	t.Helper()
	_, value := agentClock(t, d)
	return time.Duration(binary.NativeEndian.Uint64(value))
}

func TestStepOfRealTimeIsRefusedUntilConfirmedAndRefusesNobody(t *testing.T) {
	beside(t)
	for _, step := range []time.Duration{10 * time.Second, -10 * time.Second} {
		t.Run(step.String(), func(t *testing.T) { testStep(t, step) })
	}
}

func testStep(t *testing.T, step time.Duration) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	split := newHalves(t, l, labKeys(t, l))
	clock := &wall{}
	journals := []*journal{runHere(t, split.server, clock.read), runHere(t, split.edge, clock.read)}
	before := []time.Duration{offsetOf(t, split.server), offsetOf(t, split.edge)}

	clock.stepped.Store(int64(step))
	bothFamilies(t, l, 4*time.Second)("while the step is refused")
	for i, d := range split.list() {
		if n := journals[i].count("real time has stepped by"); n != 1 {
			t.Errorf("%s: the step is reported %d times", d.name, n)
		}
		if moved := offsetOf(t, d) - before[i]; moved.Abs() > 100*time.Millisecond {
			t.Errorf("%s: the offset has moved by %s", d.name, moved)
		}
	}

	finish := bothFamilies(t, l, 4*time.Second)
	if err := unix.Kill(os.Getpid(), unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	for i, d := range split.list() {
		eventually(t, 5*time.Second, d.name+" believes the step", func() bool {
			moved := offsetOf(t, d) - before[i] - step
			return moved.Abs() < 100*time.Millisecond
		})
	}
	finish("while the step is confirmed")
}

func TestNoProgramReadsTheTAIClock(t *testing.T) {
	for _, name := range []string{"edge", "server"} {
		spec, err := ebpf.LoadCollectionSpec("../../internal/dataplane/" + name + "_bpfel.o")
		if err != nil {
			t.Fatal(err)
		}
		read := map[asm.BuiltinFunc]int{}
		for _, program := range spec.Programs {
			for _, instruction := range program.Instructions {
				if instruction.IsBuiltinCall() {
					read[asm.BuiltinFunc(instruction.Constant)]++
				}
			}
		}
		if read[asm.FnKtimeGetTaiNs] > 0 {
			t.Errorf("%s: its clock would depend on the offset that a time daemon sets", name)
		}
		if read[asm.FnKtimeGetCoarseNs] == 0 {
			t.Errorf("%s: no program reads the coarse monotonic clock: %v", name, read)
		}
	}
}

// keysAhead is longer than keys are in the kernel ahead of their time.
const keysAhead = upkeep.Ahead + 8*time.Hour

func TestRunOutKeysStopNewConnectionsOrLetThemPass(t *testing.T) {
	for _, test := range []struct {
		choice, verdict string
		served          bool
	}{{"stop", "drop_no_key", false}, {"pass", "pass_no_key", true}} {
		t.Run(test.choice, func(t *testing.T) {
			l := newLab(t, lab.Options{})
			startHTTP(t, l)
			serveEcho(t, l)
			split := newHalves(t, l, labKeys(t, l), "mode: always", "mode: always\n    keys_end: "+test.choice)
			split.start(t)
			talks := newTalks(t, l, 20)
			split.kill(t)
			for _, d := range split.list() {
				clock, value := agentClock(t, d)
				binary.NativeEndian.PutUint64(value, binary.NativeEndian.Uint64(value)+uint64(keysAhead))
				if err := clock.Put(uint32(0), value); err != nil {
					t.Fatal(err)
				}
			}
			report, err := startLoad(t, l, lab.LoadOptions{Duration: time.Second, Rate: 50, Timeout: 2 * time.Second}).Wait()
			if err != nil {
				t.Fatal(err)
			}
			if test.served {
				allServed(t, "without keys", report)
			} else if report.Requests == 0 || report.OK > 0 {
				t.Errorf("%d of %d requests served without keys", report.OK, report.Requests)
			}
			if verdicts := split.edge.verdicts(t); verdicts[test.verdict] < report.Requests {
				t.Errorf("the edge's verdicts: %v", verdicts)
			}
			allAnswer(t, "connections from before", talks)
		})
	}
}

func TestNewDaemonsEndTheLackOfKeys(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	split := newHalves(t, l, labKeys(t, l))
	split.start(t)
	split.kill(t)
	for _, d := range split.list() {
		slots := pinnedMap(t, d, d.name, "keys")
		for i := range slots.MaxEntries() {
			if err := slots.Put(i, make([]byte, slots.ValueSize())); err != nil {
				t.Fatal(err)
			}
		}
	}
	report, err := startLoad(t, l, lab.LoadOptions{Duration: time.Second, Rate: 20, Timeout: time.Second}).Wait()
	if err != nil || report.OK > 0 {
		t.Fatalf("%d of %d requests served without keys: %v", report.OK, report.Requests, err)
	}
	split.start(t)
	finishLoad(t, "with keys again", startLoad(t, l, lab.LoadOptions{Duration: time.Second}))
	if verdicts := split.edge.verdicts(t); verdicts["drop_no_key"] == 0 {
		t.Errorf("the edge's verdicts: %v", verdicts)
	}
}
