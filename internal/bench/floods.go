package bench

import (
	"net/netip"
	"slices"

	"smartcookie/internal/cookie"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

// Flags and offsets of the frames of floods.
const (
	flagFIN = 0x01
	flagRST = 0x04
	flagPSH = 0x08

	ip4At       = ethernetLength
	ip4Fragment = ip4At + 6
	ip4TTL      = ip4At + 8
	ip6Next     = ip4At + 6
	ip6Hops     = ip4At + 7
)

// floodCase is a packet of a flood: how it is made, and what becomes of it.
type floodCase struct {
	name    string
	frame   func(cookie.Flow) []byte
	verdict string // a drop, unless it is pass_verified or answer_syn
	warm    int
}

// floods lists what is dropped by every edge, beside the ACK with a bad cookie.
func (b *testBench) floods() []*testCase {
	flagged := func(flags byte) func(cookie.Flow) []byte {
		return func(f cookie.Flow) []byte { return frameOf(f, flags, 1, 1, nil) }
	}
	return b.floodCases([]floodCase{
		{"PSH flood", flagged(flagPSH | flagACK), "drop_bad_cookie", 0},
		{"FIN flood", flagged(flagFIN | flagACK), "drop_bad_cookie", 0},
		{"RST flood", flagged(flagRST), "drop_unverified_rst", 0},
		{"SYN-ACK flood", flagged(flagSYN | flagACK), "drop_unverified_synack", 0},
		{"illegal flags", flagged(flagSYN | flagFIN), "drop_flags_syn_fin", 0},
		{"fragment", fragmentOf, "drop_fragment", 0},
		{"bad length", badLengthOf, "drop_unparsable", 0},
		{"third tag", taggedThrice, "drop_vlan_depth", 0},
	})
}

func (b *testBench) floodCases(all []floodCase) (cases []*testCase) {
	for _, flow := range flowsOf() {
		flow.Source = netip.AddrPortFrom(flow.Source.Addr().Next(), 1) // nobody whom other cases prove
		for _, f := range all {
			action := uint32(xdpDrop)
			switch f.verdict {
			case "pass_verified":
				action = xdpRedirect
			case "answer_syn":
				action = xdpTX
			}
			cases = append(cases, &testCase{
				row:  Row{Experiment: "testrun", Name: f.name, Hash: b.hash.String(), Family: int(flow.Family())},
				from: &b.ours, prog: "outside", frame: f.frame(flow), expect: action,
				edge: b.edge, verdict: f.verdict, warm: f.warm,
			})
		}
	}
	return cases
}

func fragmentOf(f cookie.Flow) []byte {
	frame := frameOf(f, flagACK, 1, 1, nil)
	if f.Family() == cookie.IPv4 {
		frame[ip4Fragment] = 0x20 // more fragments
		return frame
	}
	frame[ip6Next] = 44                            // a fragment header lies where TCP's did,
	frame[ip6Hops+33], frame[ip6Hops+36] = 6, 0x01 // which leads to TCP, with more to come
	return frame
}

// badLengthOf has a TCP header that says to be longer than the packet.
func badLengthOf(f cookie.Flow) []byte {
	frame := frameOf(f, flagACK, 1, 1, nil)
	frame[len(frame)-tcpLength+12] = 0xf0
	return frame
}

func taggedThrice(f cookie.Flow) []byte {
	frame := frameOf(f, flagACK, 1, 1, nil)
	for i := range 3 { // what is behind them does not matter
		copy(frame[12+4*i:], []byte{0x81, 0, 0, 1})
	}
	return frame
}

func ackOf(f cookie.Flow) []byte { return frameOf(f, flagACK, 1, 1, nil) }

func expiringOf(f cookie.Flow) []byte {
	frame := ackOf(f)
	if f.Family() == cookie.IPv4 {
		frame[ip4TTL] = 1
	} else {
		frame[ip6Hops] = 1
	}
	return frame
}

func otherPortOf(f cookie.Flow) []byte {
	f.Destination = netip.AddrPortFrom(f.Destination.Addr(), 81)
	return ackOf(f)
}

func synOf(f cookie.Flow) []byte { return frameOf(f, flagSYN, 1, 0, nil) }

// manyDenied is how many prefixes of each family are on the long list.
const manyDenied = 500_000

// deniedAround is a list of the addresses of clients, and so many others.
func deniedAround(others int) func(*dataplane.EdgeConfig) {
	return func(c *dataplane.EdgeConfig) {
		for _, f := range flowsOf() {
			a := f.Source.Addr().Next()
			c.Floods.Deny = append(c.Floods.Deny, netip.PrefixFrom(a, a.BitLen()))
		}
		for i := range others { // vary_source in bench.h makes them alike
			n := (uint32(i)*2654435761 | 1<<31) &^ (1 << 30) // all over, and none of the clients'
			four := [4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
			six := [16]byte{0x2a, four[0], four[1], four[2], four[3], byte(i), byte(i >> 8), byte(i >> 16)}
			c.Floods.Deny = append(c.Floods.Deny, netip.PrefixFrom(netip.AddrFrom4(four), 32), netip.PrefixFrom(netip.AddrFrom16(six), 64))
		}
	}
}

// deniedFar is the long list without the clients.
func deniedFar(c *dataplane.EdgeConfig) {
	deniedAround(manyDenied)(c)
	c.Floods.Deny = c.Floods.Deny[len(flowsOf()):]
}

// adaptive has a service in mode auto, which a flood makes act.
func adaptive(c *dataplane.EdgeConfig) {
	c.Floods.DropOther = true
	c.Services[0].Mode, c.Services[0].Detect = policy.Adaptive, policy.DefaultDetect
}

func careful(change func(*policy.Service)) func(*dataplane.EdgeConfig) {
	return func(c *dataplane.EdgeConfig) { change(&c.Services[0]) }
}

// known proves the flows of the cases by a packet from inside.
func known(f floodCase) func(*testBench) []*testCase {
	return func(b *testBench) []*testCase {
		for _, flow := range flowsOf() {
			flow.Source = netip.AddrPortFrom(flow.Source.Addr().Next(), 1)
			b.proven = append(b.proven, frameOf(reversed(flow), flagACK, 1, 1, nil))
		}
		return b.floodCases([]floodCase{f})
	}
}

func strange(all ...floodCase) func(*testBench) []*testCase {
	return func(b *testBench) []*testCase { return b.floodCases(all) }
}

// ofMany sends a case's packets from half a million sources in turn: those of the
// long list (outside_many), or as many among them that are not on it
// (outside_unlisted).
func (b *testBench) ofMany(prog string, all ...floodCase) []*testCase {
	cases := b.floodCases(all)
	for _, c := range cases {
		c.prog = prog
	}
	return cases
}

// besideLongList is a source of the long list, all of them, and those who are not on it.
func besideLongList(b *testBench) []*testCase {
	return slices.Concat(
		b.floodCases([]floodCase{{"deny, a million", ackOf, "drop_denied", 0}}),
		b.ofMany("outside_many", floodCase{"deny, a million, many sources", ackOf, "drop_denied", 0}),
		b.ofMany("outside_unlisted",
			floodCase{"SYN, a million denied, many others", synOf, "answer_syn", 0},
			floodCase{"bad ACK, a million denied, many others", ackOf, "drop_bad_cookie", 0}),
	)
}

// ofStrangers is the same without a list.
func ofStrangers(b *testBench) []*testCase {
	return b.ofMany("outside_unlisted",
		floodCase{"SYN, many sources", synOf, "answer_syn", 0}, floodCase{"bad ACK, many sources", ackOf, "drop_bad_cookie", 0})
}

// floodBenches are edges with one of the lists or limits each.
func floodBenches() []benchKind {
	kind := func(change func(*dataplane.EdgeConfig), cases func(*testBench) []*testCase) benchKind {
		return benchKind{cookie.SipHash, change, cases}
	}
	elsewhere := func(c *dataplane.EdgeConfig) {
		c.Floods.Deny = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db9::/32")}
	}
	return []benchKind{
		kind(func(*dataplane.EdgeConfig) {}, ofStrangers),
		kind(deniedAround(0), strange(floodCase{"deny, one prefix", ackOf, "drop_denied", 0})),
		kind(deniedFar, known(floodCase{"filter hit, a million denied", ackOf, "pass_verified", 0})),
		kind(deniedAround(manyDenied), besideLongList),
		kind(elsewhere, known(floodCase{"filter hit, a deny list", ackOf, "pass_verified", 0})),
		kind(func(c *dataplane.EdgeConfig) { c.Floods.DropOther = true }, strange(floodCase{"other_tcp", otherPortOf, "drop_other_port", 0})),
		kind(adaptive, strange(floodCase{"other_tcp, auto", otherPortOf, "drop_other_port", 0}, floodCase{"fragment, auto", fragmentOf, "drop_fragment", 0})),
		kind(careful(func(s *policy.Service) { s.MinTTL = 5 }), strange(floodCase{"min_ttl", expiringOf, "drop_low_ttl", 0})),
		kind(careful(func(s *policy.Service) { s.MinTTL = 5 }), known(floodCase{"filter hit, min_ttl", ackOf, "pass_verified", 0})),
		kind(careful(func(s *policy.Service) { s.PacketsPerFlow = 1 }), known(floodCase{"packets_per_flow", ackOf, "drop_flow_budget", 10})),
		kind(careful(func(s *policy.Service) { s.PacketsPerFlow = 1_000_000 }), known(floodCase{"filter hit, packets_per_flow", ackOf, "pass_verified", 0})),
		kind(func(c *dataplane.EdgeConfig) { c.Floods.Answers, c.Floods.Network4, c.Floods.Network6 = 1, 24, 64 },
			strange(floodCase{"answers_per_network", synOf, "drop_answer_limit", 10_000})),
	}
}
