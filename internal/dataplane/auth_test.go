package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/cookie/vector"
	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

var authStrategies = []int{authCookie, authFull, authRST}

// entries are what is whitelisted.
func (e edgeAgent) entries() map[edgeWhitelistKey]edgeWhitelisted {
	e.t.Helper()
	all := make(map[edgeWhitelistKey]edgeWhitelisted)
	var key edgeWhitelistKey
	var value edgeWhitelisted
	it := e.Whitelist.Iterate()
	for it.Next(&key, &value) {
		all[key] = value
	}
	if err := it.Err(); err != nil {
		e.t.Fatal(err)
	}
	return all
}

// delist empties the whitelist.
func (e edgeAgent) delist() {
	e.t.Helper()
	for key := range e.entries() {
		if err := e.Whitelist.Delete(key); err != nil {
			e.t.Fatal(err)
		}
	}
}

// changeEntry changes the only one there is.
func (e edgeAgent) changeEntry(change func(*edgeWhitelisted)) {
	e.t.Helper()
	all := e.entries()
	if len(all) != 1 {
		e.t.Fatalf("%d sources are whitelisted, want 1", len(all))
	}
	for key, value := range all {
		change(&value)
		if err := e.Whitelist.Put(key, value); err != nil {
			e.t.Fatal(err)
		}
	}
}

// newAuth loads an edge whose services that challenge are changed.
func newAuth(t testing.TB, change func(*policy.Auth)) edgeAgent {
	return newEdge(t, func(c *EdgeConfig) {
		c.Services = slices.Clone(c.Services)
		for i := range c.Services {
			change(&c.Services[i].Auth)
		}
	})
}

// meet sends what meets a service's challenge.
func (e edgeAgent) meet(id int, syn wire.Packet) {
	e.t.Helper()
	verdict := "answer_reset"
	if id == authRST {
		verdict = "drop_challenged"
	}
	e.want("proof", passing(id, syn), verdict)
}

// eachChallenge runs a test for each strategy and family, with nothing listed.
func eachChallenge(t *testing.T, e edgeAgent, test func(e edgeAgent, id int, syn wire.Packet)) {
	for _, id := range authStrategies {
		for family, syn := range map[string]wire.Packet{
			"IPv4": to(syn4(linuxOptions), challenged4[id]), "IPv6": to(syn6(linuxOptions), challenged6[id]),
		} {
			t.Run(services[id-1].Name+" "+family, func(t *testing.T) {
				e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
				e.forget()
				test(e, id, syn)
			})
		}
	}
}

// next is the packet from the next port.
func next(p wire.Packet) wire.Packet {
	p.Source = netip.AddrPortFrom(p.Source.Addr(), p.Source.Port()+1)
	return p
}

func TestSourceThatMeetsAChallengeConnectsDirectly(t *testing.T) {
	eachChallenge(t, newEdge(t), func(e edgeAgent, id int, syn wire.Packet) {
		e.meet(id, syn)
		again := next(syn)
		if got := e.outside(again.Frame()); got.verdict != "pass_whitelisted" || !bytes.Equal(got.out, again.Frame()) {
			e.t.Errorf("its next SYN: %s, or not as it was", got.verdict)
		}
		e.want("SYN of a neighbour's network", from(again, neighbourhood(syn)), challengeOf(id))
		ack := with(flagged(again, wire.ACK), func(p *wire.Packet) { p.Seq, p.Ack, p.Options = syn.Seq+1, 4711, nil })
		e.want("an ACK without a SYN", next(ack), "drop_bad_cookie")
		e.want("a RST without a SYN", next(flagged(ack, wire.RST)), "drop_unverified_rst")
		e.want("a SYN-ACK", flagged(ack, wire.SYN|wire.ACK), "drop_unverified_synack")
		if got := e.outside(ack.Frame()); got.verdict != "pass_finished" || !bytes.Equal(got.out, ack.Frame()) {
			e.t.Errorf("the ACK of its handshake: %s, or not as it was", got.verdict)
		}
		e.want("data behind it", with(ack, func(p *wire.Packet) { p.Seq += 100 }), "pass_verified")
		e.want("the connection's RST", flagged(ack, wire.RST), "pass_verified")
	})
}

