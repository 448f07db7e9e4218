package dataplane

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// inMode are the services of the tests in one mode. Those that are off stay so.
func inMode(mode policy.Mode, change ...func(*policy.Service)) func(*EdgeConfig) {
	return func(c *EdgeConfig) { c.Services = servicesIn(mode, change...) }
}

func servicesIn(mode policy.Mode, change ...func(*policy.Service)) []policy.Service {
	all := slices.Clone(services)
	for i := range all {
		all[i].Detect = policy.DefaultDetect
		if all[i].Mode == policy.Off {
			continue
		}
		all[i].Mode = mode
		for _, f := range change {
			f(&all[i])
		}
	}
	return all
}

var everyStrategy = []policy.Strategy{policy.Split, policy.Proxy, policy.AuthCookie, policy.AuthFull, policy.AuthRST}

// untouched wants a frame to go on as it came. What is proxied goes up to the
// translator, which knows none of it.
func (e edgeAgent) untouched(g golden, strategy policy.Strategy) outcome {
	e.t.Helper()
	frame := g.frame()
	got := e.outside(frame)
	up := strategy == policy.Proxy && got.action == xdpPass
	if got.action != xdpRedirect && !up || !bytes.Equal(got.out, frame) {
		e.t.Fatalf("action %d (%s), want %d\nin  %x\nout %x", got.action, got.verdict, xdpRedirect, frame, got.out)
	}
	return got
}

// A monitored service's packets come to nothing that answers, challenges or
// drops, in whichever way strangers are proven.
func TestMonitoredServiceChangesNoPacket(t *testing.T) {
	for _, strategy := range everyStrategy {
		e := newEdge(t, inMode(policy.Monitor, func(s *policy.Service) { s.Strategy = strategy }))
		for _, g := range goldens() {
			t.Run(g.name, func(t *testing.T) {
				e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
				e.forget()
				e.untouched(g, strategy)
			})
		}
	}
}

// An edge that monitors gives no challenge, so that nobody can meet one.
func TestMonitoredServiceForetellsWhatWouldBeDone(t *testing.T) {
	e := newEdge(t, inMode(policy.Monitor))
	for _, g := range goldens() {
		if g.service != none && services[g.service-1].Strategy != policy.Split && g.in.Flags&wire.SYN == 0 {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
			e.forget()
			wantForetold(t, g, e.untouched(g, policy.Split))
		})
	}
}

// What is counted is what an enforcing edge would have done, but for what is known
// only to who does it: whether the answer has room.
func wantForetold(t *testing.T, g golden, got outcome) {
	t.Helper()
	want := g.verdict
	if want == "drop_no_room" {
		want = "answer_syn"
	}
	if got.verdict != want || g.service != none && got.service != g.service {
		t.Errorf("%s of service %d, want %s of %d", got.verdict, got.service, want, g.service)
	}
}

func TestMonitoringServerLetsEverythingPass(t *testing.T) {
	s := newServer(t, func(c *ServerConfig) { c.Services, c.Strict = servicesIn(policy.Monitor), true })
	for _, g := range goldens() {
		frame := g.frame()
		if !fitsSKB(frame) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			s := serverAgent{agent{s.tables, t}, s.serverObjects}
			if got := s.ingress(frame); got.action != tcNext || !bytes.Equal(got.out, frame) {
				t.Errorf("%s: action %d, want %d\nin  %x\nout %x", got.verdict, got.action, tcNext, frame, got.out)
			}
		})
	}
}

func TestPassiveServiceChangesNoPacket(t *testing.T) {
	for _, strategy := range everyStrategy {
		e := newEdge(t, inMode(policy.Adaptive, func(s *policy.Service) { s.Strategy = strategy }))
		for _, g := range goldens() {
			t.Run(g.name, func(t *testing.T) {
				e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
				e.forget()
				got := e.untouched(g, strategy)
				tags := strategy == policy.Proxy && got.verdict == "pass_off" // below two, nothing is proxied
				if g.service != none && g.service != off && got.verdict != "pass_passive" && !tags {
					t.Errorf("%s, want pass_passive", got.verdict)
				}
			})
		}
	}
}

