package dataplane

import (
	"net/netip"
	"testing"
	"time"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// careful changes the service web.
func careful(change func(*policy.Service)) func(*EdgeConfig) {
	return func(c *EdgeConfig) {
		c.Services = append([]policy.Service{}, c.Services...)
		change(&c.Services[web-1])
	}
}

func floods(f policy.Floods) func(*EdgeConfig) {
	return func(c *EdgeConfig) { c.Floods = f }
}

// families has a SYN of each family.
func families() []wire.Packet { return []wire.Packet{syn4(linuxOptions), syn6(windowsOptions)} }

func TestOtherPortsOfProtectedAddressesAreLostIfTheyShallBe(t *testing.T) {
	e := newEdge(t, floods(policy.Floods{DropOther: true}))
	for _, syn := range families() {
		e.forget()
		other := to(syn, netip.AddrPortFrom(syn.To.Addr(), 444).String())
		for name, p := range map[string]wire.Packet{
			"SYN": other, "ACK": flagged(other, wire.ACK), "SYN-ACK": flagged(other, wire.SYN|wire.ACK),
			"RST": flagged(other, wire.RST), "no flag": flagged(other, 0),
		} {
			if got := e.outside(p.Frame()); got.verdict != "drop_other_port" || got.service != none {
				t.Errorf("%s: %s of service %d", name, got.verdict, got.service)
			}
		}
		unprotected := netip.AddrPortFrom(client4.Addr(), 444)
		if !syn.To.Addr().Is4() {
			unprotected = netip.AddrPortFrom(client6.Addr(), 444)
		}
		e.want("an unprotected address", to(syn, unprotected.String()), "pass_other")
		e.want("UDP", with(other, func(p *wire.Packet) { p.Protocol = wire.UDP }), "pass_other")
		e.want("the service", syn, "answer_syn")
	}
	e.want("a service that is off", to(syn4(""), "198.51.100.1:80"), "pass_off")
	e.want("beside a service that is off, and no other", to(syn4(""), "198.51.100.1:81"), "pass_other")
	e = newEdge(t, inMode(policy.Monitor), floods(policy.Floods{DropOther: true}))
	if got := e.outside(to(syn4(""), "203.0.113.5:444").Frame()); got.verdict != "drop_other_port" || got.action != xdpRedirect {
		t.Errorf("beside services that are monitored: %s, action %d", got.verdict, got.action)
	}
	e = newEdge(t, inMode(policy.Adaptive), floods(policy.Floods{DropOther: true}))
	e.want("beside services that are passive", to(syn4(""), "203.0.113.5:444"), "pass_other")
}

// Every drop of this page becomes a count where the service is monitored.
func TestMonitoredServiceIsToldOfFloodsAndLosesNothing(t *testing.T) {
	strict := func(s *policy.Service) { s.MinTTL, s.PacketsPerFlow = 5, 1 }
	change := []func(*EdgeConfig){inMode(policy.Monitor), careful(strict), limitedAnswers(1)}
	e, lists := listed(t, change...)
	foretold := func(what string, p wire.Packet, verdict string, service int) {
		t.Helper()
		if got := e.outside(p.Frame()); got.verdict != verdict || got.service != service || got.action != xdpRedirect {
			t.Errorf("%s: %s of service %d, action %d", what, got.verdict, got.service, got.action)
		}
	}
	for _, syn := range families() {
		ack := flagged(syn, wire.ACK)
		foretold("hops", with(ack, func(p *wire.Packet) { p.Hops = 1 }), "drop_low_ttl", web)
		e.say(flowOf(wire.Read(ack.Frame())))
		foretold("hops of a verified flow", with(ack, func(p *wire.Packet) { p.Hops = 1 }), "drop_low_ttl", web)
		e.spendAll()
		foretold("budget", ack, "drop_flow_budget", web)
		foretold("budget, RST", flagged(ack, wire.RST), "drop_flow_budget", web)
		for range 1000 {
			e.outside(syn.Frame())
		}
		dropped := 0
		for range 20 {
			got := e.outside(syn.Frame())
			if got.action != xdpRedirect || got.service != web {
				t.Fatalf("%s of service %d, action %d", got.verdict, got.service, got.action)
			}
			if got.verdict == "drop_answer_limit" {
				dropped++
			}
		}
		if dropped < 15 {
			t.Errorf("%d of 20 SYNs are told to be beyond the limit", dropped)
		}
		lists.mustAdd(t, Deny, 0, netip.PrefixFrom(syn.Source.Addr(), syn.Source.Addr().BitLen()).String())
		foretold("denied SYN", syn, "drop_denied", web)
		foretold("denied, verified", ack, "drop_denied", web)
		udp := e.outside(with(ack, func(p *wire.Packet) { p.Protocol = wire.UDP }).Frame())
		if udp.verdict != "drop_denied" || udp.action != xdpRedirect {
			t.Errorf("denied UDP: %s, action %d", udp.verdict, udp.action)
		}
	}
}

// What a protected host opens from a port of no service must be answered.
func TestConnectionsFromInsideOutliveTheDropOfOtherPorts(t *testing.T) {
	for _, syn := range families() {
		e := newEdge(t, floods(policy.Floods{DropOther: true}))
		own := to(syn, netip.AddrPortFrom(syn.To.Addr(), 50000).String())
		answer := flagged(own, wire.SYN|wire.ACK)
		out := with(own, func(p *wire.Packet) { p.Source, p.To = own.To, own.Source })
		e.want("nobody has asked for it", answer, "drop_other_port")
		e.inside(out.Frame())
		e.want("SYN-ACK", answer, "pass_verified")
		e.want("data", flagged(own, wire.ACK|wire.PSH), "pass_verified")
		e.want("RST", flagged(own, wire.RST|wire.ACK), "pass_verified")
		e.want("another flow", neighbour(flagged(own, wire.ACK)), "drop_other_port")
		e.want("SYN", own, "drop_other_port")
		e.forget()
		e.learn(time.Hour)
		e.want("while it is learnt what there is", flagged(own, wire.ACK), "pass_learning")
		e.want("SYN while that is learnt", own, "drop_other_port")
	}
}

func TestPacketsThatCouldExpireBehindTheEdgeAreLost(t *testing.T) {
	const least = 5
	e := newEdge(t, careful(func(s *policy.Service) { s.MinTTL = least }))
	hops := func(p wire.Packet, n uint8) wire.Packet {
		return with(p, func(p *wire.Packet) { p.Hops = n })
	}
	for _, syn := range families() {
		e.forget()
		ack := e.handshake(syn)
		e.want("SYN", hops(syn, 1), "answer_syn")
		e.want("valid cookie", hops(ack, least-1), "drop_low_ttl")
		e.want("bad cookie", hops(neighbour(ack), least-1), "drop_low_ttl")
		e.want("bad cookie with hops", hops(neighbour(ack), least), "drop_bad_cookie")
		e.want("RST", hops(flagged(ack, wire.RST), 1), "drop_low_ttl")
		e.want("valid cookie with hops", hops(ack, least), "pass_cookie")
		e.want("verified", hops(ack, least-1), "drop_low_ttl")
		e.want("verified with hops", hops(ack, least), "pass_verified")
		e.want("verified RST", hops(flagged(ack, wire.RST), least-1), "drop_low_ttl")
		e.want("verified RST with hops", hops(flagged(ack, wire.RST), least), "pass_verified")
		for name, shape := range map[string]func(*wire.Packet){
			"tags":    func(p *wire.Packet) { p.Tags = []wire.Tag{{Type: wire.Service, ID: 1}, {Type: wire.Customer, ID: 2}} },
			"options": func(p *wire.Packet) { p.IPOptions = make([]byte, 8) },
		} {
			if name == "options" && !syn.To.Addr().Is4() {
				continue
			}
			e.want(name, hops(with(ack, shape), least-1), "drop_low_ttl")
			e.want(name+" with hops", hops(with(ack, shape), least), "pass_verified")
		}
	}
	e.want("another service", hops(e.handshake(to(syn4(""), "203.0.113.200:22")), 1), "pass_cookie")
}

func TestFlowHasNoMorePacketsThanItsBudget(t *testing.T) {
	const perSecond, tried = 1000, 4000
	e := newEdge(t, careful(func(s *policy.Service) { s.PacketsPerFlow = perSecond }))
	for _, syn := range families() {
		ack, other := e.handshake(syn), e.handshake(with(syn, func(p *wire.Packet) { p.Source = netip.AddrPortFrom(p.Source.Addr(), 999) }))
		e.want("first", ack, "pass_cookie")
		e.want("first of another", other, "pass_cookie")
		passed, begin := 0, monotonic(t)
		for range tried {
			switch got := e.outside(ack.Frame()); got.verdict {
			case "pass_verified":
				passed++
			case "drop_flow_budget":
				if got.service != web {
					t.Fatalf("counted for service %d", got.service)
				}
			default:
				t.Fatal(got.verdict)
			}
		}
		took := time.Duration(monotonic(t) - begin)
		most := perSecond + int(took*perSecond/time.Second) + 10 // a tick of the coarse clock
		t.Logf("%d of %d in %s", passed, tried, took)
		if passed < perSecond || passed > most || passed == tried {
			t.Errorf("%d packets pass in %s: at least %d and at most %d should", passed, took, perSecond, most)
		}
		e.want("another flow", other, "pass_verified")
		e.want("a RST of another", flagged(other, wire.RST), "pass_verified")
		e.spendAll()
		e.want("a RST of the flow", flagged(ack, wire.RST), "drop_flow_budget")
		e.setBudgets(0)
	}
	ssh4 := e.handshake(to(syn4(""), "203.0.113.200:22"))
	e.want("another service", ssh4, "pass_cookie")
	for range tried {
		e.want("another service", ssh4, "pass_verified")
	}
}

// spendAll leaves no flow a packet for an hour.
func (e edgeAgent) spendAll() { e.t.Helper(); e.setBudgets(monotonic(e.t) + uint64(time.Hour)) }

func (e edgeAgent) setBudgets(later uint64) {
	e.t.Helper()
	for i := range e.FlowBudgets.MaxEntries() {
		if err := e.FlowBudgets.Put(i, later); err != nil {
			e.t.Fatal(err)
		}
	}
}

// Strangers' packets spend nothing: they are of no verified flow.
func TestBudgetIsSpentByVerifiedFlowsAlone(t *testing.T) {
	e := newEdge(t, careful(func(s *policy.Service) { s.PacketsPerFlow = 1 }))
	ack := e.handshake(syn4(""))
	for range 5 {
		e.want("a stranger", neighbour(ack), "drop_bad_cookie")
	}
	e.want("first", ack, "pass_cookie")
	e.want("second", ack, "pass_verified")
	e.spendAll()
	e.want("third", ack, "drop_flow_budget")
	e.want("a stranger, still", neighbour(ack), "drop_bad_cookie")
}

// Few flows share both of their buckets with floods.
func TestFloodsOfSomeFlowsSpareTheOthers(t *testing.T) {
	const heavy, light = 100, 2000
	e := newEdge(t, careful(func(s *policy.Service) { s.PacketsPerFlow = 10_000 }), func(c *EdgeConfig) { c.Flows = 1000 })
	random := newRandom(t)
	flow := func(i int) wire.Packet {
		return flagged(with(syn4(""), func(p *wire.Packet) {
			p.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())}), uint16(i))
		}), wire.ACK)
	}
	if n := e.FlowBudgets.MaxEntries(); n != 2048 {
		t.Fatalf("%d budgets, want two rows of 1024", n)
	}
	later := monotonic(t) + uint64(time.Hour)
	for range heavy { // what a flood leaves: a bucket of each row
		for row := range uint32(2) {
			if err := e.FlowBudgets.Put(row*1024+random.Uint32N(1024), later); err != nil {
				t.Fatal(err)
			}
		}
	}
	lost := 0
	for i := range light {
		p := flow(i)
		e.forget()
		e.say(flowOf(wire.Read(p.Frame())))
		if e.outside(p.Frame()).verdict == "drop_flow_budget" {
			lost++
		}
	}
	share := float64(lost) / light // expected: the square of a tenth
	t.Logf("%.4f of %d flows are lost beside %d floods", share, light, heavy)
	if share > 0.05 {
		t.Error("that is more than one in twenty")
	}
}