// neighbourhood is an address beyond the prefix that counts.
func neighbourhood(p wire.Packet) string {
	if p.Source.Addr().Is4() {
		return "192.0.2.2"
	}
	return "2001:db8:c:1::1"
}

// challengeOf is the verdict on a SYN of an unknown source.
func challengeOf(id int) string {
	if id == authRST {
		return "answer_challenge"
	}
	return "answer_syn"
}

func TestWhitelistGoesByThePrefix(t *testing.T) {
	e := newAuth(t, func(a *policy.Auth) { a.Prefix4, a.Prefix6 = 20, 44 })
	eachChallenge(t, e, func(e edgeAgent, id int, syn wire.Packet) {
		e.meet(id, syn)
		inside, outside := "192.0.15.255", "192.0.16.0"
		if !syn.Source.Addr().Is4() {
			inside, outside = "2001:db8:f:ffff:ffff:ffff:ffff:ffff", "2001:db8:10::"
		}
		e.want("the last address of the prefix", from(syn, inside), "pass_whitelisted")
		e.want("the first one behind it", from(syn, outside), challengeOf(id))
	})
}

func TestWhitelistIsOfOneService(t *testing.T) {
	e := newEdge(t)
	eachChallenge(t, e, func(e edgeAgent, id int, syn wire.Packet) {
		e.meet(id, syn)
		for _, other := range authStrategies {
			at := challenged4[other]
			if !syn.Source.Addr().Is4() {
				at = challenged6[other]
			}
			if other != id {
				e.want("SYN to "+services[other-1].Name, to(syn, at), challengeOf(other))
			}
		}
	})
}

func TestWhitelistEndsWithItsTimeAndHandshakesUnderWayDoNot(t *testing.T) {
	eachChallenge(t, newEdge(t), func(e edgeAgent, id int, syn wire.Packet) {
		from := monotonic(e.t)
		e.meet(id, syn)
		e.changeEntry(func(w *edgeWhitelisted) {
			if hour := uint64(time.Hour); w.UntilNs < from+hour || w.UntilNs > monotonic(e.t)+hour {
				e.t.Errorf("listed until %d, an hour from %d on", w.UntilNs, from)
			}
		})
		e.want("SYN in time", next(syn), "pass_whitelisted")
		e.changeEntry(func(w *edgeWhitelisted) { w.UntilNs = monotonic(e.t) })
		e.want("SYN too late", next(next(syn)), challengeOf(id))
		e.delist() // as if others had displaced it
		e.want("ACK of the one in time", flagged(next(syn), wire.ACK), "pass_finished")
	})
}

func TestWhitelistedSourceSendsNoMoreSYNsThanItsRate(t *testing.T) {
	const perSecond = 10
	e := newAuth(t, func(a *policy.Auth) { a.SYNs = perSecond })
	eachChallenge(t, e, func(e edgeAgent, id int, syn wire.Packet) {
		e.meet(id, syn)
		begin, passed, lost := monotonic(e.t), 0, 0
		for ; lost < 20; syn = next(syn) {
			switch got := e.outside(syn.Frame()); got.verdict {
			case "pass_whitelisted":
				passed++
			case "drop_syn_rate":
				lost++
			default:
				e.t.Fatalf("SYN: %s", got.verdict)
			}
		}
		// A second's worth at once, and what the time since has brought.
		if most := perSecond + int((monotonic(e.t)-begin)*perSecond/uint64(time.Second)) + 1; passed < perSecond || passed > most {
			e.t.Errorf("%d SYNs have passed, want %d to %d", passed, perSecond, most)
		}
		e.meet(id, syn)
		e.want("SYN after another challenge", syn, "drop_syn_rate")
		e.changeEntry(func(w *edgeWhitelisted) { w.SpentNs -= uint64(time.Second / perSecond) })
		e.want("SYN a tenth of a second later", syn, "pass_whitelisted")
	})
}