// Where no edge is heard, nobody tells a server when SYNs come unanswered: with
// auto it drops nothing for the lack of a cookie.
func TestServerInModeAutoIsLenientUnlessAnEdgeEnforces(t *testing.T) {
	for _, hears := range []bool{false, true} {
		s := newServer(t, func(c *ServerConfig) {
			c.Services, c.Strict, c.HearsEdges = servicesIn(policy.Adaptive), true, hears
		})
		for _, frame := range [][]byte{syn4(windowsOptions).Frame(), flagged(syn6(""), wire.ACK).Frame()} {
			if got := s.ingress(frame); got.verdict != "pass_unenforced" {
				t.Errorf("hears edges: %t: %s, want pass_unenforced", hears, got.verdict)
			}
		}
		if !hears {
			continue
		}
		server := Server{tables: *s.tables, objects: *s.serverObjects}
		if err := server.SetEnforced(time.Duration(monotonic(t)) + time.Hour); err != nil {
			t.Fatal(err)
		}
		for want, frame := range map[string][]byte{
			"drop_strict_syn": syn4(windowsOptions).Frame(), "drop_bad_cookie": flagged(syn6(""), wire.ACK).Frame(),
		} {
			if got := s.ingress(frame); got.verdict != want {
				t.Errorf("an edge enforces: %s, want %s", got.verdict, want)
			}
		}
	}
}

// What the daemon says anew of a service, because a sysctl has changed, says
// nothing of its mode.
func TestServicesThatAreSetAnewKeepTheirMode(t *testing.T) {
	s := newServer(t)
	server := Server{tables: *s.tables, objects: *s.serverObjects, config: ServerConfig{Services: services, Domains: domains}}
	if err := putMode(s.services, web, policy.Monitor); err != nil {
		t.Fatal(err)
	}
	if err := server.SetServices(services); err != nil {
		t.Fatal(err)
	}
	states, err := server.States()
	if err != nil {
		t.Fatal(err)
	}
	if got := states[web-1]; got.Mode != policy.Monitor || got.Configured != policy.Always || got.Name != "web" {
		t.Errorf("%+v", got)
	}
}

// Neighbours of one prefix: while one of them is defended, what cannot be told
// apart is lost; a monitored one alone counts it.
func TestFragmentIsLostWhereAnyServiceIsDefended(t *testing.T) {
	fragment := with(syn4(windowsOptions), func(p *wire.Packet) { p.More = true })
	for mode, want := range map[policy.Mode]string{
		policy.Always: "drop_fragment", policy.Monitor: "drop_fragment", policy.Adaptive: "pass_other", policy.Off: "pass_other",
	} {
		e := newEdge(t, func(c *EdgeConfig) {
			c.Services = slices.Clone(services[:1])
			c.Services[0].Mode = mode
		})
		got := e.outside(fragment.Frame())
		if lost := got.action == xdpDrop; got.verdict != want || lost != (mode == policy.Always) {
			t.Errorf("%s: %s, action %d, want %s", mode, got.verdict, got.action, want)
		}
	}
}

