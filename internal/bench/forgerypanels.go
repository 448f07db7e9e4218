package bench

import (
	"fmt"
	"math"

	"smartcookie/internal/cookie"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/keys"
	"smartcookie/internal/lab"
)

func forgeryPanels(taken evaluation.Taken) []evaluation.Panel {
	return []evaluation.Panel{forgedPanel(taken), costPanel(taken), guessPanel(taken), keysPanel(taken), searchPanel(taken)}
}

// labelOf names a series that is a subject in a case.
func labelOf(subject, in string) string { return subject + ", " + in }

func isOurs(subject string) bool { return hashOf[subject] != 0 }

func forgedPanel(taken evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e7-forged", Title: "Forged ACKs that the edge takes for finished handshakes", Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "cookie, and attack"}, Y: evaluation.Axis{Label: "% of forged ACKs"}, Better: evaluation.Lower,
	}
	for _, subject := range []string{byCRC, bySipHash, byHalfSipHash} {
		for _, in := range []string{knowsCRC, knowsLinearity} {
			var paper *evaluation.Paper
			if subject == byCRC && in == knowsCRC {
				paper = &evaluation.Paper{Value: "any 4-tuple", Where: "SmartCookie, appendix A", Differs: "argued there, not run"}
			}
			panel.Series = append(panel.Series, evaluation.Bar(labelOf(subject, in), isOurs(subject), taken.Rounds(subject, in, "taken_percent"), paper)...)
		}
	}
	known, linear := taken.Rounds(byCRC, knowsCRC, "probes"), taken.Rounds(byCRC, knowsLinearity, "probes")
	next, behind := taken.Rounds(byCRC, knowsLinearity, "next_epoch_taken_percent"), taken.Rounds(byCRC, knowsCRC, "known_percent")
	if len(known) > 0 && len(linear) > 0 {
		panel.Note = fmt.Sprintf("The attacker opened %.0f flow of its own where it knew the CRC's polynomial, and %.0f where it knew only that the cookie is linear. "+
			"Then it sent ACKs from addresses whose answers it cannot see. Of the packets behind those, %s%% passed as a connection's. "+
			"In the next epoch, under another key, it opened one flow more, and %s%% of its ACKs were taken again. "+
			"The other cookies met the same attack, from as many flows.",
			known[0], linear[0], evaluation.Short(behind[0]), evaluation.Short(next[0]))
	}
	return panel
}

// costPanel is what one connection in somebody else's name costs.
func costPanel(taken evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e7-cost", Title: "Packets until the edge takes an ACK in somebody else's name", Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "cookie, and attack"}, Y: evaluation.Axis{Label: "packets", Log: true}, Better: evaluation.Higher,
		Note: "Of a CRC: the attacker's own SYNs, and one forged ACK. Of the hashes there is nothing better than to guess: guesses for each that was taken, with the 95% interval, or none where none was taken.",
	}
	for _, in := range []string{knowsCRC, knowsLinearity} {
		packets := taken.Rounds(byCRC, in, "probes")
		for i := range packets {
			packets[i]++
		}
		panel.Series = append(panel.Series, evaluation.Bar(labelOf(byCRC, in), false, packets, nil)...)
	}
	for _, subject := range ourHashes {
		g := guessesOf(taken, subject, guessCheck)
		if g.taken > 0 {
			low, high := poissonInterval(g.taken)
			panel.Series = append(panel.Series, barOf(labelOf(subject, "guessed"), g.guesses/float64(g.taken), g.guesses/high, g.guesses/low))
		}
	}
	expected := 1 / (lab.EdgeMACs * lab.OneMAC)
	paper := &evaluation.Paper{
		Value: "2²⁴ = 16.8 M", Where: "SmartCookie, section 7.1",
		Differs: "24 bits of a cookie are its MAC there, 26 here, and half of all guesses are compared with two epochs' MACs",
	}
	guess := barOf("either hash, expected", expected, expected, expected)
	guess.Paper = paper
	panel.Series = append(panel.Series, guess)
	return panel
}

// barOf is one of ours with an interval that is not the rounds'.
func barOf(subject string, value, low, high float64) evaluation.Series {
	point := evaluation.Point{Median: value, Min: low, Max: high, Rounds: []float64{value}}
	return evaluation.Series{Subject: subject, Ours: true, Points: []evaluation.Point{point}}
}

// guesses are all rounds of a case.
type guesses struct {
	guesses, macs, expected float64
	taken                   uint64
	rounds                  []float64
}

func guessesOf(t evaluation.Taken, subject, in string) (g guesses) {
	g.rounds = t.Rounds(subject, in, "taken")
	for name, sum := range map[string]*float64{"guesses": &g.guesses, "macs": &g.macs, "expected": &g.expected} {
		for _, value := range t.Rounds(subject, in, name) {
			*sum += value
		}
	}
	for _, value := range g.rounds {
		g.taken += uint64(value)
	}
	return g
}