func limitedAnswers(perSecond int) func(*EdgeConfig) {
	return floods(policy.Floods{Answers: perSecond, Network4: 24, Network6: 64})
}

// A window is 2^30 ns; the rate is that of the last one.
func TestAnswersToANetworkAreLimited(t *testing.T) {
	const limit, tried = 200, 20_000
	e := newEdge(t, limitedAnswers(limit))
	for _, syn := range families() {
		answered, begin := 0, monotonic(t)
		for i := range tried {
			p := with(syn, func(p *wire.Packet) { p.Source = netip.AddrPortFrom(lastByte(p.Source.Addr(), byte(i)), uint16(i)) })
			switch got := e.outside(p.Frame()); got.verdict {
			case "answer_syn":
				answered++
			case "drop_answer_limit":
				if got.service != web || got.action != xdpDrop {
					t.Fatalf("service %d, action %d", got.service, got.action)
				}
			default:
				t.Fatal(got.verdict)
			}
		}
		seconds := time.Duration(monotonic(t) - begin).Seconds()
		// While the rate rises, the share of the answers is that of the tries so
		// far: in each window limit × (1 + ln(tries / limit)) at most, 5.6 here.
		most := int(limit * 6 * (seconds + 2))
		t.Logf("%d of %d answered in %.2f s", answered, tried, seconds)
		if answered < limit || answered > most {
			t.Errorf("%d answers, at least %d and at most %d", answered, limit, most)
		}
		far := with(syn, func(p *wire.Packet) { p.Source = netip.AddrPortFrom(otherNetwork(p.Source.Addr()), 1) })
		for range limit / 2 {
			e.want("another network", far, "answer_syn")
		}
	}
}