// What belongs to no service follows the modes of those at its address, and at the
// whole edge, from the next packet on: it is remembered on each CPU, but no longer
// than it holds.
func TestWhatBelongsToNoServiceFollowsTheModesAtOnce(t *testing.T) {
	e, lists := listed(t, floods(policy.Floods{DropOther: true}), func(c *EdgeConfig) {
		c.Services = servicesIn(policy.Monitor)[:1]
	})
	stayOnOneCPU(t)
	lists.mustAdd(t, Deny, 0, "198.18.99.1/32")
	other := to(syn4(windowsOptions), "203.0.113.5:444")
	fragment := with(syn4(windowsOptions), func(p *wire.Packet) { p.More = true })
	denied := to(from(syn4(""), "198.18.99.1"), "192.0.2.200:9")
	const foretold, lost, passes = xdpRedirect, xdpDrop, xdpRedirect
	for _, step := range []struct {
		mode      policy.Mode // that the operator chooses
		action    uint32
		strangers [2]string // what another port and a fragment meet
		denied    uint32
	}{
		{policy.Monitor, foretold, [2]string{"drop_other_port", "drop_fragment"}, foretold},
		{policy.Off, passes, [2]string{"pass_other", "pass_other"}, lost},
		{policy.Always, lost, [2]string{"drop_other_port", "drop_fragment"}, lost}, // which begins with learning
		{policy.Adaptive, lost, [2]string{"drop_other_port", "drop_fragment"}, lost},
		{policy.Monitor, foretold, [2]string{"drop_other_port", "drop_fragment"}, foretold},
		{policy.Adaptive, passes, [2]string{"pass_other", "pass_other"}, lost},
	} {
		if err := e.edge().SetMode(web, step.mode); err != nil {
			t.Fatal(err)
		}
		for range 2 { // asked, then remembered
			for i, p := range []wire.Packet{other, fragment} {
				if got := e.outside(p.Frame()); got.verdict != step.strangers[i] || got.action != step.action {
					t.Errorf("%s: %s, action %d; want %s, %d", step.mode, got.verdict, got.action, step.strangers[i], step.action)
				}
			}
			if got := e.outside(denied.Frame()); got.verdict != "drop_denied" || got.action != step.denied {
				t.Errorf("%s: denied: %s, action %d; want %d", step.mode, got.verdict, got.action, step.denied)
			}
		}
	}
}

// There are more addresses than a CPU remembers: some have the same place.
func TestAddressesAreNotTakenForEachOther(t *testing.T) {
	const count = 600
	modes := []policy.Mode{policy.Always, policy.Monitor, policy.Adaptive}
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }
	e := newEdge(t, func(c *EdgeConfig) {
		c.Services = nil
		for i := range count {
			c.Services = append(c.Services, policy.Service{
				Name: at(i).String(), Domain: "main", Mode: modes[i%len(modes)], Options: policy.AllOptions,
				Prefixes: []netip.Prefix{netip.PrefixFrom(at(i), 32)}, Ports: []policy.PortRange{port(80)},
				MSS4: 1460, MSS6: 1440, Window: 65535, Detect: policy.DefaultDetect,
			})
		}
	})
	stayOnOneCPU(t)
	for range 2 {
		for i := range count {
			p := with(syn4(""), func(p *wire.Packet) { p.To, p.More = netip.AddrPortFrom(at(i), 80), true })
			action, _ := e.runUncounted(e.EdgeOutside, p.Frame())
			if lost := action == xdpDrop; lost != (modes[i%len(modes)] == policy.Always) {
				t.Fatalf("a fragment to address %d: action %d", i, action)
			}
		}
	}
	fragment, _ := VerdictNumber("drop_fragment")
	for i := range count {
		counts, err := e.ServiceVerdicts(i + 1)
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(0)
		if modes[i%len(modes)] == policy.Monitor {
			want = 2
		}
		if got := counts[fragment]; got != want {
			t.Fatalf("service %d counts %d fragments, want %d", i+1, got, want)
		}
	}
}

// wantPhase polls until the detector of web is in a phase.
func (e edgeAgent) wantPhase(phase Phase) ServiceState {
	e.t.Helper()
	var s ServiceState
	eventually(e.t, "the phase is "+phase.String(), func() bool {
		states, err := e.edge().States()
		if err != nil {
			e.t.Fatal(err)
		}
		s = states[web-1]
		return s.Phase == phase
	})
	return s
}

// adaptive is an edge in mode auto whose timer runs.
func adaptive(t *testing.T, limits policy.Detect, change ...func(*EdgeConfig)) edgeAgent {
	t.Helper()
	e := newEdge(t, append(change, inMode(policy.Adaptive, func(s *policy.Service) { s.Detect = limits }))...)
	if err := e.edge().Start(); err != nil {
		t.Fatal(err)
	}
	return e
}

