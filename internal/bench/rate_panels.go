package bench

import (
	"fmt"

	"smartcookie/internal/evaluation"
)

// What the papers have of the same, by subject.
var (
	ratePapers = map[string]*evaluation.Paper{
		noCookies: {
			Value: "up to 250 SYN/s", Where: "EuroP4 '20 figure 7",
			Differs: "Linux 5.9 and 4.19 with nginx, whose queue and what becomes of its entries are not told",
		},
		kernelCookies: {Value: "1.3 Mpps", Where: "SmartCookie figure 5", Differs: "all 8 cores of a Xeon D-1541, Linux 5.13"},
		kernelAlways:  {Value: "0.4 Mpps", Where: "EuroP4 '20 figure 7", Differs: "Linux 5.9 and 4.19, one core, tcp_syncookies=1, with requests beside"},
		synproxy: {
			Value: "2 Mpps with 7% of the CPU", Where: "EuroP4 '20, related work, of another test",
			Differs: "eight cores, a NIC; it drops what is not its own",
		},
		genSyncookie: {Value: "about 40% more than the kernel", Where: "Netdev 2020, evaluation", Differs: "a NIC's driver, and 100 flows of requests beside"},
		splitSipHash: {Value: "7.3 Mpps (XDP)", Where: "SmartCookie figure 5", Differs: "all 8 cores of a Xeon D-1541, 10 Gbit/s NIC; the hash of that program is not told"},
		splitHalf:    {Value: "136.9 Mpps", Where: "SmartCookie figure 5", Differs: "a Tofino switch, not a core"},
		splitAES:     {Value: "52 Mpps", Where: "SmartCookie figure 5", Differs: "a Tofino switch, not a core"},
		"auth-full":  {Value: "up to 14 Mpps", Where: "EuroP4 '20, 4.4", Differs: "P4 hardware: an NPU and an FPGA"},
	}
	ratioPapers = map[string]*evaluation.Paper{
		genSyncookie: {Value: "1.4", Where: "Netdev 2020, evaluation", Differs: "the flood that a whole host stands, not one core's"},
		splitSipHash: {Value: "5.6 (XDP)", Where: "SmartCookie figure 5", Differs: "8 cores and a NIC of 10 Gbit/s"},
		splitHalf:    {Value: "105", Where: "SmartCookie figure 5", Differs: "a Tofino switch beside a server"},
		splitAES:     {Value: "40", Where: "SmartCookie figure 5", Differs: "a Tofino switch beside a server"},
	}
)

const (
	perSecond = "SYN per second of one core"
	timesOf   = "times as many as kernel cookies"
)

func ratePanels(t evaluation.Taken) []evaluation.Panel {
	return []evaluation.Panel{
		ratesPanel(t), ratiosPanel(t, "e1-ratio", plainSYNs, true), aimsPanel(t), marginPanel(t), breakdownPanel(t),
		ratiosPanel(t, "e1-options", optionSYNs, false), ratiosPanel(t, "e1-ipv6", ip6SYNs, false), testRunPanel(t),
	}
}

func bars(id, title, unit string, better evaluation.Better, note string) evaluation.Panel {
	return evaluation.Panel{
		ID: id, Title: title, Kind: evaluation.Bars, X: evaluation.Axis{Label: "defence"}, Y: evaluation.Axis{Label: unit}, Better: better, Note: note,
	}
}

func ratesPanel(t evaluation.Taken) evaluation.Panel {
	p := bars("e1-rate", "SYNs answered by one core, none lost, "+plainSYNs, perSecond, evaluation.Higher,
		"XDP_DROP and the swaps are floors, which answer nobody. Without cookies a full queue loses nearly all: shown is what it can answer for long.")
	names, ours := contenderNames(plainSYNs)
	for _, name := range names {
		p.Series = append(p.Series, evaluation.Bar(name, ours[name], t.Rounds(name, plainSYNs, "syn_per_s"), ratePapers[name])...)
	}
	return p
}