// Whoever repeats his SYN gets an answer in the end: the share of those that are
// answered is the limit by the rate, whenever they come.
func TestRepeatedSynGetsThroughTheAnswerLimit(t *testing.T) {
	const limit, flood, tries = 1000, 4000, 400
	e := newEdge(t, limitedAnswers(limit))
	syn, attack := syn4(""), with(syn4(""), func(p *wire.Packet) { p.Source = netip.AddrPortFrom(lastByte(p.Source.Addr(), 77), 7) })
	for range flood {
		e.outside(attack.Frame())
	}
	answered := 0
	for range tries {
		if e.outside(syn.Frame()).verdict == "answer_syn" {
			answered++
		}
		e.outside(attack.Frame())
	}
	t.Logf("%d of %d repeated SYNs answered", answered, tries)
	if answered < tries/20 {
		t.Errorf("only %d of %d are answered", answered, tries)
	}
}

func lastByte(a netip.Addr, b byte) netip.Addr {
	bytes := a.AsSlice()
	bytes[len(bytes)-1] = b
	changed, _ := netip.AddrFromSlice(bytes)
	return changed
}

// otherNetwork is beyond a /24 or /64 around the address.
func otherNetwork(a netip.Addr) netip.Addr {
	bytes := a.AsSlice()
	bytes[min(2, len(bytes)-2)] ^= 0x40
	changed, _ := netip.AddrFromSlice(bytes)
	return changed
}