// strangers sends so many SYNs, each from another port.
func (e edgeAgent) strangers(n int) (last outcome) {
	e.t.Helper()
	for i := range n {
		last = e.outside(with(syn4(windowsOptions), func(p *wire.Packet) {
			p.Source = netip.AddrPortFrom(client4.Addr(), uint16(1000+i))
		}).Frame())
	}
	return last
}

func TestKernelsTimerDefendsAndEndsWithoutADaemon(t *testing.T) {
	e := adaptive(t, policy.Detect{SYNs: 50, Calm: time.Second}, floods(policy.Floods{DropOther: true}))
	stayOnOneCPU(t)
	neither := func(other, fragment string) { // they are remembered until the timer says so
		t.Helper()
		port, part := to(syn4(""), "203.0.113.5:444").Frame(), with(syn4(""), func(p *wire.Packet) { p.More = true }).Frame()
		eventually(t, "another port: "+other, func() bool { return e.outside(port).verdict == other })
		eventually(t, "a fragment: "+fragment, func() bool { return e.outside(part).verdict == fragment })
	}
	neither("pass_other", "pass_other")
	stranger := flagged(syn4(""), wire.ACK).Frame()
	if got := e.outside(stranger); got.verdict != "pass_passive" {
		t.Errorf("an unknown ACK while there is no flood: %s", got.verdict)
	}
	if got := e.strangers(60); got.verdict != "pass_passive" && got.verdict != "answer_syn" {
		t.Errorf("a SYN before the timer has looked: %s", got.verdict)
	}
	s := e.wantPhase(Grace)
	if s.TimesOn != 1 || s.On.Cause != "syns" || s.On.SYNs < 50 {
		t.Errorf("defended because of %+v, %d times", s.On, s.TimesOn)
	}
	if got := e.strangers(1); got.verdict != "answer_syn" {
		t.Errorf("a SYN in the grace: %s", got.verdict)
	}
	neither("drop_other_port", "drop_fragment")
	if got := e.outside(stranger); got.verdict != "pass_learning" {
		t.Errorf("an unknown ACK in the grace: %s", got.verdict)
	}
	e.wantPhase(Active)
	if got := e.outside(stranger); got.verdict != "drop_bad_cookie" {
		t.Errorf("an unknown ACK while there is a flood: %s", got.verdict)
	}
	e.wantPhase(Leaving)
	if got := e.strangers(1); got.verdict != "answer_syn" {
		t.Errorf("a SYN while agents are told: %s", got.verdict)
	}
	if s = e.wantPhase(Passive); s.TimesOff != 1 {
		t.Errorf("ended %d times", s.TimesOff)
	}
	if got := e.strangers(1); got.verdict != "pass_passive" {
		t.Errorf("a SYN after the flood: %s", got.verdict)
	}
	if got := e.outside(stranger); got.verdict != "pass_passive" {
		t.Errorf("an unknown ACK after the flood: %s", got.verdict)
	}
	neither("pass_other", "pass_other")
}

// Who was answered by a cookie in the last moment of a flood comes back when
// the service is passive: his flow is known from then on.
func TestCookieOfTheFloodsEndIsHeeded(t *testing.T) {
	e := adaptive(t, policy.Detect{SYNs: 50, Calm: time.Second})
	e.setEpoch(testEpoch, uint64(time.Hour))
	e.writeKeys(domainMain, mainSlot)
	e.strangers(60)
	e.wantPhase(Active)
	answer := e.outside(syn4(windowsOptions).Frame())
	if answer.verdict != "answer_syn" {
		t.Fatalf("the SYN: %s", answer.verdict)
	}
	e.wantPhase(Passive)
	first := flagged(syn4(""), wire.ACK)
	first.Seq, first.Ack = testISN+1, wire.Read(answer.out).Seq+1
	for _, want := range []string{"pass_cookie", "pass_verified"} {
		if got := e.outside(first.Frame()); got.verdict != want {
			t.Errorf("the client's packet: %s, want %s", got.verdict, want)
		}
	}
}

