package cookie

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// contractHeader returns the text of contract.h with continued lines joined.
func contractHeader(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../contract/contract.h")
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\\\n", " ")
}

func macroValues(t *testing.T, header, name string) []uint16 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^#define ` + name + `\s+(.*)$`).FindStringSubmatch(header)
	if m == nil {
		t.Fatalf("contract.h has no %s", name)
	}
	var values []uint16
	for field := range strings.SplitSeq(m[1], ",") {
		v, err := strconv.ParseUint(strings.TrimSpace(field), 10, 16)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		values = append(values, uint16(v))
	}
	return values
}

func enumValue(t *testing.T, header, name string) uint64 {
	t.Helper()
	m := regexp.MustCompile(`\b` + name + `\s*=\s*(\w+)`).FindStringSubmatch(header)
	if m == nil {
		t.Fatalf("contract.h has no %s", name)
	}
	v, err := strconv.ParseUint(m[1], 0, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

func TestMSSTablesAreThoseOfTheContract(t *testing.T) {
	header := contractHeader(t)
	for name, values := range map[string][]uint16{
		"MSS4_LONG_VALUES":  mss4Long,
		"MSS6_LONG_VALUES":  mss6Long,
		"MSS4_SHORT_VALUES": mss4Short,
		"MSS6_SHORT_VALUES": mss6Short,
	} {
		if want := macroValues(t, header, name); !slices.Equal(values, want) {
			t.Errorf("%s is %v here, %v there", name, values, want)
		}
		if !slices.IsSorted(values) {
			t.Errorf("%s does not ascend", name)
		}
	}
	for name, values := range map[string][][]uint16{
		"MSS_LONG":  {mss4Long, mss6Long},
		"MSS_SHORT": {mss4Short, mss6Short},
	} {
		for _, v := range values {
			if want := enumValue(t, header, name); uint64(len(v)) != want {
				t.Errorf("%s is %d here, %d there", name, len(v), want)
			}
		}
	}
	if got := enumValue(t, header, "MSS_DEFAULT4"); got != uint64(mss4Long[0]) || got != uint64(mss4Short[0]) {
		t.Errorf("MSS_DEFAULT4 is %d, not the first listed value", got)
	}
	if got := enumValue(t, header, "MSS_DEFAULT6"); got != uint64(mss6Long[0]) || got != uint64(mss6Short[0]) {
		t.Errorf("MSS_DEFAULT6 is %d, not the first listed value", got)
	}
}

func TestConstantsAreThoseOfTheContract(t *testing.T) {
	header := contractHeader(t)
	for name, value := range map[string]uint64{
		"COOKIE_MAC_BITS":       macBits,
		"COOKIE_CODE_MASK":      codeMask,
		"COOKIE_PARITY_SHIFT":   parityShift,
		"COOKIE_MAC_MASK":       macMask,
		"COOKIE_ISN_MASK":       1<<24 - 1,
		"COOKIE_LENGTH4":        uint64(len(flow4.Message(isn))),
		"COOKIE_LENGTH6":        uint64(len(flow6.Message(isn))),
		"HASH_SIPHASH":          uint64(SipHash),
		"HASH_HALFSIPHASH":      uint64(HalfSipHash),
		"EDGE_EPOCHS_BEHIND":    EdgeWindow.Behind,
		"EDGE_EPOCHS_AHEAD":     EdgeWindow.Ahead,
		"SERVER_EPOCHS_BEHIND":  ServerWindow.Behind,
		"SERVER_EPOCHS_AHEAD":   ServerWindow.Ahead,
		"TSVAL_SCALE_MASK":      tsvalScaleMask,
		"TSVAL_SCALE_NONE":      tsvalScaleNone,
		"TSVAL_SACK":            tsvalSACK,
		"TSVAL_ECN":             tsvalECN,
		"TSVAL_MASK":            tsvalMask,
		"CLASS_PLAIN":           classPlain,
		"CLASS_SACK":            classSACK,
		"CLASS_SCALE_MOST":      classScaleMost,
		"CLASS_SCALE_0":         classFirstScale,
		"CLASS_SCALE_2":         classFirstScale + 1,
		"CLASS_SCALE_4":         classFirstScale + 2,
		"CLASS_SCALE_7":         classFirstScale + 3,
		"CLASS_SCALE_8":         classFirstScale + 4,
		"CLASS_SCALE_0_NO_SACK": classScale0NoSACK,
		"CLASS_SHIFT":           classShift,
		"CLASS_MSS_MASK":        classMSSMask,
		"OPTION_TIMESTAMPS":     uint64(OfferTimestamps),
		"OPTION_SACK":           uint64(OfferSACK),
		"OPTION_SCALE":          uint64(OfferScale),
		"OPTION_ECN":            uint64(OfferECN),
	} {
		if want := enumValue(t, header, name); value != want {
			t.Errorf("%s is %#x here, %#x there", name, value, want)
		}
	}
}