func TestUnfinishedHandshakesEndTheWhitelisting(t *testing.T) {
	const unfinished = 5
	e := newAuth(t, func(a *policy.Auth) { a.Unfinished = unfinished })
	eachChallenge(t, e, func(e edgeAgent, id int, syn wire.Packet) {
		e.meet(id, syn)
		for range 3 * unfinished { // each ends with an ACK: for ever
			syn = next(syn)
			e.want("SYN", syn, "pass_whitelisted")
			e.want("its ACK", flagged(syn, wire.ACK), "pass_finished")
		}
		open := next(syn)
		for range unfinished {
			syn = next(syn)
			e.want("SYN without an ACK", syn, "pass_whitelisted")
			e.want("the RST of who did not send it", flagged(with(syn, func(p *wire.Packet) { p.Seq = 1 }), wire.RST), "pass_finished")
		}
		e.want("one SYN too many", next(syn), challengeOf(id))
		e.want("another", next(syn), challengeOf(id))
		e.want("ACK of a SYN before", flagged(open, wire.ACK), "pass_finished")
		e.meet(id, syn)
		e.want("SYN after another challenge", next(syn), "pass_whitelisted")
	})
}

func TestFullWhitelistMakesRoomForNewSources(t *testing.T) {
	const size = 1024
	e := newEdge(t, func(c *EdgeConfig) { c.Whitelist, c.Flows = size, 100_000 })
	eachChallenge(t, e, func(e edgeAgent, id int, syn wire.Packet) {
		for range 3 * size {
			syn.Source = netip.AddrPortFrom(nextNetwork(syn.Source.Addr()), 40000)
			e.meet(id, syn)
			e.want("SYN of the newest source", syn, "pass_whitelisted")
		}
		if n := len(e.entries()); n > size {
			e.t.Errorf("%d sources are whitelisted, more than %d", n, size)
		}
	})
}

// nextNetwork is the next address, or the one in the next /64.
func nextNetwork(a netip.Addr) netip.Addr {
	if a.Is4() {
		return a.Next()
	}
	b := a.As16()
	binary.BigEndian.PutUint64(b[:], binary.BigEndian.Uint64(b[:])+1)
	return netip.AddrFrom16(b)
}

func TestPortThatIsStillKnownIsChallengedByAWrongAcknowledgement(t *testing.T) {
	eachChallenge(t, newEdge(t), func(e edgeAgent, id int, syn wire.Packet) {
		e.inside(replied(syn, wire.ACK).Frame()) // the server has spoken: the flow is in the filter
		e.want("SYN of a known flow", syn, "answer_challenge")
		e.want("its RST, before it can pass as the flow's", passing(authRST, syn), "drop_challenged")
		e.want("the SYN again", syn, "pass_whitelisted")
	})
}

func TestConnectionsFromInsideNeedNoChallenge(t *testing.T) {
	eachChallenge(t, newEdge(t), func(e edgeAgent, _ int, syn wire.Packet) {
		e.inside(replied(syn, wire.SYN).Frame())
		e.want("SYN-ACK", flagged(syn, wire.SYN|wire.ACK), "pass_verified")
		e.want("data", flagged(syn, wire.ACK), "pass_verified")
	})
}

func TestUnknownPacketsPassWhileAnEdgeThatChallengesLearns(t *testing.T) {
	eachChallenge(t, newEdge(t), func(e edgeAgent, id int, syn wire.Packet) {
		e.learn(time.Hour)
		defer e.learn(0)
		e.want("SYN", syn, challengeOf(id))
		e.want("ACK", flagged(syn, wire.ACK), "pass_learning")
		e.want("RST", flagged(syn, wire.RST), "pass_learning")
		e.meet(id, syn)
	})
}

// What needs a key goes by keys_end, what does not goes on.
func TestWithoutKeysOnlyTheSourcesThatAreListedConnect(t *testing.T) {
	for _, end := range []policy.KeysEnd{policy.Stop, policy.Pass} {
		e := newEdge(t, func(c *EdgeConfig) {
			c.Services = slices.Clone(c.Services)
			for i := range c.Services {
				c.Services[i].KeysEnd = end
			}
		})
		eachChallenge(t, e, func(e edgeAgent, id int, syn wire.Packet) {
			e.meet(id, syn)
			e.clearKeys()
			defer e.usualKeys()
			e.want("SYN of a listed source", next(syn), "pass_whitelisted")
			e.want("its ACK", flagged(next(syn), wire.ACK), "pass_finished")
			stranger := from(syn, neighbourhood(syn))
			verdict := map[policy.KeysEnd]string{policy.Stop: "drop_no_key", policy.Pass: "pass_no_key"}[end]
			if id == authFull {
				e.want("SYN of a stranger", stranger, "answer_syn")
				e.want("blind ACK of a stranger", flagged(stranger, wire.ACK), "drop_bad_cookie")
				e.meet(id, stranger)
				return
			}
			e.want("SYN of a stranger", stranger, verdict)
			e.want("ACK of a stranger", flagged(stranger, wire.ACK), verdict)
		})
	}
}

