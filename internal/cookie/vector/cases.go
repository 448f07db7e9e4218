package vector

import (
	"fmt"
	"net/netip"

	"smartcookie/internal/cookie"
)

var (
	families = []cookie.Family{cookie.IPv4, cookie.IPv6}
	hashes   = []cookie.Hash{cookie.SipHash, cookie.HalfSipHash}
)

// Generate makes all vectors, the same ones each time.
func Generate() File {
	f := File{About: about}
	for _, drafts := range [][]draft{
		{workedExample()},
		listedMSS(), roundedMSS(), classes(), scales(), offers(),
		epochs(), slots(), codes(), isns(), laterBytes(), damaged(),
	} {
		for _, d := range drafts {
			f.Vectors = append(f.Vectors, d.vector())
		}
	}
	return f
}

// workedExample is the one of cookie.md.
func workedExample() draft {
	d := newDraft("worked-example", cookie.IPv4, cookie.SipHash)
	d.made.Epoch, d.epoch = 7, 7
	for i := range d.made.Key {
		d.made.Key[i] = byte(i)
	}
	d.slots = []cookie.Slot{d.made}
	d.flow = cookie.Flow{
		Source:      netip.MustParseAddrPort("192.0.2.1:40000"),
		Destination: netip.MustParseAddrPort("198.51.100.2:443"),
	}
	d.isn = 0x89abcdef
	d.syn = windows
	return d
}

// reading names the reading of the code that a client gets.
func reading(timestamps bool) string {
	if timestamps {
		return "timestamps"
	}
	return "no-timestamps"
}

// clientWith returns the usual SYN of a client with or without timestamps.
func clientWith(timestamps bool) cookie.Options {
	if timestamps {
		return linux
	}
	return windows
}

// listedMSS has every MSS that a cookie can carry.
func listedMSS() (drafts []draft) {
	for _, family := range families {
		for _, timestamps := range []bool{true, false} {
			for i, mss := range cookie.MSSValues(family, timestamps) {
				name := fmt.Sprintf("ipv%d-%s-mss-%d", family, reading(timestamps), mss)
				d := newDraft(name, family, hashes[i%2])
				d.syn = clientWith(timestamps)
				d.syn.MSS = mss
				drafts = append(drafts, d)
			}
		}
	}
	return drafts
}

// roundedMSS has values between the listed ones, below the first, above the
// last, and none.
func roundedMSS() (drafts []draft) {
	for _, family := range families {
		for _, timestamps := range []bool{true, false} {
			for i, mss := range []uint16{0, 1, 535, 1219, 1381, 1459, 2000, 9000, 65535} {
				name := fmt.Sprintf("ipv%d-%s-mss-%d-rounded", family, reading(timestamps), mss)
				d := newDraft(name, family, hashes[i%2])
				d.syn = clientWith(timestamps)
				d.syn.MSS = mss
				d.zeroMSS = mss == 0
				drafts = append(drafts, d)
			}
			d := newDraft(fmt.Sprintf("ipv%d-%s-mss-absent", family, reading(timestamps)), family, cookie.SipHash)
			d.syn = clientWith(timestamps)
			d.syn.MSS = 0
			drafts = append(drafts, d)
		}
	}
	return drafts
}

// classes has every set of options of a client without timestamps.
func classes() (drafts []draft) {
	for i, family := range families {
		for _, sack := range []bool{false, true} {
			d := newDraft(fmt.Sprintf("ipv%d-no-timestamps-sack-%v-no-scale", family, sack), family, hashes[i])
			d.syn = cookie.Options{MSS: 1460, SACK: sack}
			drafts = append(drafts, d)
		}
		for _, scale := range []uint8{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 255} {
			d := newDraft(fmt.Sprintf("ipv%d-no-timestamps-sack-scale-%d", family, scale), family, hashes[i])
			d.syn = cookie.Options{MSS: 1460, SACK: true, HasScale: true, Scale: scale}
			drafts = append(drafts, d)
		}
		for _, scale := range []uint8{0, 1, 8} {
			d := newDraft(fmt.Sprintf("ipv%d-no-timestamps-no-sack-scale-%d", family, scale), family, hashes[i])
			d.syn = cookie.Options{MSS: 1460, HasScale: true, Scale: scale}
			drafts = append(drafts, d)
		}
		d := newDraft(fmt.Sprintf("ipv%d-no-timestamps-ecn-is-lost", family), family, hashes[i])
		d.syn = windows
		d.syn.ECN = true
		drafts = append(drafts, d)
	}
	return drafts
}

