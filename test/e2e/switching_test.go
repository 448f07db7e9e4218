package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// What the detector of these tests is told; a flood has a multiple of it, the
// load a part.
const (
	switchFlood  = 20_000
	switchCalm   = time.Second
	detectInTest = "{syns: 4000, unfinished: 50, half_open: 0, calm: 1s}"
)

// switching is a service that is defended only while there is a flood, and
// those who use it meanwhile.
type switching struct {
	lab   *lab.Lab
	agent *daemon // the edge's half
	all   []*daemon
	idle  []*talk
	busy  *transfers

	found, returned []time.Duration
}

// sizes are how many connections live on each side, how many clients come in a
// second, and how often the detector goes there and back.
func switchSizes() (connections, clients, times int) {
	if long() {
		return 2000, 500, 10
	}
	return 200, 500, 2
}

func TestSwitchingOnAndOffCutsNobody(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *lab.Lab) (*daemon, []*daemon){
		"split": switchingSplit, "host": switchingHost, "proxy": switchingProxy, "auth-rst": switchingAuth,
	} {
		t.Run(name, func(t *testing.T) {
			connections, clients, times := switchSizes()
			l := newLab(t, lab.Options{})
			startHTTP(t, l)
			startChild(t, l.Server.Namespace, echoChild)
			if err := l.Server.Sysctl("net.ipv4.tcp_syncookies", "1"); err != nil {
				t.Fatal(err)
			}
			s := switching{lab: l}
			s.agent, s.all = prepare(t, l)
			talks := newTalks(t, l, 2*connections)
			s.idle, s.busy = talks[:connections], startTransfers(t.Context(), talks[connections:])
			t.Cleanup(s.busy.stop)
			// So many that begin at once are like a flood.
			s.await(t, "what the crowd's begin looked like is over", time.Minute, func(s dataplane.ServiceState) bool {
				return s.Phase == dataplane.Passive && s.Figures.Cause == ""
			})
			for i := range times {
				s.cycle(t, i, clients)
			}
			allAnswer(t, "idle connections", s.idle)
			s.busy.finish(t)
			s.tell(t)
		})
	}
}

// switchingSplit is strict: the agent drops SYNs that met no edge, so it must
// know when the edge lets them through.
func switchingSplit(t *testing.T, l *lab.Lab) (*daemon, []*daemon) {
	t.Helper()
	split := newSpeaking(t, l, false, "mode: always", "mode: auto\n    detect: "+detectInTest,
		"    setup: "+l.Setup()+"\n", "    setup: "+l.Setup()+"\nstrict: true\n",
		"learn: 0s", "learn: 0s\ngeneration: 20s") // idle connections live by announcements
	split.start(t)
	awaitPhase(t, split.edge, "enforced", 2*time.Minute)
	return split.edge, split.list()
}

// switchingProxy translates what begins during a flood, until it ends, and
// nothing else.
func switchingProxy(t *testing.T, l *lab.Lab) (*daemon, []*daemon) {
	return switchingEdge(t, l, "proxy")
}

// switchingAuth lets clients wait for a second SYN, and resets none.
func switchingAuth(t *testing.T, l *lab.Lab) (*daemon, []*daemon) {
	return switchingEdge(t, l, "auth-rst")
}

func switchingEdge(t *testing.T, l *lab.Lab, strategy string) (*daemon, []*daemon) {
	t.Helper()
	more := ""
	if strategy != "proxy" {
		more = "\n    auth_syns: 10000\n    auth_unfinished: 10000" // all clients are one address
	}
	split := newHalves(t, l, labKeys(t, l), "mode: always",
		"mode: auto\n    strategy: "+strategy+more+"\n    detect: "+detectInTest,
		"learn: 0s", "learn: 0s\ngeneration: 10m") // nobody announces idle connections
	split.edge.start(t)
	return split.edge, []*daemon{split.edge}
}

