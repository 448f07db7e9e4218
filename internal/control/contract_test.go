package control

import (
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/keys"
)

func TestConstantsAreThoseOfTheContract(t *testing.T) {
	header := contractHeader(t)
	for name, have := range map[string]int{
		"CONTROL_VERSION": version, "CONTROL_HEADER": headerBytes, "CONTROL_TAG": tagBytes, "CONTROL_BYTES": messageBytes,
		"CONTROL_HELLO_BYTES": helloBytes, "CONTROL_STATE_BYTES": stateBytes, "CONTROL_FLOWS_BYTES": flowsBytes,
		"CONTROL_PERIOD_SECONDS": keys.ControlPeriodSeconds, "CONTROL_PERIODS_BEHIND": periodsBehind,
		"CONTROL_PERIODS_AHEAD": periodsAhead, "CONTROL_WINDOW": windowSize, "CONTROL_SILENCE_SECONDS": int(Silence / time.Second),
		"CONTROL_TO_AGENT": int(keys.ToAgent), "CONTROL_TO_EDGE": int(keys.ToEdge),
		"CONTROL_HELLO": int(KindHello), "CONTROL_STATE": int(KindState), "CONTROL_FLOWS": int(KindFlows),
		"HELLO_WANTS_ALL": int(helloWantsAll), "HELLO_ENFORCES": int(helloEnforces),
		"STATE_STRICT": int(stateStrict), "STATE_OFF": int(stateOff), "STATE_ANY_LISTENS": int(stateAnyListens),
		"CONTROL_SETUP": int(KindSetup), "CONTROL_CONFIRM": int(KindConfirm), "CONTROL_PROBE": int(KindProbe),
		"CONTROL_PACKET_BYTES": PacketBytes, "FLOWS_LAST": int(flowsLast), "AGENT_UNHEARD": int(Unheard), "AGENT_GRACE": int(Grace),
		"AGENT_ENFORCED": int(Enforced), "AGENT_SILENT": int(Silent),
	} {
		m := regexp.MustCompile(`\b` + name + `\s*=\s*(\w+)`).FindStringSubmatch(header)
		if m == nil {
			t.Errorf("contract.h has no %s", name)
			continue
		}
		if want, err := strconv.ParseInt(m[1], 0, 32); err != nil || int(want) != have {
			t.Errorf("%s is %d, in contract.h %s", name, have, m[1])
		}
	}
}

// enumNames lists the enumerators of an enum of contract.h in their order.
func enumNames(t *testing.T, enum string) []string {
	t.Helper()
	m := regexp.MustCompile(`(?s)enum ` + enum + ` \{(.*?)\};`).FindStringSubmatch(contractHeader(t))
	if m == nil {
		t.Fatalf("contract.h has no enum %s", enum)
	}
	var names []string
	for _, found := range regexp.MustCompile(`(?m)^\t([A-Z0-9_]+)`).FindAllStringSubmatch(m[1], -1) {
		names = append(names, found[1])
	}
	return names
}

func TestNamesAreThoseOfTheContract(t *testing.T) {
	events := enumNames(t, "control_event")
	for i, name := range EventNames() {
		if want := strings.ToLower(strings.TrimPrefix(events[i], "CONTROL_")); name != want {
			t.Errorf("event %d is %s, in contract.h %s", i, name, want)
		}
	}
	if len(events) != len(EventNames())+1 {
		t.Errorf("contract.h has %d events", len(events)-1)
	}
	bits := enumNames(t, "control_disagreement")
	if len(bits) != len(disagreementNames) || 1<<(len(bits)-1) != lastDisagreement {
		t.Fatalf("contract.h has %d disagreements", len(bits))
	}
	for i, name := range disagreementNames {
		if want := strings.ToLower(strings.TrimPrefix(bits[i], "DISAGREE_")); name != want {
			t.Errorf("disagreement %d is %s, in contract.h %s", i, name, want)
		}
	}
}

type vector struct {
	Name      string `json:"name"`
	Secret    string `json:"secret"`
	Direction byte   `json:"direction"`
	Edge      uint32 `json:"edge"`
	Agent     uint32 `json:"agent"`
	Period    uint64 `json:"period"`
	Key       string `json:"key"`
	Kind      byte   `json:"kind"`
	Flags     uint16 `json:"flags"`
	Session   string `json:"session"`
	Echo      string `json:"echo"`
	Counter   uint64 `json:"counter"`
	Body      string `json:"body"`
	Message   string `json:"message"`

	Flows [][2]netip.AddrPort `json:"flows"`
}

func readVectors(t *testing.T) []vector {
	t.Helper()
	text, err := os.ReadFile("../../contract/vectors/control.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []vector `json:"vectors"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for kind := KindHello; kind <= KindProbe; kind++ {
		if !slices.ContainsFunc(file.Vectors, func(v vector) bool { return Kind(v.Kind) == kind }) {
			t.Fatalf("no vector of kind %d", kind)
		}
	}
	return file.Vectors
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func word(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestVectors(t *testing.T) {
	for _, v := range readVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			file, err := keys.Parse("vectors", []byte(keyFile(unhex(t, v.Secret))))
			if err != nil {
				t.Fatal(err)
			}
			key, ok := file.ControlKey("web", keys.Direction(v.Direction), v.Edge, v.Agent, v.Period)
			if !ok || hex.EncodeToString(key[:]) != v.Key {
				t.Fatalf("key %x, want %s", key, v.Key)
			}
			sender := v.Edge
			if keys.Direction(v.Direction) == keys.ToEdge {
				sender = v.Agent
			}
			h := Header{Kind(v.Kind), v.Flags, sender, v.Period, word(t, v.Session), word(t, v.Echo), v.Counter}
			if got := hex.EncodeToString(seal(key, h, unhex(t, v.Body))); got != v.Message {
				t.Errorf("message %s, want %s", got, v.Message)
			}
			back, body, refusal := open(unhex(t, v.Message))
			if refusal != accepted || back != h || hex.EncodeToString(body) != v.Body || !authentic(key, unhex(t, v.Message)) {
				t.Errorf("read as %+v %x", back, body)
			}
			decodes(t, v, body)
		})
	}
}

// decodes wants that a body is read and written again as it is, or read as what
// its vector says.
func decodes(t *testing.T, v vector, body []byte) {
	t.Helper()
	flags, again, ok := v.Flags, body, true
	var flows []Flow
	switch Kind(v.Kind) {
	case KindHello:
		var h Hello
		h, ok = decodeHello(v.Flags, body)
		flags, again = h.encode()
	case KindState:
		var s State
		s, ok = decodeState(v.Flags, body)
		flags, again = s.encode()
	case KindFlows:
		var a announced
		a, ok = decodeFlows(v.Flags, body, nil)
		flows = a.flows
	case KindConfirm:
		var a announced
		ok = a.groups(body)
		flows = a.flows
	case KindSetup, KindProbe:
		flows = make([]Flow, 1)
		flows[0], ok = segmentFlow(body)
	}
	if !ok || flags != v.Flags || string(again) != string(body) {
		t.Errorf("read and written again: flags %d, body %x, %v", flags, again, ok)
	}
	var want []Flow
	for _, f := range v.Flows {
		want = append(want, Flow{Client: f[0], Server: f[1]})
	}
	if !slices.Equal(flows, want) {
		t.Errorf("flows %v, want %v", flows, want)
	}
}