// scales has the options that stand in the TSval.
func scales() (drafts []draft) {
	for _, scale := range []uint8{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255} {
		d := newDraft(fmt.Sprintf("ipv4-timestamps-sack-scale-%d", scale), cookie.IPv4, hashes[scale%2])
		d.syn.Scale = scale
		drafts = append(drafts, d)
	}
	for bits := range 8 {
		sack, scale, ecn := bits&4 != 0, bits&2 != 0, bits&1 != 0
		name := fmt.Sprintf("ipv6-timestamps-sack-%v-scale-%v-ecn-%v", sack, scale, ecn)
		d := newDraft(name, cookie.IPv6, hashes[bits%2])
		d.syn = cookie.Options{MSS: 1440, Timestamps: true, SACK: sack, HasScale: scale, ECN: ecn}
		if scale {
			d.syn.Scale = 10
		}
		drafts = append(drafts, d)
	}
	return drafts
}

// offers has a client that asks for everything, at services that do not.
func offers() (drafts []draft) {
	for offer := range cookie.OfferAll + 1 {
		d := newDraft(fmt.Sprintf("offer-%04b", offer), families[offer%2], hashes[offer/2%2])
		d.syn.ECN = true
		d.offer = offer
		drafts = append(drafts, d)
	}
	return drafts
}

// epochs has cookies of each age around both windows.
func epochs() (drafts []draft) {
	oldest := map[string]int{edge: 1, server: 2}
	for i, family := range families {
		for _, role := range []string{edge, server} {
			for age := -3; age <= 4; age++ {
				name := fmt.Sprintf("ipv%d-%s-cookie-of-epoch%+d", family, role, -age)
				d := newDraft(name, family, hashes[i])
				d.role = role
				d.epoch = d.made.Epoch + uint64(age)
				d.rejected = age < -1 || age > oldest[role]
				drafts = append(drafts, d)
			}
		}
	}
	first := newDraft("first-epoch", cookie.IPv4, cookie.SipHash)
	first.made.Epoch, first.epoch, first.role = 0, 0, server
	first.slots = []cookie.Slot{first.made}
	return append(drafts, first)
}

// slots has receivers with other keys than the one that made the cookie.
func slots() []draft {
	other := func(d draft, epochs int, hash cookie.Hash) cookie.Slot {
		s := newDraft(d.name+" other key", cookie.IPv4, hash).made
		s.Epoch = d.made.Epoch + uint64(epochs)
		return s
	}
	missing := newDraft("receiver-has-no-key", cookie.IPv4, cookie.SipHash).refused()
	missing.slots = nil

	foreign := newDraft("receiver-has-another-key", cookie.IPv4, cookie.SipHash).refused()
	foreign.slots = []cookie.Slot{other(foreign, 0, cookie.SipHash)}

	nearer := newDraft("the-nearer-candidate-matches", cookie.IPv4, cookie.SipHash)
	nearer.role = server
	nearer.slots = []cookie.Slot{other(nearer, -2, cookie.SipHash), nearer.made}

	farther := newDraft("the-farther-candidate-matches", cookie.IPv6, cookie.HalfSipHash)
	farther.role = server
	farther.epoch += 2
	farther.slots = []cookie.Slot{farther.made, other(farther, 2, cookie.HalfSipHash)}

	before := newDraft("hash-changes-after-the-cookie", cookie.IPv4, cookie.SipHash)
	before.epoch++
	before.slots = []cookie.Slot{before.made, other(before, 1, cookie.HalfSipHash)}

	after := newDraft("hash-changes-between-candidates", cookie.IPv6, cookie.HalfSipHash)
	after.slots = []cookie.Slot{
		other(after, -1, cookie.SipHash), after.made, other(after, 1, cookie.HalfSipHash),
	}
	return []draft{missing, foreign, nearer, farther, before, after, bothMatch()}
}

