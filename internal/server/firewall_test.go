package server

import (
	"fmt"
	"strings"
	"testing"
)

// Rules as `nft -j list ruleset` prints them.
const (
	dropInvalid     = `{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "invalid"}}, {"drop": null}`
	dropInvalidSet  = `{"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "tcp"}}, {"match": {"op": "==", "left": {"ct": {"key": "state"}}, "right": {"set": ["invalid", "untracked"]}}}, {"drop": null}`
	dropInvalidMap  = `{"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [["invalid", {"drop": null}], ["established", {"accept": null}]]}}}`
	acceptByMap     = `{"vmap": {"key": {"ct": {"key": "state"}}, "data": {"set": [["invalid", {"accept": null}], ["untracked", {"drop": null}]]}}}`
	rejectNewNoSYN  = `{"match": {"op": "!=", "left": {"&": [{"payload": {"protocol": "tcp", "field": "flags"}}, ["fin", "syn", "rst", "ack"]]}, "right": "syn"}}, {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "new"}}, {"counter": {"packets": 0, "bytes": 0}}, {"reject": {"type": "tcp reset"}}`
	dropNewNoSYN    = `{"match": {"op": "!=", "left": {"payload": {"protocol": "tcp", "field": "flags"}}, "right": "syn"}}, {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "new"}}, {"drop": null}`
	acceptKnown     = `{"match": {"op": "==", "left": {"ct": {"key": "state"}}, "right": {"set": ["established", "related"]}}}, {"accept": null}`
	acceptNewSSH    = `{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "new"}}, {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}, {"accept": null}`
	dropTelnet      = `{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 23}}, {"drop": null}`
	dropNewTelnet   = `{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "new"}}, {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 23}}, {"drop": null}`
	countInvalid    = `{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "invalid"}}, {"counter": {"packets": 0, "bytes": 0}}`
	dropOtherFlags  = `{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "flags"}}, "right": 0}}, {"drop": null}`
	rulesetHead     = `{"metainfo": {"version": "1.0.6"}}, {"table": {"family": "inet", "name": "f", "handle": 1}}, {"chain": {"family": "inet", "table": "f", "name": "input", "handle": 1}}`
	dropsBySYNCheck = "a rule in nftables chain inet f input drops connections that began without a SYN"
)

func rules(all ...string) []byte {
	text := rulesetHead
	for i, expressions := range all {
		text += fmt.Sprintf(`, {"rule": {"family": "inet", "table": "f", "chain": "input", "handle": %d, "expr": [%s]}}`, i+2, expressions)
	}
	return []byte(`{"nftables": [` + text + `]}`)
}

func TestRuleThatDropsConnectionsWithoutASYNIsFound(t *testing.T) {
	for name, rule := range map[string]string{
		"invalid": dropInvalid, "invalid among others": dropInvalidSet, "invalid by map": dropInvalidMap,
		"reject new": rejectNewNoSYN, "drop new": dropNewNoSYN,
	} {
		found := harmfulRules(rules(acceptKnown, rule, dropTelnet), webService(0))
		if len(found) != 1 || found[0].Problem != dropsBySYNCheck || found[0].Mend == "" || found[0].Fatal {
			t.Errorf("%s: %+v", name, found)
		}
	}
}

func TestRuleThatHurtsNobodyIsNotReported(t *testing.T) {
	if found := harmfulRules(rules(acceptKnown, acceptNewSSH, dropTelnet, dropNewTelnet, countInvalid, dropOtherFlags, acceptByMap), webService(0)); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	if found := harmfulRules([]byte(`{"nftables": []}`), nil); len(found) > 0 {
		t.Errorf("no rules: %+v", found)
	}
}

func TestSeveralRulesOfAChainAreReportedOnce(t *testing.T) {
	if found := harmfulRules(rules(dropInvalid, dropNewNoSYN), nil); len(found) != 1 {
		t.Errorf("%+v", found)
	}
}

func TestRulesThatCannotBeReadAreReported(t *testing.T) {
	found := harmfulRules([]byte("nonsense"), nil)
	if len(found) != 1 || !strings.Contains(found[0].Problem, "cannot be read") {
		t.Errorf("%+v", found)
	}
}

// forwarding is a rule that translates the destination of TCP to some ports.
func forwarding(ports, statement string) string {
	return `{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": ` + ports + `}}, {"counter": {"packets": 0, "bytes": 0}}, ` + statement
}

func TestRuleThatForwardsAProtectedPortIsFound(t *testing.T) {
	const dnat, redirect = `{"dnat": {"addr": "10.0.0.2", "port": 8080}}`, `{"redirect": {"port": 9}}`
	for _, c := range []struct {
		rule string
		port string // none: the rule hurts nobody
	}{
		{forwarding("80", dnat), "80"},
		{forwarding("80", redirect), "80"},
		{forwarding("80", `{"xt": {"type": "target", "name": "DNAT"}}`), "80"},
		{forwarding(`{"range": [8050, 9000]}`, dnat), "8050"},
		{forwarding(`{"set": [22, {"range": [70, 90]}]}`, dnat), "80"},
		{forwarding("443", dnat), ""},
		{forwarding("80", `{"accept": null}`), ""},
		{forwarding("80", `{"xt": {"type": "target", "name": "LOG"}}`), ""},
		{forwarding("80", `{"xt": null}`), ""},
		{strings.Replace(forwarding("80", dnat), `"=="`, `"!="`, 1), ""},
		{strings.Replace(forwarding("80", dnat), "dport", "sport", 1), ""},
		{dnat, ""},
	} {
		found := harmfulRules(rules(acceptKnown, c.rule), webService(0))
		if c.port == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 || found[0].Name != "firewall-dnat" || found[0].Native || !strings.Contains(found[0].Problem, "forwards the protected port "+c.port+":") {
			t.Errorf("%s: %+v, want port %q", c.rule, found, c.port)
		}
	}
}