// timesKernel are ratios to the kernel's cookies, each to a flood right after it.
func timesKernel(t evaluation.Taken, name, in string) []float64 {
	return evaluation.Ratios(t.Rounds(name, in, "syn_per_s"), t.Rounds(name, in, "kernel_syn_per_s"))
}

func ratiosPanel(t evaluation.Taken, id, in string, papers bool) evaluation.Panel {
	p := bars(id, "Beside the kernel's own cookies, "+in, timesOf, evaluation.Higher, "Each flood beside one of the kernel's cookies right after it.")
	names, ours := contenderNames(in)
	for _, name := range names {
		var paper *evaluation.Paper
		if papers {
			paper = ratioPapers[name]
		}
		if name != noCookies {
			p.Series = append(p.Series, evaluation.Bar(name, ours[name], timesKernel(t, name, in), paper)...)
		}
	}
	return p
}

// aim is how many times as much as a peer ours is to answer.
type aim struct {
	of, peer string
	times    float64
}

var aims = []aim{
	{splitSipHash, kernelCookies, 9}, {splitSipHash, genSyncookie, 1.4}, {splitSipHash, splitRaw, 1.1},
	{splitOnNIC, genSyncookie, 1.4},
}

func aimsPanel(t evaluation.Taken) evaluation.Panel {
	p := bars("e1-aims", "What this project has set itself, "+plainSYNs, "times as many as that peer", evaluation.Higher,
		"Each round against the peer in the same round. Where one falls short, the breakdown below says where a SYN's time goes: no program that answers on this way can be faster than the swaps.")
	p.X.Label = "ours beside a peer"
	for _, a := range aims {
		name := fmt.Sprintf("%s : %s (aim %v)", a.of, a.peer, a.times)
		p.Series = append(p.Series, evaluation.Bar(name, true, t.RatioRounds(a.of, a.peer, plainSYNs, "syn_per_s"), nil)...)
	}
	return p
}

// loopTimes are what a SYN takes in the loop, in ns, round by round.
func loopTimes(t evaluation.Taken, name string) []float64 {
	all := t.Rounds(name, plainSYNs, "syn_per_s")
	for i := range all {
		all[i] = 1e9 / all[i]
	}
	return all
}

func runTimes(t evaluation.Taken, name string) []float64 {
	return t.Rounds(name, testRuns, "ns_per_syn")
}

// differences are taken round by round, as far as both have rounds.
func differences(of, by []float64) []float64 {
	all := make([]float64, 0, min(len(of), len(by)))
	for i := range min(len(of), len(by)) {
		all = append(all, of[i]-by[i])
	}
	return all
}

func marginPanel(t evaluation.Taken) evaluation.Panel {
	p := bars("e1-margin", "What an answer takes above a MAC swap, "+plainSYNs, "ns per SYN", evaluation.Lower,
		"The swap of the same round is subtracted: what is left is the defence's own work, with the sink's count of the answer.")
	floor := loopTimes(t, macSwap)
	names, ours := contenderNames(plainSYNs)
	for _, name := range names {
		if name != noCookies && name != xdpDropFloor && name != macSwap {
			p.Series = append(p.Series, evaluation.Bar(name, ours[name], differences(loopTimes(t, name), floor), nil)...)
		}
	}
	return p
}

func testRunPanel(t evaluation.Taken) evaluation.Panel {
	p := bars("e1-testrun", "The programs alone, by BPF_PROG_TEST_RUN, "+plainSYNs, "ns per SYN", evaluation.Lower,
		"Each run writes a fresh SYN first, which the floor does too: its MAC swap is the least there is. Answers leave nothing, and all that a program reads is in the cache. The rows `until …` are `split, SipHash` cut off behind a step.")
	for _, run := range synRuns() {
		p.Series = append(p.Series, evaluation.Bar(run.name, run.ours, runTimes(t, run.name), nil)...)
	}
	return p
}

