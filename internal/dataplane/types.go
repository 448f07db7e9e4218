package dataplane

import (
	"fmt"
	"strings"
	"sync"

	"github.com/cilium/ebpf/btf"
)

// Limits of contract.h that callers plan with.
const (
	MaxDomains = int(edgeServiceLimitsDOMAINS_MAX)
	lineBytes  = 64 // struct filter_line
)

// Forwarding says how an edge passes on what it accepts.
type Forwarding uint32

// The ways of forwarding, as in forward.h.
const (
	Bridge = Forwarding(edgeForwardingFORWARD_BRIDGE)
	Route  = Forwarding(edgeForwardingFORWARD_ROUTE)
	Local  = Forwarding(edgeForwardingFORWARD_LOCAL)
)

// VerdictNames lists the verdicts of contract.h by number, in lower case and
// without their prefix: "drop_bad_cookie".
var VerdictNames = sync.OnceValue(func() []string {
	return enumNames("verdict", "VERDICT_")
})

// TransmitFailureNames lists enum transmit_failure in the same way.
var TransmitFailureNames = sync.OnceValue(func() []string {
	return enumNames("transmit_failure", "TRANSMIT_")
})

// enumNames reads an enum from the types that the compiler left in the object:
// the header stays the only list. Values from <prefix>COUNT on are not names.
func enumNames(enum, prefix string) []string {
	spec, err := loadEdge()
	if err != nil {
		panic(fmt.Sprintf("embedded object: %v", err))
	}
	var e *btf.Enum
	if err := spec.Types.TypeByName(enum, &e); err != nil {
		panic(fmt.Sprintf("embedded object: %v", err))
	}
	var names []string
	for _, v := range e.Values {
		if v.Name == prefix+"COUNT" {
			break
		}
		names = append(names, strings.ToLower(strings.TrimPrefix(v.Name, prefix)))
	}
	return names
}

// VerdictNumber returns the number of a verdict's name.
func VerdictNumber(name string) (int, bool) {
	for i, n := range VerdictNames() {
		if n == name {
			return i, true
		}
	}
	return 0, false
}
