package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"smartcookie/internal/lab"
)

const (
	crashFlood  = lab.Rate(300_000)
	crashCycles = 5
)

// withoutDaemons is how long nobody is there.
func withoutDaemons() time.Duration {
	if long() {
		return time.Minute
	}
	return 8 * time.Second
}

func TestDataPlaneOutlivesKilledDaemonsUnderFlood(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *lab.Lab) []*daemon{
		"split": func(t *testing.T, l *lab.Lab) []*daemon { return newHalves(t, l, labKeys(t, l)).list() },
		"host":  func(t *testing.T, l *lab.Lab) []*daemon { return []*daemon{newHost(t, l)} },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, lab.Options{})
			startHTTP(t, l)
			crashUnderFlood(t, l, prepare(t, l))
		})
	}
}

func crashUnderFlood(t *testing.T, l *lab.Lab, daemons []*daemon) {
	for _, d := range daemons {
		d.start(t)
	}
	flood, err := l.StartFlood(lab.FloodOptions{Rate: floodFor(daemons), Limit: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = flood.Stop() }) // stopped already, unless the test failed
	for _, d := range daemons {
		d.kill(t)
	}
	bothFamilies(t, l, withoutDaemons())("without daemons")
	answered := daemons[len(daemons)-1].verdicts(t)["answer_syn"]
	for _, d := range daemons {
		d.start(t)
	}
	crashInCycles(t, l, daemons)
	if now := daemons[len(daemons)-1].verdicts(t)["answer_syn"]; answered == 0 || now <= answered {
		t.Errorf("%d SYNs answered without daemons, then %d", answered, now)
	}
	if err := flood.Stop(); err != nil {
		t.Fatal(err)
	}
	detachLeavesNothing(t, daemons)
	finishLoad(t, "detached", startLoad(t, l, lab.LoadOptions{Duration: time.Second}))
}

// floodFor spares the host shape: here its flood passes a router that is a
// plain kernel.
func floodFor(daemons []*daemon) lab.Rate {
	if len(daemons) == 1 {
		return crashFlood / 3
	}
	return crashFlood
}

// crashInCycles kills and starts the daemons again and again under load.
func crashInCycles(t *testing.T, l *lab.Lab, daemons []*daemon) {
	t.Helper()
	for cycle := range crashCycles {
		load := startLoad(t, l, lab.LoadOptions{Duration: 2 * time.Second})
		for _, d := range daemons {
			d.kill(t)
			d.start(t)
		}
		finishLoad(t, fmt.Sprintf("cycle %d", cycle+1), load)
	}
}

// detachLeavesNothing takes the agents off while their daemons run.
func detachLeavesNothing(t *testing.T, daemons []*daemon) {
	t.Helper()
	for _, d := range daemons {
		if out := smartcookie(t, d.at, "detach", "--pin", d.pins()); !strings.Contains(out, "detached ") {
			t.Errorf("detach %s says %q", d.name, out)
		}
		if _, err := os.Stat(d.pins()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: its pins are still there: %v", d.name, err)
		}
		eventually(t, 5*time.Second, d.name+" notices and ends", func() bool {
			return strings.Contains(string(d.process.Log()), "msg=detached")
		})
		if left := programsOn(t, d.at); len(left) > 0 {
			t.Errorf("%s: still attached: %q", d.name, left)
		}
	}
}

// programsOn lists the programs on a namespace's devices, but for those with
// which the lab lets its veth ports take frames.
func programsOn(t *testing.T, at *lab.Namespace) (found []string) {
	t.Helper()
	if err := at.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
				found = append(found, "XDP on "+l.Attrs().Name)
			}
			for _, side := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				programs, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: side})
				if err != nil {
					return err
				}
				if len(programs.Programs) > 0 {
					found = append(found, fmt.Sprintf("%s on %s", side, l.Attrs().Name))
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}
