package bench

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"smartcookie/internal/cookie"
	"smartcookie/internal/lab"
)

// randomFlow is one to the same server whose client begins with the same bytes.
func randomFlow(random *rand.Rand, like cookie.Flow) (cookie.Flow, uint32) {
	source := like.Source.Addr().AsSlice()
	for i := len(source) - 3; i < len(source); i++ {
		source[i] = byte(random.Uint32())
	}
	address, _ := netip.AddrFromSlice(source)
	return cookie.Flow{Source: netip.AddrPortFrom(address, uint16(random.Uint32())), Destination: like.Destination}, random.Uint32()
}

// macs are what the edges of the experiment make T by, with a key of the seed.
func macs(random *rand.Rand) map[string]func(cookie.Flow, uint32) uint32 {
	var key cookie.Key
	for i := range key {
		key[i] = byte(random.Uint32())
	}
	nonce := binary.LittleEndian.Uint32(key[:])
	return map[string]func(cookie.Flow, uint32) uint32{
		"CRC32":       func(f cookie.Flow, isn uint32) uint32 { return crcOf(nonce, forgedMessage(f, isn)) },
		"SipHash":     func(f cookie.Flow, isn uint32) uint32 { return cookie.MAC(cookie.SipHash, key, f, isn) },
		"HalfSipHash": func(f cookie.Flow, isn uint32) uint32 { return cookie.MAC(cookie.HalfSipHash, key, f, isn) },
	}
}

// forgedOf tells how many of so many Ts a forger finds.
func forgedOf(f forger, random *rand.Rand, like cookie.Flow, mac func(cookie.Flow, uint32) uint32, tries int) (right, said int) {
	for range tries {
		flow, isn := randomFlow(random, like)
		t, ok := f.predict(forgedMessage(flow, isn))
		if ok {
			said++
		}
		if ok && t == mac(flow, isn) {
			right++
		}
	}
	return right, said
}

const forgeries = 500

func labFlows() []ownFlow {
	return ownFlows(netip.MustParseAddr("10.99.2.2"), netip.MustParseAddrPort("10.99.3.2:80"))
}

// What the attacker calls its own is not where it forges.
func TestForgedSourcesAreNotTheAttackersOwn(t *testing.T) {
	for _, own := range labFlows() {
		if lab.Crowd4.Contains(own.Source.Addr()) {
			t.Errorf("%s", own.Source)
		}
	}
}

func TestOneFlowForgesACRCOfKnownPolynomial(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		all := macs(random)
		for _, like := range flowsOf() {
			for name, mac := range all {
				f := &knownCRC{}
				if _, said := forgedOf(f, random, like, mac, 1); said > 0 {
					t.Error("it forges without having seen anything")
				}
				flow, isn := randomFlow(random, like)
				f.learn(forgedMessage(flow, isn), mac(flow, isn))
				right, _ := forgedOf(f, random, like, mac, forgeries)
				if want := map[string]int{"CRC32": forgeries}[name]; right != want {
					t.Errorf("seed %d, IPv%d: %d of %d of %s are forged, %d should be", seed, like.Family(), right, forgeries, name, want)
				}
			}
		}
	}
}

// The flows of the attack itself: 24 bits of an address, a port, 24 of an ISN, and
// the one that holds them together.
func TestAsManyFlowsAsBitsForgeWhatIsAffine(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 2))
		all := macs(random)
		for name, mac := range all {
			f, all, like := &affine{}, labFlows(), labFlows()[0].Flow
			for i, own := range all {
				if _, said := forgedOf(f, random, like, mac, 10); i <= len(all)/2 && said > 0 {
					t.Fatalf("after %d flows it says something of others", i)
				}
				f.learn(forgedMessage(own.Flow, own.isn), mac(own.Flow, own.isn))
			}
			right, said := forgedOf(f, random, like, mac, forgeries)
			if want := map[string]int{"CRC32": forgeries}[name]; right != want || said != forgeries {
				t.Errorf("seed %d: %d of %d of %s are forged, %d should be; it said %d", seed, right, forgeries, name, want, said)
			}
		}
	}
	if n := len(labFlows()); n != 24+16+24+1 {
		t.Errorf("%d flows of its own", n)
	}
}

// Another key costs whoever has solved the map a single flow more.
func TestAnotherKeyIsForgedAfterOneFlow(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	before, after := macs(random)["CRC32"], macs(random)["CRC32"]
	for name, f := range map[string]forger{"known": &knownCRC{}, "affine": &affine{}} {
		like := labFlows()[0].Flow
		for _, own := range labFlows() {
			f.learn(forgedMessage(own.Flow, own.isn), before(own.Flow, own.isn))
		}
		if right, _ := forgedOf(f, random, like, after, forgeries); right != 0 {
			t.Errorf("%s: %d are forged under a key that it has not met", name, right)
		}
		own := labFlows()[7]
		f.rekeyed(forgedMessage(own.Flow, own.isn), after(own.Flow, own.isn))
		if right, _ := forgedOf(f, random, like, after, forgeries); right != forgeries {
			t.Errorf("%s: %d of %d are forged after a flow under the new key", name, right, forgeries)
		}
	}
}

// Equations that say nothing new, and sums of an even number, say nothing.
func TestWhatWasNotSeenIsNotForged(t *testing.T) {
	f := &affine{}
	f.learn([]byte{1, 0}, 7)
	f.learn([]byte{1, 0}, 7)
	f.learn([]byte{2, 0}, 9)
	if len(f.rows) != 2 {
		t.Errorf("%d equations of two", len(f.rows))
	}
	for message, want := range map[[2]byte]bool{{1, 0}: true, {2, 0}: true, {3, 0}: false, {0, 0}: false, {4, 0}: false} {
		if _, ok := f.predict(message[:]); ok != want {
			t.Errorf("%v: %t, want %t", message, ok, want)
		}
	}
}