func breakdownPanel(t evaluation.Taken) evaluation.Panel {
	p := bars("e1-breakdown", "Where the time of a SYN goes: "+splitSipHash+", "+plainSYNs, "ns per SYN", "",
		"The first three and the last are differences of floods in the loop, the others of test runs of the program cut off behind each step. The last is what only a flood shows: programs and their data that packets and the kernel push out of the cache.")
	p.X.Label = "part"
	loop := func(name string) []float64 { return loopTimes(t, name) }
	run := func(name string) []float64 { return runTimes(t, name) }
	inLoop := differences(loop(splitSipHash), loop(reflected))
	for _, part := range []struct {
		name string
		ns   []float64
	}{
		{"generator, veth pair and XDP_DROP", loop(xdpDropFloor)},
		{"way back by XDP_TX, and its drop", differences(loop(macSwap), loop(xdpDropFloor))},
		{"redirect instead, and the sink's count", differences(loop(reflected), loop(macSwap))},
		{"parse", differences(run(stepParse), run(macSwap))},
		{"clock, service, key", differences(run(stepFind), run(stepParse))},
		{"TCP options", differences(run(stepOptions), run(stepFind))},
		{"SipHash", differences(run(stepHash), run(stepOptions))},
		{"SYN-ACK, checksums, counter", differences(run(splitSipHash), run(stepHash))},
		{"what test runs do not see", differences(inLoop, differences(run(splitSipHash), run(macSwap)))},
	} {
		p.Series = append(p.Series, evaluation.Bar(part.name, true, part.ns, nil)...)
	}
	return p
}

func rateNotes(plan ratePlan) []string {
	return []string{
		"Everything runs on one core of this machine: a generator in the kernel (BPF_PROG_TEST_RUN with live frames, random sources, ports and numbers), a veth pair, the defence at its other end, and a sink that counts the answers. Each defence has a network of its own.",
		"Rates are by the core's CPU time (the generator's thread with the softirqs that run in its name, and the core's ksoftirqd), so that other programs on the machine do not count; the generator has real-time priority. " +
			"A paper's packets come from another machine, by a NIC: compare ratios, not rates.",
		fmt.Sprintf("%d rounds of %s for the 54-byte SYNs, each with as long a flood of the kernel's cookies right after it, %d for those with options and of IPv6, defences in rotated order. Programs that a test places are loaded anew for each flood, daemons are started again every %d rounds (not at all in a quick run): where the kernel happens to put a program changes what it takes.",
			plan.rounds[plainSYNs], plan.span.measure, plan.rounds[optionSYNs], plan.replace),
		"No loss: at least 99.9% of what was offered was answered. On one core the generator waits for the defence, which makes nearly all floods so by themselves; where more is lost three times, rates below are tried (6 steps, each in the middle of what is left).",
		"Before it is measured, each defence has served an HTTP request that came in by the flood's way. The rows with another cookie than the agents know (the kernel's raw helper, AES, CRC) and the one as on a NIC have no server agent: a client's handshake has succeeded with them.",
		fmt.Sprintf("No cookies: a new listener's queue is flooded for %s, in which no SYN-ACK is sent twice. It answers as many SYNs as it has room for, then none; Linux gives an unfinished connection up after %d s. Shown is the queue by that time.", overflowTime, halfOpenSeconds),
		genSyncookie + " is a program of this project that does what the paper's outline says, and answers by XDP_TX; `host, kernel cookies` is this project's own (`host --cookies kernel`), with modes, options and counters.",
		"nft SYNPROXY is netfilter's, in the input hook before a local listener. AES-128 looks its rounds up in tables (BPF has no instructions for it): one block for a flow. CRC-32 likewise; it is no protection, see E7. Both are in the benchmark alone: no agent has them.",
		"On a veth pair our edge sends answers by bpf_redirect, which needs no XDP program at the other end; on a NIC by XDP_TX. The row `XDP_TX as on a NIC` is the same program with that one setting changed.",
	}
}
