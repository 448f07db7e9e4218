package dataplane

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// Every list and limit at once. Budgets and rates are beyond what a test sends:
// what they do is tested where the time is known.
var carefulFloods = policy.Floods{
	DropOther: true, Answers: 100_000_000, Network4: 24, Network6: 64,
	Deny:       prefixes("192.0.2.0/24", "8.0.0.0/8", "2001:db8:c::/48", "2620::1/128"),
	Allow:      prefixes("192.0.2.2/32", "2001:db8:c::2/127"),
	InsideOnly: prefixes("203.0.113.0/24", "fd00::/8", "10.0.0.0/8"),
	Bypass:     []policy.Bypass{by(lo, 100_000, "10.1.2.3/32", "2a00::/16"), by(lo+1, 1, "100.64.0.0/10")},
}

const carefulTTL = 30

func carefully(c *EdgeConfig) {
	c.Floods = carefulFloods
	c.Services = slices.Clone(c.Services)
	for i := range c.Services {
		c.Services[i].MinTTL, c.Services[i].PacketsPerFlow = carefulTTL, 1_000_000
	}
}

func contains(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// placed says by which port a source comes, and whether it has a bypass there;
// false: by any.
func placed(a netip.Addr) (port int, bypass, known bool) {
	best := -1
	look := func(all []netip.Prefix, at int, passes bool) {
		for _, p := range all {
			if p.Contains(a) && p.Bits() > best {
				best, port, bypass = p.Bits(), at, passes
			}
		}
	}
	look(carefulFloods.InsideOnly, 0, false)
	for _, b := range carefulFloods.Bypass {
		look(b.Sources, b.Port, true)
	}
	return port, bypass, best >= 0
}

func hopsOf(s wire.Seen, frame []byte) uint8 {
	if s.Source.Is4() {
		return frame[s.NetworkAt+8]
	}
	return frame[s.NetworkAt+7]
}

// outsideCarefully is the decision of an edge with every list and limit, over
// that of one without.
func (m *model) outsideCarefully(frame []byte) decision {
	s := wire.Read(frame)
	if s.Addressed {
		if port, _, known := placed(s.Source); known && port != lo {
			return decision{"drop_spoofed_inside", none}
		}
		if contains(carefulFloods.Deny, s.Source) && !contains(carefulFloods.Allow, s.Source) {
			return decision{"drop_denied", none}
		}
	}
	if s.Kind != wire.KindTCP {
		return m.outside(s)
	}
	id, kind := serviceOf(s.To, s.ToPort), kindOf[s.Flags&63]
	verified := kind == "drop_bad_cookie" && m.verified[flowOf(s)]
	_, bypass, _ := placed(s.Source)
	switch {
	case id == none && !verified && protected(s.To):
		return decision{"drop_other_port", none}
	case id == none || id == off || faultOf[s.Flags&63] != "":
		return m.outside(s)
	case kind == "answer_syn" && bypass:
		m.add(flowOf(s))
		return decision{"pass_bypass", id}
	case kind != "answer_syn" && hopsOf(s, frame) < carefulTTL:
		return decision{"drop_low_ttl", id}
	}
	return m.outside(s)
}

// shorten makes some packets expire soon.
func shorten(random *rand.Rand, frame []byte) []byte {
	if s := wire.Read(frame); s.Addressed && random.IntN(4) == 0 {
		hops := uint8(random.IntN(2 * carefulTTL))
		if s.Source.Is4() {
			frame[s.NetworkAt+8] = hops
		} else {
			frame[s.NetworkAt+7] = hops
		}
	}
	return frame
}

func newCarefulBench(t *testing.T) *bench {
	t.Helper()
	e := newEdge(t, carefully)
	b := newBench(e.agent, e.EdgeOutside, newModel(newFilterTwin(e)),
		func(m *model, f []byte) decision { return m.outsideCarefully(f) })
	b.check = func() {
		e.forget()
		e.delist()
		b.model = newModel(newFilterTwin(e))
	}
	return b
}

func TestMillionOddFramesMeetListsAndLimitsAsTheModelSays(t *testing.T) {
	count, batch := 1_000_000, 20_000
	if testing.Short() {
		count = 100_000
	}
	t.Parallel()
	random := newRandom(t)
	source, b := frameSource(random, false), newCarefulBench(t)
	for sent := 0; sent < count; {
		for _, frame := range variants(source, false) {
			b.send(shorten(random, frame))
			sent++
		}
		if b.frames >= batch {
			b.settle()
		}
	}
	b.settle()
	t.Logf("verdicts: %v", b.seen)
	for verdict := range strings.FieldsSeq(`drop_denied drop_spoofed_inside drop_other_port drop_low_ttl pass_bypass
		pass_verified pass_cookie answer_syn drop_bad_cookie pass_other drop_fragment drop_unparsable`) {
		if b.seen[verdict] == 0 {
			t.Errorf("no frame has met with %s: the source is too tame", verdict)
		}
	}
}

func TestGoldenFramesCutAtEveryLengthMeetListsAndLimits(t *testing.T) {
	b := newCarefulBench(t)
	for _, g := range goldens() {
		frame := g.frame()
		for length := 14; length <= min(len(frame), 300); length++ {
			b.send(slices.Clone(frame[:length]))
		}
		b.settle()
	}
}
