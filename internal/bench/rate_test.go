package bench

import (
	"context"
	"crypto/aes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"smartcookie/internal/cookie"
	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// answerOf is the SYN-ACK of a variant of the edge to a SYN.
func answerOf(t *testing.T, b *testBench, v variant, flow cookie.Flow) []byte {
	t.Helper()
	frame := frameOf(flow, flagSYN, 1000, 0, nil)
	c := testCase{prog: "outside", frame: frame, expect: xdpTX}
	loaded, err := b.loadOne(v, c.program())
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	c.from = &loaded
	if err := c.prepare(loaded.Programs[c.program()]); err != nil {
		t.Fatal(err)
	}
	run := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, 256)}
	if _, err := loaded.Programs[c.program()].Run(run); err != nil {
		t.Fatal(err)
	}
	return run.DataOut
}

// messageOf are the words of a cookie's message, as the CPU stores them.
func messageOf(f cookie.Flow, isn uint32) (message []byte) {
	var words []uint32
	for _, a := range [][]byte{f.Source.Addr().AsSlice(), f.Destination.Addr().AsSlice()} {
		for ; len(a) > 0; a = a[4:] {
			words = append(words, binary.BigEndian.Uint32(a))
		}
	}
	length := uint32(len(words)*4 + 7)
	words = append(words, uint32(f.Source.Port())<<16|uint32(f.Destination.Port()), length<<24|isn&0xffffff)
	for _, w := range words {
		message = binary.LittleEndian.AppendUint32(message, w)
	}
	return message
}

// aesMAC is CBC-MAC by the standard library.
func aesMAC(t *testing.T, message []byte) uint32 {
	t.Helper()
	block, err := aes.NewCipher(aesBenchKey[:])
	if err != nil {
		t.Fatal(err)
	}
	message = append(message, make([]byte, -len(message)&15)...)
	mac := make([]byte, 16)
	for ; len(message) > 0; message = message[16:] {
		for i := range mac {
			mac[i] ^= message[i]
		}
		block.Encrypt(mac, mac)
	}
	return binary.LittleEndian.Uint32(mac)
}