// by is a bypass through a port.
func by(port, syns int, sources ...string) policy.Bypass {
	return policy.Bypass{Sources: prefixes(sources...), Port: port, SYNs: syns}
}

const lo = 1 // the port by which frames of a test run come in

func TestSourcesComeInByTheirPortAlone(t *testing.T) {
	e := newEdge(t, floods(policy.Floods{
		InsideOnly: prefixes("192.0.2.0/25", "2001:db8:c::/64"),
		Bypass:     []policy.Bypass{by(lo, 1000, "192.0.2.7/32", "2001:db8:c::7/128"), by(lo+1, 1000, "198.19.0.0/16")},
	}))
	udp := func(p wire.Packet) wire.Packet { return with(p, func(p *wire.Packet) { p.Protocol = wire.UDP }) }
	for _, syn := range families() {
		e.forget()
		spoofed, own := syn, with(syn, func(p *wire.Packet) { p.Source = netip.AddrPortFrom(lastByte(p.Source.Addr(), 7), 4000) })
		e.want("inside's SYN", spoofed, "drop_spoofed_inside")
		e.want("inside's ACK", flagged(spoofed, wire.ACK), "drop_spoofed_inside")
		e.want("inside's UDP", udp(spoofed), "drop_spoofed_inside")
		e.say(flowOf(wire.Read(spoofed.Frame())))
		e.want("inside's verified flow", flagged(spoofed, wire.ACK), "drop_spoofed_inside")
		e.want("a longer prefix of this port", own, "pass_bypass")
		e.want("its next packet", flagged(own, wire.ACK), "pass_verified")
		e.want("its UDP", udp(own), "pass_other")
		e.want("what comes from inside", with(syn, func(p *wire.Packet) { p.Source = netip.AddrPortFrom(otherNetwork(p.Source.Addr()), 1) }), "answer_syn")
	}
	e.want("another port's source", from(syn4(""), "198.19.1.1"), "drop_spoofed_inside")
	if got := e.inside(syn4("").Frame()).verdict; got != "pass_inside" {
		t.Errorf("by the inside port: %s", got)
	}
}

