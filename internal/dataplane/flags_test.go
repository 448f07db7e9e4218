package dataplane

import (
	"fmt"
	"strings"
	"testing"

	"smartcookie/test/wire"
)

// flagSets says, for each of the 64 sets of FIN, SYN, RST, PSH, ACK and URG,
// which verdict a segment of an unknown flow gets from an edge and a server.
// Flags are written by their first letters.
var flagSets = []struct {
	sets         string
	edge, server string
}{
	{"S SP SU SPU", "answer_syn", "pass_syn"},
	{"SA SPA SAU SPAU", "drop_unverified_synack", "drop_unverified_synack"},
	{"A PA AU PAU FA FPA FAU FPAU", "drop_bad_cookie", "drop_bad_cookie"},
	{"R RP RU RPU RA RPA RAU RPAU", "drop_unverified_rst", "pass_rst"},

	{"-", "drop_flags_null", "drop_flags_null"},
	{"FS FSP FSU FSPU FSA FSPA FSAU FSPAU", "drop_flags_syn_fin", "drop_flags_syn_fin"},
	{"FSR FSRP FSRU FSRPU FSRA FSRPA FSRAU FSRPAU", "drop_flags_syn_fin", "drop_flags_syn_fin"},
	{"SR SRP SRU SRPU SRA SRPA SRAU SRPAU", "drop_flags_syn_rst", "drop_flags_syn_rst"},
	{"FPU", "drop_flags_xmas", "drop_flags_xmas"},
	{"F FP FU P U PU", "drop_flags_other", "drop_flags_other"},
	{"FR FRP FRU FRPU FRA FRPA FRAU FRPAU", "drop_flags_other", "drop_flags_other"},
}

func flagsOf(letters string) (flags wire.Flags) {
	for i, letter := range "FSRPAU" {
		if strings.ContainsRune(letters, letter) {
			flags |= 1 << i
		}
	}
	return flags
}

func TestEverySetOfFlagsHasItsVerdict(t *testing.T) {
	e, s := newEdge(t), newServer(t)
	seen := make(map[wire.Flags]bool)
	for _, row := range flagSets {
		for _, set := range splitSets(row.sets) {
			seen[flagsOf(set)] = true
			for _, congestion := range []wire.Flags{0, wire.ECE, wire.CWR, wire.ECE | wire.CWR} {
				flags := flagsOf(set) | congestion
				for _, p := range []wire.Packet{flagged(syn4(""), flags), flagged(syn6(""), flags)} {
					name := fmt.Sprintf("%s with %#02x, %v", set, congestion, p.Source.Addr())
					if got := e.outside(p.Frame()); got.verdict != row.edge {
						t.Errorf("%s: the edge's verdict is %s, want %s", name, got.verdict, row.edge)
					}
					if got := s.ingress(p.Frame()); got.verdict != row.server {
						t.Errorf("%s: the server's verdict is %s, want %s", name, got.verdict, row.server)
					}
				}
			}
		}
	}
	if len(seen) != 64 {
		t.Errorf("the table has %d sets of flags, want 64", len(seen))
	}
}

func splitSets(sets string) []string { return strings.Fields(sets) }