// The timer looks at some services in each of its turns, and at all in their turn.
func TestFloodIsFoundWhicheverServiceItMeets(t *testing.T) {
	const count = 300
	e := newEdge(t, func(c *EdgeConfig) {
		c.Services = nil
		for i := range count {
			address := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
			c.Services = append(c.Services, policy.Service{
				Name: address.String(), Domain: "main", Mode: policy.Adaptive, Options: policy.AllOptions,
				Prefixes: []netip.Prefix{netip.PrefixFrom(address, 32)}, Ports: []policy.PortRange{port(80)},
				MSS4: 1460, MSS6: 1440, Window: 65535, Detect: policy.Detect{SYNs: 20, Calm: time.Second},
			})
		}
	})
	if err := e.edge().Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "every service is looked at", func() bool {
		var d edgeDetector
		for id := uint32(1); id <= count; id++ {
			if err := e.Detectors.Lookup(id, &d); err != nil || d.Slot == 0 {
				return false
			}
		}
		return true
	})
	flooded := []int{0, 127, 128, 200, count - 1}
	for _, i := range flooded {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 80)
		for n := range 30 {
			e.runUncounted(e.EdgeOutside, with(syn4(windowsOptions), func(p *wire.Packet) {
				p.To, p.Source = to, netip.AddrPortFrom(client4.Addr(), uint16(1000+n))
			}).Frame())
		}
	}
	eventually(t, "the flooded services are defended, and no others", func() bool {
		states, err := e.edge().States()
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for i, s := range states {
			if s.TimesOn > 0 && !slices.Contains(flooded, i) {
				t.Fatalf("service %d is defended", i)
			}
			found += int(s.TimesOn)
		}
		return found == len(flooded)
	})
}

// A server's first acknowledgement, and a known flow's SYN, are handshakes that
// were finished; a SYN-ACK proves nothing.
func TestHandshakesAreFinishedByTheServersWord(t *testing.T) {
	e := adaptive(t, policy.Detect{SYNs: 1000, Unfinished: 50, HalfOpen: 1000, Calm: time.Second})
	e.forget()
	tally := func() (sum edgeTally) {
		var perCPU []edgeTally
		if err := e.Tallies.Lookup(uint32(web), &perCPU); err != nil {
			t.Fatal(err)
		}
		for _, one := range perCPU {
			sum.Syns, sum.Finished = sum.Syns+one.Syns, sum.Finished+one.Finished
		}
		return sum
	}
	reply := syn4("")
	reply.Source, reply.To = web4, client4
	for _, step := range []struct {
		name           string
		do             func() outcome
		syns, finished uint64
	}{
		{"SYN", func() outcome { return e.outside(syn4(windowsOptions).Frame()) }, 1, 0},
		{"SYN-ACK", func() outcome { return e.inside(flagged(reply, wire.SYN|wire.ACK).Frame()) }, 1, 0},
		{"the server's ACK", func() outcome { return e.inside(flagged(reply, wire.ACK).Frame()) }, 1, 1},
		{"its next one", func() outcome { return e.inside(flagged(reply, wire.ACK|wire.PSH).Frame()) }, 1, 1},
		{"SYN from the same port", func() outcome { return e.outside(syn4(windowsOptions).Frame()) }, 2, 2},
	} {
		step.do()
		if got := tally(); got.Syns != step.syns || got.Finished != step.finished {
			t.Errorf("%s: %+v, want %d and %d", step.name, got, step.syns, step.finished)
		}
	}
}