func switchingHost(t *testing.T, l *lab.Lab) (*daemon, []*daemon) {
	t.Helper()
	host := newHost(t, l)
	host.args = append(host.args, "--mode", "auto", "--detect", "syns=4000,unfinished=50,half_open=0,calm=1s")
	host.start(t)
	return host, []*daemon{host}
}

func (s *switching) state(t *testing.T) dataplane.ServiceState {
	t.Helper()
	states, err := dataplane.ReadStates(s.agent.pins())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(states, func(s dataplane.ServiceState) bool { return s.Agent == dataplane.EdgeAgent })
	return states[i]
}

// await polls until the detector has begun, or ended, so many floods.
func (s *switching) await(t *testing.T, what string, within time.Duration, holds func(dataplane.ServiceState) bool) dataplane.ServiceState {
	t.Helper()
	var now dataplane.ServiceState
	eventually(t, within, what, func() bool { now = s.state(t); return holds(now) })
	return now
}

func now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // exists on every Linux
	return time.Duration(t.Nano())
}

// firstPacket waits for a flood's, and says when it was, to a millisecond.
func firstPacket(t *testing.T, flood *lab.Flood) time.Duration {
	t.Helper()
	tick, deadline := time.NewTicker(time.Millisecond/2), time.After(requestLimit)
	defer tick.Stop()
	for {
		n, err := flood.Offered()
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return now()
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the flood does not begin")
		}
	}
}

// cycle goes from passive to a flood, IPv4 and IPv6 in turn, and back.
func (s *switching) cycle(t *testing.T, i, clients int) {
	t.Helper()
	before := s.state(t)
	if before.Phase != dataplane.Passive {
		t.Fatalf("cycle %d begins %s", i, before.Phase)
	}
	t2 := min(2*before.Calm, 16*switchCalm) // at most
	load := startLoad(t, s.lab, lab.LoadOptions{
		URL: s.lab.URL(i%2 == 1), Rate: clients, Duration: t2 + 12*time.Second,
	})
	flood, err := s.lab.StartFlood(lab.FloodOptions{Rate: switchFlood, IPv6: i%2 == 1, Limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		if !stopped {
			if stopped = true; flood.Stop() != nil {
				t.Error("the flood has failed")
			}
		}
	}
	t.Cleanup(stop)
	first := firstPacket(t, flood)
	on := s.await(t, "the flood is found", requestLimit, func(s dataplane.ServiceState) bool { return s.TimesOn > before.TimesOn })
	s.found = append(s.found, max(on.OnAt-first, 0))
	if !strings.Contains(on.On.Cause, "syns") && !strings.Contains(on.On.Cause, "unfinished") {
		t.Errorf("found by %q: %+v", on.On.Cause, on.On)
	}
	s.await(t, "the grace is over", requestLimit, func(s dataplane.ServiceState) bool { return s.Phase == dataplane.Active })
	s.answers(t)
	stop()
	last := now()
	off := s.await(t, "the service is passive again", t2+20*time.Second, func(s dataplane.ServiceState) bool { return s.TimesOff > before.TimesOff })
	s.returned = append(s.returned, off.OffAt-last)
	finishLoad(t, fmt.Sprintf("cycle %d, new connections", i+1), load)
}

// answers wants SYNs to be answered by the defence while there is a flood.
func (s *switching) answers(t *testing.T) {
	t.Helper()
	answered := func() uint64 {
		v := s.agent.verdicts(t)
		return v["answer_syn"] + v["answer_challenge"]
	}
	before := answered()
	eventually(t, requestLimit, "the flood's SYNs are answered", func() bool { return answered() > before+1000 })
}

// tell prints how fast it was, and wants the log to have said each change once.
func (s *switching) tell(t *testing.T) {
	t.Helper()
	for _, list := range []struct {
		what  string
		times []time.Duration
	}{{"found after its first packet", s.found}, {"returned after its last packet", s.returned}} {
		times := slices.Sorted(slices.Values(list.times))
		t.Logf("flood of %d SYN/s %s: median %s, at most %s (%d times)", switchFlood, list.what,
			times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond), len(times))
	}
	end := s.state(t)
	eventually(t, requestLimit, "the daemon has told the last change", func() bool {
		return strings.Count(string(s.agent.process.Log()), "calm: the service is passive again") == int(end.TimesOff)
	})
	if told := strings.Count(string(s.agent.process.Log()), "flood: the service is defended"); told != int(end.TimesOn) {
		t.Errorf("%d floods told, %d found", told, end.TimesOn)
	}
	for _, d := range s.all {
		t.Logf("%s: %v", d.name, d.verdicts(t))
	}
	if n := s.agent.verdicts(t)["pass_passive"]; n == 0 {
		t.Error("nothing passed while there was no flood")
	}
}