func guessPanel(taken evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e7-guessed", Title: "Blind guesses that were taken, and how many 2⁻²⁶ for each MAC makes one expect", Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "cookie of, and where"}, Y: evaluation.Axis{Label: "guesses"},
		Note: "The spread is the 95% interval of the means that may have shown so many (Poisson, exact): it should hold what is expected. A flood is too slow to tell much; the check alone is tried as often as takes seconds in a quick run and minutes in a full one.",
	}
	for _, in := range []string{guessCheck, guessFlood} {
		for _, subject := range ourHashes {
			g := guessesOf(taken, subject, in)
			if len(g.rounds) == 0 {
				continue
			}
			low, high := poissonInterval(g.taken)
			name := labelOf(subject, in)
			measured, expected := barOf(name, float64(g.taken), low, high), barOf(name+", expected", g.expected, g.expected, g.expected)
			measured.Points[0].Rounds, expected.Ours = g.rounds, false
			panel.Series = append(panel.Series, measured, expected)
			panel.Note += fmt.Sprintf(" %s: %s MACs, %d taken, %s expected, interval %s to %s.",
				name, evaluation.Short(g.macs), g.taken, evaluation.Short(g.expected), evaluation.Short(low), evaluation.Short(high))
		}
	}
	return panel
}

func keysPanel(taken evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e7-keys", Title: "Keys that one core of this machine tries", Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "hash"}, Y: evaluation.Axis{Label: "keys/s"},
		Note: "One thread, by its own CPU time. Whether a key fits is seen from one cookie's 31 bits; the few that do would be tried on two or four others.",
	}
	for _, subject := range ourHashes {
		panel.Series = append(panel.Series, evaluation.Bar(subject, true, taken.Rounds(subject, keySearch, "keys_per_s"), nil)...)
	}
	return panel
}

const secondsOfYear = 365.25 * 24 * 3600

// attackers try keys at rates that no core has.
var attackers = []struct {
	name string
	rate float64
}{{"10⁹ keys/s", 1e9}, {"10¹² keys/s", 1e12}}

// halfOfKeys takes so many years: after them the key is found as likely as not.
func halfOfKeys(hash cookie.Hash, perSecond float64) float64 {
	return math.Pow(2, float64(8*hash.KeyLength()-1)) / perSecond / secondsOfYear
}

func searchPanel(taken evaluation.Taken) evaluation.Panel {
	panel := evaluation.Panel{
		ID: "e7-search", Title: "Time to try half of all keys, beside the time for which a key is used", Kind: evaluation.Bars,
		X: evaluation.Axis{Label: "hash, and attacker"}, Y: evaluation.Axis{Label: "years", Log: true}, Better: evaluation.Higher,
		Note: fmt.Sprintf("Keys change every %d s by default; a cookie is accepted for at most three such epochs. "+
			"Keys of SipHash have 128 bits, of HalfSipHash 64, as in the paper.", keys.EpochSeconds),
	}
	panel.Series = append(panel.Series, evaluation.Bar("an epoch, the life of a key", true, []float64{keys.EpochSeconds / secondsOfYear},
		&evaluation.Paper{Value: "5 to 30 s", Where: "SmartCookie, sections 5 and 7.1", Differs: "there epochs of 1 s share a key; here each has its own"})...)
	for _, subject := range []string{byHalfSipHash, bySipHash} {
		hash := hashOf[subject]
		for _, a := range attackers {
			panel.Series = append(panel.Series, evaluation.Bar(labelOf(subject, a.name), true, []float64{halfOfKeys(hash, a.rate)}, nil)...)
		}
		years := taken.Rounds(subject, keySearch, "keys_per_s")
		for i := range years {
			years[i] = halfOfKeys(hash, years[i])
		}
		panel.Series = append(panel.Series, evaluation.Bar(labelOf(subject, "one core here"), true, years, nil)...)
	}
	return panel
}

var forgeryNotes = []string{
	"Everything ran in network namespaces of this machine. SipHash and HalfSipHash are our split defence with its daemons. CRC32 is our edge with another cookie, made for benchmarks: a CRC32 of a secret and the flow, as on the switches that SmartCookie is compared with (Jaqen, Poseidon). No daemon can be told to use it.",
	"Forged ACKs went over a wire to the edge's program, and its verdict pass_cookie was counted. Before each attack the edge had to take an honest handshake: 0% says that the cookie has stood the attack, not that nothing is taken.",
	"The attack on a polynomial that is known is that of SmartCookie's appendix A. The other one solves a system of linear equations for the 64 bits of a flow in which the attacker varies, and would do the same to any checksum: a secret polynomial, another nonce or another place of it do not help, nor do keys that change.",
	"For who must choose: a cookie that is a checksum stops only those who do not know that it is one. A flood of random ACKs does not show that, for of those a CRC takes as few as a hash.",
	"A guess is worth 2⁻²⁶ for each MAC that it is compared with: an edge compares half of them with one epoch's and half with two. Of a flood of 10 M ACKs a second one is taken about every 5 s, and then is a connection that nobody uses.",
	"Keys were tried on one core by a loop of compiled Go. That a graphics card is 900 times faster is an assumption, from a published run of hashcat's benchmark (mode 10100, SipHash: 79 G/s on an RTX 3090 of 2020); a dozen of them are the 10¹² keys/s of the figure.",
	"A HalfSipHash key has 64 bits. At 10¹² keys/s an epoch of 16 s is enough for one in 1.2 million of them. But every epoch's cookie of one and the same flow can be asked for, so that much can be done beforehand: with tables of some 2⁴³ entries, made once in 2⁶⁴ steps, a key takes some 2⁴³ steps (Hellman 1980; an estimate, not tried here), which is 9 s at that rate. Changing keys does not help against that; the 128 bits of SipHash do, and it is the default.",
}