// A service that an operator defends from now on learns for some seconds; the
// timer ends that, and no daemon.
func TestStartingServiceBecomesOneThatIsAlwaysDefended(t *testing.T) {
	e := adaptive(t, policy.DefaultDetect)
	m := modeMaps{e.labels, e.services, e.Detectors, e.Clock}
	if err := m.set(web, policy.Adaptive, policy.Always); err != nil {
		t.Fatal(err)
	}
	stranger := flagged(syn4(""), wire.ACK).Frame()
	if got := e.strangers(1); got.verdict != "answer_syn" {
		t.Errorf("a SYN: %s", got.verdict)
	}
	if got := e.outside(stranger); got.verdict != "pass_learning" {
		t.Errorf("an unknown ACK: %s", got.verdict)
	}
	eventually(t, "the mode is always", func() bool {
		states, err := e.edge().States()
		return err == nil && states[web-1].Mode == policy.Always
	})
	if got := e.outside(stranger); got.verdict != "drop_bad_cookie" {
		t.Errorf("an unknown ACK, then: %s", got.verdict)
	}
}

func TestModeChangesSoThatNobodyIsCutOff(t *testing.T) {
	for _, row := range []struct {
		from  policy.Mode
		phase Phase
		to    policy.Mode
		want  policy.Mode
		then  Phase
	}{
		{policy.Off, Passive, policy.Always, policy.Starting, Passive},
		{policy.Monitor, Passive, policy.Always, policy.Starting, Passive},
		{policy.Adaptive, Passive, policy.Always, policy.Starting, Passive},
		{policy.Adaptive, Grace, policy.Always, policy.Starting, Grace},
		{policy.Adaptive, Active, policy.Always, policy.Always, Active},
		{policy.Adaptive, Leaving, policy.Always, policy.Always, Leaving},
		{policy.Starting, Passive, policy.Always, policy.Starting, Passive},
		{policy.Always, Passive, policy.Always, policy.Always, Passive},
		{policy.Always, Passive, policy.Adaptive, policy.Adaptive, Active},
		{policy.Starting, Passive, policy.Adaptive, policy.Adaptive, Grace},
		{policy.Off, Active, policy.Adaptive, policy.Adaptive, Passive},
		{policy.Monitor, Active, policy.Adaptive, policy.Adaptive, Passive},
		{policy.Adaptive, Active, policy.Adaptive, policy.Adaptive, Active},
		{policy.Always, Passive, policy.Off, policy.Off, Passive},
		{policy.Always, Passive, policy.Monitor, policy.Monitor, Passive},
	} {
		d := edgeDetector{Phase: uint32(row.phase)}
		if got := change(row.from, row.to, &d, 1); got != row.want || Phase(d.Phase) != row.then {
			t.Errorf("%s (%s) to %s: %s (%s), want %s (%s)", row.from, row.phase, row.to, got, Phase(d.Phase), row.want, row.then)
		}
	}
}

// An operator's choice holds until the configuration names another mode than
// it did; the detector forgets its tallies alone.
func TestOperatorsModeOutlivesTheDaemon(t *testing.T) {
	d := edgeDetector{Phase: uint32(Active), TimesOn: 3, Syns: 99, Finished: 9, Slot: 7}
	for _, row := range []struct {
		holds, was, configured, want policy.Mode
	}{
		{policy.Monitor, policy.Always, policy.Always, policy.Monitor},
		{policy.Monitor, policy.Always, policy.Off, policy.Off},
		{policy.Off, policy.Adaptive, policy.Always, policy.Starting},
		{policy.Adaptive, policy.Adaptive, policy.Always, policy.Always},
	} {
		f := former{0, row.holds, row.was, d}
		got, kept := f.resume(&policy.Service{Mode: row.configured, Detect: policy.DefaultDetect}, 1)
		if got != row.want || kept.TimesOn != 3 || kept.Syns != 0 || kept.Finished != 0 || kept.Slot != 0 || kept.Limits.Syns != 10_000 {
			t.Errorf("%s, configured %s and now %s: %s with %+v, want %s", row.holds, row.was, row.configured, got, kept, row.want)
		}
	}
}