// The kernel decides, so that a daemon that died while there was no flood
// leaves nobody unprotected.
func TestFloodIsFoundWithoutADaemon(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	s := switching{lab: l}
	s.agent, s.all = switchingHost(t, l)
	s.agent.kill(t)
	s.cycle(t, 0, 50)
	s.agent.start(t)
	if state := s.state(t); state.TimesOn != 1 || state.TimesOff != 1 {
		t.Errorf("the next daemon knows of %d floods, %d ended", state.TimesOn, state.TimesOff)
	}
}

// The lab's own report, as an operator sees it.
func TestLabTellsWhenAFloodWasFound(t *testing.T) {
	for _, defence := range []string{"split", "host"} {
		report := labJSON(t, "--defence", defence, "--mode", "auto", "--flood", "50k", "--duration", "5s")
		if !field[bool](t, report, "detector.found") || !field[bool](t, report, "detector.returned") {
			t.Errorf("%s: %v", defence, report["detector"])
		}
		if cause := field[string](t, report, "detector.cause"); cause == "" {
			t.Errorf("%s: no cause", defence)
		}
		t.Logf("%s: found after %.0f ms, returned after %.0f ms", defence,
			field[float64](t, report, "detector.found_ms"), field[float64](t, report, "detector.returned_ms"))
	}
	report := labJSON(t, "--defence", "split", "--mode", "monitor", "--flood", "20k", "--duration", "1s")
	if field[float64](t, report, "edge.verdicts.answer_syn") == 0 {
		t.Error("monitor: no SYN counts as one to answer")
	}
	if setups := field[float64](t, report, "server.setups"); setups != 0 {
		t.Errorf("monitor: %.0f connections were made from cookies", setups)
	}
}

// An operator's commands act on the pinned maps, at once.
func TestModeIsChangedWhileTheAgentRuns(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	serveEcho(t, l)
	split := newHalves(t, l, labKeys(t, l))
	split.start(t)
	talks := newTalks(t, l, 50)
	mode := func(d *daemon, args ...string) string {
		t.Helper()
		out, err := d.at.Command(t.Context(), program, append([]string{"mode", "--pin", d.pins()}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("mode %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	edge := split.edge
	for _, to := range []string{"monitor", "auto", "off", "always", "monitor", "always"} {
		if said := mode(edge, "web", to); !strings.Contains(said, "edge: web is "+to) {
			t.Errorf("mode web %s: %q", to, said)
		}
		before := edge.verdicts(t)
		finishLoad(t, "in mode "+to, startLoad(t, l, lab.LoadOptions{Duration: time.Second}))
		allAnswer(t, "connections in mode "+to, talks)
		after := edge.verdicts(t)
		foretold := map[string]string{"monitor": "answer_syn", "auto": "pass_passive", "off": "pass_off", "always": "answer_syn"}[to]
		if after[foretold] == before[foretold] {
			t.Errorf("mode %s: no %s", to, foretold)
		}
		if setups := split.server.verdicts(t)["setup"]; to == "always" && setups == 0 {
			t.Error("mode always: the server makes no connection of a cookie")
		}
	}
	mode(edge, "web", "monitor")
	edge.kill(t)
	edge.start(t)
	if said := mode(edge); !strings.Contains(said, "monitor") || !strings.Contains(said, "(configured: always)") {
		t.Errorf("after a restart: %s", said)
	}
}
