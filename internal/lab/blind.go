package lab

// Blind is an attacker who sees no answer, sends numbers at random to a defence,
// and hopes.
type Blind struct {
	Defence string
	Kind    Kind
	// Admits is the edge's verdict with which a guess is taken, and Setup the
	// server's that makes a connection of it; "" where there is no agent there.
	Admits, Setup string
	// Chance is that of one guess.
	Chance float64
	// BesideSYNs: cookies are only looked at beside a flood of SYNs.
	BesideSYNs bool
}

const (
	// OneMAC is the chance of a guess against one key (contract/cookie.md).
	OneMAC = 1.0 / (1 << 26)
	// EdgeMACs is the mean number of keys that an edge tries: of the three epochs
	// that it accepts, two have one parity and one the other.
	EdgeMACs = 1.5
	// proxyNumbers are those that an edge which proxies tries with each key: an ACK's
	// may be one behind (bpf/answer.h).
	proxyNumbers = 2
	// oneChallenge is the chance against one key of a challenge, which has 30 bits.
	oneChallenge = 1.0 / (1 << 30)
	// equalNumbers is how auth-full is met by chance; who knows how it works needs
	// no chance (docs/strategies.md).
	equalNumbers = 1.0 / (1 << 32)
	// kernelCookie is the chance against the kernel's cookie: two minutes of 256, and
	// four values of the 24 bits that have the MSS.
	kernelCookie = 2.0 / (1 << 8) * 4 / (1 << 24)
)

// Blinds has an attacker for each defence at which one can guess. A server asks as
// much as its edge has asked and more, so that the edge's chance is also that of a
// connection.
var Blinds = []Blind{
	{Defence: "split", Kind: ACK, Admits: "pass_cookie", Setup: "setup", Chance: EdgeMACs * OneMAC},
	{Defence: "host", Kind: ACK, Admits: "pass_cookie", Setup: "setup", Chance: EdgeMACs * OneMAC},
	{Defence: "host-kernel", Kind: ACK, Admits: "pass_kernel_cookie", Chance: kernelCookie, BesideSYNs: true},
	{Defence: "proxy", Kind: ACK, Admits: "pass_cookie", Chance: proxyNumbers * EdgeMACs * OneMAC},
	{Defence: "auth-cookie", Kind: ACK, Admits: "answer_reset", Chance: EdgeMACs * OneMAC},
	{Defence: "auth-full", Kind: ACK, Admits: "answer_reset", Chance: equalNumbers},
	{Defence: "auth-rst", Kind: RST, Admits: "drop_challenged", Chance: EdgeMACs * oneChallenge},
}

// BlindAt returns the attacker of a defence; false: nobody guesses there.
func BlindAt(defence string) (Blind, bool) {
	for _, b := range Blinds {
		if b.Defence == defence {
			return b, true
		}
	}
	return Blind{}, false
}
