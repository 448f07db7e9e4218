// Package host tests the pure part of the data plane outside the kernel: built
// by the host's compiler with every warning and under its sanitizers, against
// the vectors and against models in Go.
package host

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/cookie/vector"
	"smartcookie/test/wire"
)

const vectors = "../../contract/vectors/"

// sanitized are the flags of every build. BPF unrolls by a pragma, and a test
// calls only some of the functions of a header.
var sanitized = []string{
	"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wconversion", "-Werror",
	"-Wno-unknown-pragmas", "-Wno-unused-function",
	"-fsanitize=address,undefined", "-fno-sanitize-recover=all",
}

// compiler finds one, or ends the test: a skip on a developer's machine, a
// failure where everything must be there.
func compiler(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		lack(t, name)
	}
	return path
}

func lack(t *testing.T, name string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("this test needs %s, and CI has to have it", name)
	}
	t.Skipf("this test needs %s", name)
}

func build(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	path := compiler(t, name)
	program := filepath.Join(t.TempDir(), "program")
	command := exec.Command(path, append(append(arguments, sanitized...), "-o", program)...)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, output)
	}
	return program
}

// program keeps what a first test has built for the others.
var program struct {
	sync.Mutex
	content []byte
}

// run gives the program lines and returns as many.
func run(t *testing.T, lines []string) []string {
	t.Helper()
	command := exec.Command(hostProgram(t))
	command.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	results := strings.Split(strings.TrimSuffix(string(output), "\n"), "\n")
	if err != nil {
		last := lines[min(len(results), len(lines)-1)]
		t.Fatalf("%v, about at %q\n%s", err, last, stderr.String())
	}
	if len(results) != len(lines) {
		t.Fatalf("%d results of %d lines", len(results), len(lines))
	}
	return results
}