// Each of the numbers is random: none of 2^18 should meet a challenge, with a
// probability of 2^-8 where a cookie has 2^-26, and of 2^-12 where it has 2^-30.
func TestBlindPacketsWhitelistNobody(t *testing.T) {
	random := newRandom(t)
	e := newEdge(t)
	for _, id := range []int{authCookie, authRST} {
		p := to(syn4(""), challenged4[id])
		frame, at := flagged(p, wire.ACK).Frame(), 14+20+4
		if id == authRST {
			frame = flagged(p, wire.RST).Frame()
		}
		for range 1 << 18 {
			for i := range 8 {
				frame[at+i] = byte(random.Uint32())
			}
			e.runUncounted(e.EdgeOutside, frame)
		}
		if n := len(e.entries()); n > 1 {
			t.Errorf("%s: %d entries", services[id-1].Name, n)
		} else if n == 1 {
			t.Logf("%s: one guess in 2^18 was right", services[id-1].Name)
		}
		e.delist()
	}
}

// What the strategy's name promises, and what docs/strategies.md says of it.
func TestBlindACKsThatKnowTheRuleWhitelistWithoutACookie(t *testing.T) {
	e := newEdge(t)
	blind := flagged(to(syn4(""), challenged4[authFull]), wire.ACK)
	blind.Seq, blind.Ack = 77, 77
	e.want("ACK that nobody has asked for", blind, "answer_reset")
	e.want("SYN of the address that it bears", next(flagged(blind, wire.SYN)), "pass_whitelisted")
}

func TestEdgeChallengesAndAcceptsAsTheVectorsSay(t *testing.T) {
	e := newEdge(t, func(c *EdgeConfig) {
		c.Services = slices.Clone(everywhere)
		c.Services[0].Strategy = policy.AuthRST
		c.Services[0].Auth = services[authRST-1].Auth
	})
	for _, v := range readChallenges(t) {
		t.Run(v.Name, func(t *testing.T) {
			e := edgeAgent{agent{e.tables, t}, e.edgeObjects}
			e.forget()
			e.onlyKeys(v.Epoch, keySlot(t, v.Epoch, v.Hash, v.Key))
			p := wire.Packet{Source: v.Flow().Source, To: v.Flow().Destination, Flags: wire.SYN, Seq: uint32(v.ISN)}
			got := e.outside(p.Frame())
			want := wire.Back(p.Frame(), wire.Read(p.Frame()), wire.Packet{Ack: uint32(v.Challenge), Flags: wire.ACK})
			if got.verdict != "answer_challenge" || !bytes.Equal(got.out, want) {
				t.Errorf("%s\ngot  %x\nwant %x", got.verdict, got.out, want)
			}
			var slots []cookie.Slot
			for _, s := range v.Receiver.Slots {
				slots = append(slots, keySlot(t, s.Epoch, s.Hash, s.Key))
			}
			e.onlyKeys(v.Receiver.Epoch, slots...)
			verdict := map[bool]string{true: "drop_challenged", false: "drop_unverified_rst"}[v.Valid()]
			e.want("RST", with(p, func(p *wire.Packet) { p.Flags, p.Seq = wire.RST, uint32(v.ResetSeq) }), verdict)
			if listed := len(e.entries()) == 1; listed != v.Valid() {
				t.Errorf("listed: %v, want %s", listed, v.Expect)
			}
		})
	}
}

func readChallenges(t *testing.T) []vector.Challenge {
	t.Helper()
	text, err := os.ReadFile("../../contract/vectors/challenge.json")
	if err != nil {
		t.Fatal(err)
	}
	f, err := vector.ParseChallenges(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Vectors) < 60 {
		t.Fatalf("only %d vectors", len(f.Vectors))
	}
	return f.Vectors
}