func TestVariantsCookiesAreThoseOfTheStandardLibrary(t *testing.T) {
	needRoot(t)
	b, err := newTestBench(cookie.SipHash, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	for _, flow := range flowsOf() {
		message := messageOf(flow, 1000)
		secret := binary.LittleEndian.Uint32(b.slot.Key[:])
		for _, v := range []struct {
			name string
			variant
			mac uint32
		}{
			{"AES", aesCookie, aesMAC(t, slices.Clone(message))},
			{"CRC", crcCookie, crc32.ChecksumIEEE(append(binary.LittleEndian.AppendUint32(nil, secret), message...))},
		} {
			const macMask = 1<<26 - 1
			answer := answerOf(t, b, v.variant, flow)
			tcp := answer[len(answer)-24:] // the header and MSS
			if got := binary.BigEndian.Uint32(tcp[4:]); (got^v.mac)&macMask != 0 {
				t.Errorf("%s, IPv%d: MAC %#x, want %#x", v.name, flow.Family(), got&macMask, v.mac&macMask)
			}
		}
	}
}

// defenceOf answers so many SYNs a second at most.
func defenceOf(most float64, tried *[]lab.Rate) func(lab.Rate) (taken, error) {
	return func(rate lab.Rate) (taken, error) {
		*tried = append(*tried, rate)
		return taken{uint64(rate), uint64(math.Min(float64(rate), most)), time.Second, time.Second}, nil
	}
}

func TestLossFreeRateIsFoundBelowWhatIsAnsweredUnderLoss(t *testing.T) {
	var tried []lab.Rate
	first := taken{2_000_000, 500_000, time.Second, time.Second} // overload costs it answers
	best, err := lossFree(first, defenceOf(450_000, &tried))
	if err != nil {
		t.Fatal(err)
	}
	if best.offered < 440_000 || best.offered > 450_000*1001/1000 {
		t.Errorf("found %d after %v, want about 450,000", best.offered, tried)
	}
	if _, err := lossFree(first, defenceOf(0, &tried)); !errors.Is(err, errLosses) {
		t.Errorf("a defence that answers nothing: %v", err)
	}
}

// ratesOf gives each cell of a plan a figure.
func ratesOf(trial *evaluation.Trial, figure func(evaluation.CellID) evaluation.Figures) evaluation.Taken {
	all := make(evaluation.Taken)
	for _, c := range trial.Cells {
		all[c.CellID] = figure(c.CellID)
	}
	return all
}

func TestRatePanelsAreRatiosOfTheSameRound(t *testing.T) {
	trial := prepareRate(planOf(evaluation.Quick))
	rates := map[string]float64{xdpDropFloor: 16e6, macSwap: 8e6, reflected: 6.4e6, kernelCookies: 1e6, splitSipHash: 5e6, genSyncookie: 4e6}
	steps := map[string]float64{macSwap: 10, stepParse: 13, stepFind: 33, stepOptions: 36, stepHash: 50, splitSipHash: 65}
	noise := []float64{1, 2, 0.5} // of a round, which slows all alike
	panels := trial.Panels(ratesOf(trial, func(id evaluation.CellID) evaluation.Figures {
		if id.Case == testRuns {
			return evaluation.Figures{"ns_per_syn": steps[id.Subject] * noise[0]}
		}
		return evaluation.Figures{"syn_per_s": max(rates[id.Subject], 1000) / noise[id.Round], "kernel_syn_per_s": rates[kernelCookies] / noise[id.Round]}
	}))
	want := map[string][3]float64{ // least, median, most
		"e1-ratio/" + splitSipHash:                                      {5, 5, 5},
		"e1-aims/" + splitSipHash + " : " + genSyncookie + " (aim 1.4)": {1.25, 1.25, 1.25},
		"e1-margin/" + splitSipHash:                                     {37.5, 75, 150},
		"e1-rate/" + kernelCookies:                                      {5e5, 1e6, 2e6},
		"e1-breakdown/SipHash":                                          {14, 14, 14},
		"e1-breakdown/generator, veth pair and XDP_DROP":                {31.25, 62.5, 125},
		"e1-breakdown/redirect instead, and the sink's count":           {15.625, 31.25, 62.5},
	}
	seen := make(map[string]bool)
	for _, p := range panels {
		if seen[p.ID] || len(p.Series) == 0 {
			t.Errorf("panel %s is there twice, or empty", p.ID)
		}
		seen[p.ID] = true
		for _, s := range p.Series {
			key := p.ID + "/" + s.Subject
			w, ok := want[key]
			point := s.Points[0]
			if got := [3]float64{point.Min, point.Median, point.Max}; ok && got != w {
				t.Errorf("%s is %v, want %v", key, got, w)
			}
			delete(want, key)
		}
	}
	if len(want) > 0 {
		t.Errorf("not shown: %v", want)
	}
}

// The parts of a SYN's time are all of it.
func TestBreakdownAddsUp(t *testing.T) {
	trial := prepareRate(planOf(evaluation.Full))
	figure := func(id evaluation.CellID) evaluation.Figures { // any
		n := float64(len(id.Subject)*7%23 + len(id.Case) + id.Round)
		return evaluation.Figures{"syn_per_s": 1e6 * n, "ns_per_syn": 3 * n}
	}
	all := ratesOf(trial, figure)
	sum := 0.0
	for _, s := range breakdownPanel(all).Series {
		sum += s.Points[0].Rounds[0]
	}
	if want := loopTimes(all, splitSipHash)[0]; math.Abs(sum-want) > 1e-6 {
		t.Errorf("the parts of round 1 are %v ns, the whole %v", sum, want)
	}
}

func TestEachSubjectTakesTurns(t *testing.T) {
	for _, effort := range []evaluation.Effort{evaluation.Quick, evaluation.Full} {
		plan := planOf(effort)
		trial := prepareRate(plan)
		rounds, takes := make(map[string]int), time.Duration(0)
		for _, c := range trial.Cells {
			key := fmt.Sprintf("%s, %s", c.Subject, c.Case)
			if c.Round != rounds[key] {
				t.Errorf("%s: round %d comes after %d", key, c.Round, rounds[key])
			}
			rounds[key]++
			takes += c.Takes
		}
		for _, subject := range []string{kernelCookies, splitSipHash, synproxy} {
			for _, in := range []string{plainSYNs, optionSYNs} {
				if key := fmt.Sprintf("%s, %s", subject, in); rounds[key] != plan.rounds[in] {
					t.Errorf("%s has %d rounds, want %d", key, rounds[key], plan.rounds[in])
				}
			}
		}
		if most := map[evaluation.Effort]time.Duration{evaluation.Quick: 45 * time.Second, evaluation.Full: 10 * time.Minute}[effort]; takes > most {
			t.Errorf("a %s run takes %s, at most %s", effort, takes, most)
		}
		if first := trial.Cells[0]; first.Subject == trial.Cells[len(trial.Cells)-1].Subject {
			t.Errorf("%s comes first and last", first.Subject)
		}
	}
}

// One defence of each kind is flooded, slowly enough for a busy machine: what it is
// named for is seen by the contender itself.
func TestContendersOfEachKindAnswer(t *testing.T) {
	needRoot(t)
	kinds := map[string]bool{xdpDropFloor: true, macSwap: true, reflected: true, noCookies: true, kernelCookies: true, genSyncookie: true, splitCRC: true}
	for _, c := range contenders() {
		if !kinds[c.name] {
			continue
		}
		share, err := answeredShare(t.Context(), c)
		if err := errors.Join(err, c.stop()); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		// The sink counts what is redirected to it, too.
		if answers := c.kind != floor || c.name == reflected; answers != (share > 0.5) || !answers && share != 0 {
			t.Errorf("%s has answered %v of the SYNs", c.name, share)
		}
	}
}

func answeredShare(ctx context.Context, c *contender) (share float64, err error) {
	if err := c.start(ctx); err != nil {
		return 0, err
	}
	if c.kind == overflows { // has no listener yet, and answers the first SYNs alone
		f, err := c.overflow(ctx, lab.FloodOptions{})
		if f["queue_syn"] > 0 {
			share = 1
		}
		return share, err
	}
	err = c.placed(func() error {
		t, err := c.flood(ctx, lab.FloodOptions{Rate: 10_000}, span{10 * time.Millisecond, 100 * time.Millisecond})
		share = t.share()
		return err
	})
	return share, err
}

// Without its rules the listener behind SYNPROXY would answer, too.
func TestSynproxyItselfAnswers(t *testing.T) {
	needRoot(t)
	all := contenders()
	c := all[slices.IndexFunc(all, func(c *contender) bool { return c.name == synproxy })]
	defer func() {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.measure(t.Context(), c, lab.FloodOptions{}, span{10 * time.Millisecond, 30 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	text, err := c.lab.Edge.Command(t.Context(), "cat", "/proc/net/stat/synproxy").Output()
	if err != nil {
		t.Fatal(err)
	}
	var received uint64
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] { // one for each CPU
		n, err := strconv.ParseUint(strings.Fields(line)[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		received += n
	}
	if received == 0 {
		t.Errorf("SYNPROXY has met no SYN: %s", text)
	}
}