// bothMatch has two keys that give the flow the same M and another H, found by
// search: the nearer epoch tells the code.
func bothMatch() draft {
	d := newDraft("both-candidates-match-the-nearer-wins", cookie.IPv4, cookie.SipHash)
	d.flow = cookie.Flow{
		Source:      netip.MustParseAddrPort("192.0.2.1:1037"),
		Destination: netip.MustParseAddrPort("198.51.100.2:443"),
	}
	d.isn = 16309823
	d.role = server
	for i := range d.made.Key {
		d.made.Key[i] = byte(i)
	}
	older := d.made
	older.Epoch -= 2
	older.Key[0] = 0xff
	d.slots = []cookie.Slot{older, d.made}
	return d
}

// codes has the sums of code and H around 32, and the largest and smallest.
func codes() (drafts []draft) {
	const code = 31 // MSS 8960
	for i, family := range families {
		for _, sum := range []uint32{31, 32, 33, 47, 62} {
			d := newDraft(fmt.Sprintf("ipv%d-code-31-plus-H-is-%d", family, sum), family, hashes[i])
			d.syn.MSS = 8960
			for cookie.MAC(d.made.Hash, d.made.Key, d.flow, d.isn)>>26&31 != sum-code {
				d.isn++
			}
			drafts = append(drafts, d)
		}
	}
	return drafts
}

// isns has numbers that wrap, and packets with another sequence number.
func isns() (drafts []draft) {
	for i, isn := range []uint32{0, 1, 0x00ffffff, 0x01000000, 0x7fffffff, 0x80000000, 0xff000000, 0xfffffffe, 0xffffffff} {
		d := newDraft(fmt.Sprintf("isn-%#08x", isn), families[i%2], hashes[i/2%2])
		d.isn = isn
		drafts = append(drafts, d)
	}
	for _, added := range []uint32{1 << 24, 0x80000000, 0xff000000} {
		d := newDraft(fmt.Sprintf("seq-plus-%#08x", added), cookie.IPv4, cookie.SipHash)
		d.packet.isn = added
		drafts = append(drafts, d)
	}
	for i, added := range []uint32{1, 517, 1448, 1 << 15, 1 << 23, 1<<24 - 1, 1<<24 + 1, 0xffffffff} {
		d := newDraft(fmt.Sprintf("seq-plus-%#08x", added), families[i%2], hashes[i/2%2]).refused()
		d.packet.isn = added
		drafts = append(drafts, d)
	}
	return drafts
}

// laterBytes has acknowledgements of what the server sends next.
func laterBytes() (drafts []draft) {
	for n := uint32(1); n <= 32; n++ {
		d := newDraft(fmt.Sprintf("cookie-plus-%d", n), families[n%2], hashes[n/2%2]).refused()
		d.packet.cookie = n
		drafts = append(drafts, d)
	}
	return drafts
}

// damaged has acknowledgement numbers that are no cookie of this flow.
func damaged() []draft {
	below := newDraft("cookie-minus-1", cookie.IPv4, cookie.SipHash).refused()
	below.packet.cookie = 0xffffffff

	parity := newDraft("other-parity", cookie.IPv4, cookie.SipHash).refused()
	parity.packet.cookie = 1 << 31

	zero := newDraft("ack-0", cookie.IPv6, cookie.HalfSipHash).refused()
	record := cookie.Encode(cookie.IPv6, zero.syn, zero.offer)
	zero.packet.cookie = -cookie.Make(zero.made, zero.flow, zero.isn, record.Code) - 1
	return []draft{below, parity, zero}
}