func TestBypassHasARateBeyondWhichItsSynsAreAnswered(t *testing.T) {
	const perSecond, tried = 100, 1000
	e := newEdge(t, floods(policy.Floods{Bypass: []policy.Bypass{
		by(lo, perSecond, "192.0.2.0/24", "2001:db8:c::/64"), by(lo, perSecond, "198.19.0.0/16"),
	}}))
	passed, begin := 0, monotonic(t)
	for i := range tried {
		p := families()[i%2] // one rate for all sources of an entry
		p.Source = netip.AddrPortFrom(p.Source.Addr(), uint16(i+1))
		frame := p.Frame()
		switch got := e.outside(frame); got.verdict {
		case "pass_bypass":
			passed++
			e.want("what follows", flagged(p, wire.ACK), "pass_verified")
		case "answer_syn":
		default:
			t.Fatal(got.verdict)
		}
	}
	took := time.Duration(monotonic(t) - begin)
	t.Logf("%d of %d in %s", passed, tried, took)
	if most := perSecond/10 + 1 + int(took*perSecond/time.Second) + 1; passed < perSecond/10 || passed > most {
		t.Errorf("%d SYNs pass, at least %d and at most %d", passed, perSecond/10, most)
	}
	e.want("another entry", from(syn4(""), "198.19.1.1"), "pass_bypass")
	e.want("who is in none", from(syn4(""), "198.20.1.1"), "answer_syn")
	e.want("a service that is off", to(from(syn4(""), "198.19.1.2"), "198.51.100.1:80"), "pass_off")
}

// The limit of answers holds for a challenge, too, and not for who has met it.
func TestChallengesAreLimitedLikeAnswers(t *testing.T) {
	e := newEdge(t, limitedAnswers(1), func(c *EdgeConfig) {
		c.Services = append([]policy.Service{}, c.Services...)
		for i := range c.Services { // so that there are others in a source's network
			c.Services[i].Auth.Prefix4, c.Services[i].Auth.Prefix6 = 32, 128
		}
	})
	eachChallenge(t, e, func(e edgeAgent, id int, syn wire.Packet) {
		e.meet(id, syn)
		for range 1000 { // beyond the limit whatever comes first
			e.outside(neighbour(syn).Frame())
		}
		limited := 0
		for range 20 {
			switch got := e.outside(otherHost(syn).Frame()); got.verdict {
			case "drop_answer_limit":
				limited++
			case challengeOf(id):
			default:
				e.t.Fatal(got.verdict)
			}
		}
		if limited < 15 {
			e.t.Errorf("%d of 20 SYNs are beyond the limit", limited)
		}
		e.want("a whitelisted source", syn, "pass_whitelisted")
	})
}

// otherHost is a packet from the same network, whose source nobody has listed.
func otherHost(p wire.Packet) wire.Packet {
	p.Source = netip.AddrPortFrom(lastByte(p.Source.Addr(), 200), p.Source.Port())
	return p
}

func TestAllowExemptsFromTheRateOfWhitelistedSources(t *testing.T) {
	e, lists := listed(t, func(c *EdgeConfig) {
		c.Services = append([]policy.Service{}, c.Services...)
		for i := range c.Services {
			c.Services[i].Auth.SYNs, c.Services[i].Auth.Unfinished = 1, 1000
		}
	})
	lists.mustAdd(t, Allow, 0, client4.Addr().String()+"/32", client6.Addr().String()+"/128")
	eachChallenge(t, e, func(e edgeAgent, id int, syn wire.Packet) {
		e.meet(id, syn)
		for range 50 {
			e.want("SYN", syn, "pass_whitelisted")
			syn = next(syn)
		}
	})
}