func hostProgram(t *testing.T) string {
	t.Helper()
	program.Lock()
	defer program.Unlock()
	path := filepath.Join(t.TempDir(), "host")
	if program.content == nil {
		built, err := os.ReadFile(build(t, "gcc", "c/host.c"))
		if err != nil {
			t.Fatal(err)
		}
		program.content = built
	}
	if err := os.WriteFile(path, program.content, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// check is a line for the program and the result that it must give.
type check struct{ name, line, want string }

func verify(t *testing.T, checks []check) {
	t.Helper()
	if len(checks) == 0 {
		t.Fatal("nothing to verify")
	}
	lines := make([]string, len(checks))
	for i, c := range checks {
		lines[i] = c.line
	}
	for i, got := range run(t, lines) {
		if c := checks[i]; got != c.want {
			t.Errorf("%s: %s\ngot  %s\nwant %s", c.name, c.line, got, c.want)
		}
	}
}

func hexOf(b []byte) string {
	if len(b) == 0 {
		return "-"
	}
	return hex.EncodeToString(b)
}

func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SMARTCOOKIE_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("SMARTCOOKIE_SEED: %v", err)
		}
		seed = given
	}
	t.Logf("SMARTCOOKIE_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestHashesGiveTheDesignersOutputs(t *testing.T) {
	for _, name := range []string{"siphash", "halfsiphash"} {
		text, err := os.ReadFile(vectors + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var official struct {
			Key     string   `json:"key"`
			Outputs []string `json:"outputs"`
		}
		if err := json.Unmarshal(text, &official); err != nil {
			t.Fatal(err)
		}
		var checks []check
		var message []byte
		for i, output := range official.Outputs {
			checks = append(checks, check{
				name: fmt.Sprintf("%s of %d bytes", name, i),
				line: fmt.Sprintf("%s %s %s", name, official.Key, hexOf(message)),
				want: reversed(t, output),
			})
			message = append(message, byte(i))
		}
		verify(t, checks)
	}
}

// reversed turns bytes in the reference's order into the digits of a number.
func reversed(t *testing.T, text string) string {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	number := make([]byte, len(b))
	for i := range b {
		number[len(b)-1-i] = b[i]
	}
	return hex.EncodeToString(number)
}

func readVectors(t *testing.T) []vector.Vector {
	t.Helper()
	text, err := os.ReadFile(vectors + "cookie.json")
	if err != nil {
		t.Fatal(err)
	}
	f, err := vector.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return f.Vectors
}

func flowWords(source, destination netip.AddrPort) string {
	v6 := 0
	if source.Addr().Is6() {
		v6 = 1
	}
	return fmt.Sprintf("%d %x %x %#x", v6, source.Addr().AsSlice(), destination.Addr().AsSlice(),
		uint32(source.Port())<<16|uint32(destination.Port()))
}

func slotWords(t *testing.T, hash string, key []byte, epoch uint64) string {
	t.Helper()
	h, err := cookie.ParseHash(hash)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %x %d", h, key, epoch)
}

func TestCookiesAreThoseOfTheVectors(t *testing.T) {
	var checks []check
	for _, v := range readVectors(t) {
		slot, flow := slotWords(t, v.Hash, v.Key, v.Epoch), flowWords(v.Flow().Source, v.Flow().Destination)
		checks = append(checks,
			check{v.Name, fmt.Sprintf("make %s %s %d %d", slot, flow, v.ISN, v.Code), fmt.Sprintf("%08x %08x", v.MAC, v.Cookie)},
			check{v.Name, fmt.Sprintf("check %s %s %d %d", slot, flow, v.ISN, v.Cookie), fmt.Sprint(v.Code)},
			check{v.Name, fmt.Sprintf("check %s %s %d %d", slot, flow, v.ISN, v.Cookie^1<<31), "invalid"},
			check{v.Name, fmt.Sprintf("check %s %s %d %d", slot, flow, v.ISN, v.Cookie^1), "invalid"},
			check{v.Name, fmt.Sprintf("check %s %s %d %d", slot, flow, v.ISN^0x800000, v.Cookie), "invalid"},
			check{v.Name, fmt.Sprintf("check %s %s %d %d", slot, flow, v.ISN^0x1000000, v.Cookie), fmt.Sprint(v.Code)},
		)
	}
	verify(t, checks)
}

// scaleOf is a window scale as the program writes it.
func scaleOf(o cookie.Options) uint8 {
	if !o.HasScale {
		return 15
	}
	return min(o.Scale, 14)
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func optionWords(o cookie.Options) string {
	return fmt.Sprintf("mss=%d scale=%d sack=%d timestamps=%d ecn=%d",
		o.MSS, scaleOf(o), bit(o.SACK), bit(o.Timestamps), bit(o.ECN))
}

// optionCheck compares the options of a SYN with the models of test and
// contract: what is read, and what a cookie keeps of it.
func optionCheck(name string, family cookie.Family, flags wire.Flags, offer cookie.Offer, options []byte) check {
	o := wire.ReadOptions(options, flags)
	if !o.Timestamps {
		o.TSval, o.TSecr = 0, 0
	}
	record := cookie.Encode(family, o.Options, offer)
	return check{
		name: name,
		line: fmt.Sprintf("options %d %d %d %s", bit(family == cookie.IPv6), flags, offer, hexOf(options)),
		want: fmt.Sprintf("%s tsval=%d tsecr=%d code=%d bits=%d", optionWords(o.Options), o.TSval, o.TSecr, record.Code, record.TSvalBits),
	}
}

func TestOptionsAreEncodedAndDecodedAsInTheVectors(t *testing.T) {
	var checks []check
	for _, v := range readVectors(t) {
		var flags wire.Flags
		if v.SYN.ECN {
			flags = wire.ECE | wire.CWR
		}
		var offer cookie.Offer
		for i, offered := range []bool{v.Offer.Timestamps, v.Offer.SACK, v.Offer.WindowScale, v.Offer.ECN} {
			if offered {
				offer |= 1 << i
			}
		}
		checks = append(checks, optionCheck(v.Name, v.Flow().Family(), flags, offer, v.SYNOptions))
		if v.Decoded == nil {
			continue
		}
		echo := []byte(nil)
		if v.Packet.TSecr != nil {
			echo, _ = hex.DecodeString(fmt.Sprintf("0101080a%08x%08x", 1, uint32(*v.Packet.TSecr)))
		}
		want := cookie.Options{MSS: *v.Decoded.MSS, Timestamps: v.Decoded.Timestamps, SACK: v.Decoded.SACK, ECN: v.Decoded.ECN}
		if v.Decoded.WindowScale != nil {
			want.HasScale, want.Scale = true, *v.Decoded.WindowScale
		}
		checks = append(checks, check{v.Name,
			fmt.Sprintf("decode %d %d %s", bit(v.Family == "ipv6"), v.Code, hexOf(echo)), optionWords(want)})
	}
	verify(t, checks)
}

// fuzzed is how many inputs a differential test compares.
func fuzzed() int {
	if testing.Short() {
		return 10_000
	}
	return 200_000
}

func TestOddOptionsAreReadAsTheModelReadsThem(t *testing.T) {
	source := wire.Source{Rand: newRandom(t)}
	var checks []check
	for i := range fuzzed() {
		options := source.Options()
		if i%4 == 0 {
			options = source.Noise()[:4*source.IntN(4)]
		}
		family := []cookie.Family{cookie.IPv4, cookie.IPv6}[i&1]
		checks = append(checks, optionCheck("odd options", family, wire.Flags(source.Uint32()), cookie.Offer(source.IntN(16)), options))
	}
	verify(t, checks)
}

func source(t *testing.T) wire.Source {
	t.Helper()
	addresses := []netip.Addr{
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.5"),
		netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("::ffff:192.0.2.1"),
	}
	return wire.Source{Rand: newRandom(t), Clients: addresses, Servers: addresses, Ports: []uint16{0, 443, 65535}}
}

func frameCheck(frame []byte) check {
	s := wire.Read(frame)
	want := fmt.Sprintf("kind=%d", s.Kind)
	if s.Kind == wire.KindTCP {
		want += fmt.Sprintf(" %x %x %04x%04x %08x %08x %02x %d %d %d", s.Source.AsSlice(), s.To.AsSlice(),
			s.SourcePort, s.ToPort, s.Seq, s.Ack, s.Flags, s.NetworkAt, s.TransportAt, 20+len(s.Options))
	}
	return check{"frame", "frame " + hexOf(frame), want}
}

func TestOddFramesAreReadAsTheModelReadsThem(t *testing.T) {
	s := source(t)
	var checks []check
	for range fuzzed() / 4 {
		frame := s.Packet().Frame()
		checks = append(checks, frameCheck(frame), frameCheck(s.Mutate(bytes.Clone(frame))), frameCheck(s.Mutate(bytes.Clone(frame))))
	}
	verify(t, checks)
}

func TestFramesCutAtEveryLengthAreReadAsTheModelReadsThem(t *testing.T) {
	s := source(t)
	var checks []check
	for range 200 {
		frame := s.Packet().Frame()
		for length := range frame {
			checks = append(checks, frameCheck(frame[:length]))
		}
	}
	verify(t, checks)
}

// The program makes sure that an answer fits its room exactly; here its bytes
// are compared. The cookie and TSval are the caller's.
func TestAnswersAreThoseOfTheModel(t *testing.T) {
	s := source(t)
	var checks []check
	for range fuzzed() / 20 {
		p := s.Packet()
		p.Flags = wire.SYN | p.Flags&(wire.ECE|wire.CWR)
		seen := wire.Read(p.Frame())
		if seen.Kind != wire.KindTCP {
			continue
		}
		offer, ticks := cookie.Offer(s.IntN(16)), s.Uint32()&^63
		answerer := wire.Answerer{
			Slot: cookie.Slot{Hash: cookie.SipHash, WindowScale: 9}, Offer: offer, MSS4: 1460, MSS6: 1460, Window: 65535,
		}
		want := answerer.Answer(p.Frame(), seen, uint64(ticks)<<20)
		answer := wire.Read(want)
		tsval := wire.ReadOptions(answer.Options, 0).TSval
		checks = append(checks, check{"answer",
			fmt.Sprintf("answer %d %d %d %s", offer, answer.Seq, tsval, hexOf(p.Frame())), hexOf(want[answer.NetworkAt:])})
	}
	verify(t, checks)
}

func TestFuzzerFindsNoFault(t *testing.T) {
	if testing.Short() {
		t.Skip("a fuzzer needs time")
	}
	resources, err := exec.Command(compiler(t, "clang-19"), "-print-resource-dir").Output()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(strings.TrimSpace(string(resources)), "include", "fuzzer")); err != nil {
		lack(t, "clang's fuzzer (libclang-rt-19-dev)")
	}
	fuzzer := build(t, "clang-19", "c/fuzz.c", "-fsanitize=fuzzer")
	corpus := t.TempDir()
	s := source(t)
	for i := range 200 {
		if err := os.WriteFile(filepath.Join(corpus, strconv.Itoa(i)), s.Packet().Frame(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	seed := fmt.Sprintf("-seed=%d", s.Uint32()|1)
	command := exec.Command(fuzzer, corpus, seed, "-max_total_time=5", "-max_len=400", "-print_final_stats=1")
	command.Dir = corpus
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", seed, err, output)
	}
	for line := range strings.Lines(string(output)) {
		if strings.HasPrefix(line, "stat::number_of_executed_units") {
			t.Log(seed, strings.TrimSpace(line))
		}
	}
}
