package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// readFirewall looks for rules that lose connections which began without a
// SYN: native mode shows connection tracking none.
func readFirewall() []Obstacle {
	var found []Obstacle
	for _, file := range []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"} {
		if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
			found = append(found, Obstacle{
				Problem: "there are legacy iptables rules, which this agent does not read (" + strings.Join(strings.Fields(string(text)), ", ") + ")",
				Mend:    "see that none drops `ctstate INVALID` or TCP that is new without a SYN: iptables-legacy-save",
				Native:  true,
			})
		}
	}
	text, err := exec.Command("nft", "-j", "list", "ruleset").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return found // without nft there are hardly rules of its making
	}
	if err != nil {
		return append(found, Obstacle{Problem: fmt.Sprintf("nftables rules are unknown: %s", err), Mend: "look: nft list ruleset", Native: true})
	}
	return append(found, statefulRules(text)...)
}

// ruleset is what matters of `nft -j list ruleset`.
type ruleset struct {
	Nftables []struct {
		Rule *rule `json:"rule"`
	} `json:"nftables"`
}

type rule struct {
	Family string            `json:"family"`
	Table  string            `json:"table"`
	Chain  string            `json:"chain"`
	Expr   []json.RawMessage `json:"expr"`
}

// statefulRules finds rules that drop or reject what connection tracking calls
// invalid, or new without a SYN.
func statefulRules(text []byte) []Obstacle {
	var rules ruleset
	if err := json.Unmarshal(text, &rules); err != nil {
		return []Obstacle{{Problem: fmt.Sprintf("nftables rules cannot be read: %s", err), Mend: "look: nft list ruleset", Native: true}}
	}
	var found []Obstacle
	for _, entry := range rules.Nftables {
		if r := entry.Rule; r != nil && r.losesConnections() {
			o := Obstacle{
				Problem: fmt.Sprintf("a rule in nftables chain %s %s %s drops connections that began without a SYN", r.Family, r.Table, r.Chain),
				Mend:    "accept the protected ports before it, or exempt them: table raw, `tcp dport … notrack`",
				Native:  true,
			}
			if !slices.Contains(found, o) {
				found = append(found, o)
			}
		}
	}
	return found
}

func (r *rule) losesConnections() bool {
	return r.mapsInvalidToDrop() || r.drops() && (r.matchesState("invalid") || r.matchesState("new") && r.matchesFlags())
}

func (r *rule) drops() bool {
	return slices.ContainsFunc(r.Expr, func(e json.RawMessage) bool {
		var verdict map[string]json.RawMessage
		return json.Unmarshal(e, &verdict) == nil && drops(verdict)
	})
}

func drops(verdict map[string]json.RawMessage) bool {
	_, drop := verdict["drop"]
	_, reject := verdict["reject"]
	return drop || reject
}

// stateMap is `ct state vmap { invalid : drop, … }`: pairs of a state and a
// verdict.
type stateMap struct {
	Vmap struct {
		Key struct {
			CT struct {
				Key string `json:"key"`
			} `json:"ct"`
		} `json:"key"`
		Data struct {
			Set [][2]json.RawMessage `json:"set"`
		} `json:"data"`
	} `json:"vmap"`
}

func (r *rule) mapsInvalidToDrop() bool {
	return slices.ContainsFunc(r.Expr, func(e json.RawMessage) bool {
		var m stateMap
		if json.Unmarshal(e, &m) != nil || m.Vmap.Key.CT.Key != "state" {
			return false
		}
		return slices.ContainsFunc(m.Vmap.Data.Set, func(pair [2]json.RawMessage) bool {
			var verdict map[string]json.RawMessage
			return strings.Contains(string(pair[0]), `"invalid"`) && json.Unmarshal(pair[1], &verdict) == nil && drops(verdict)
		})
	})
}

func (r *rule) matchesState(state string) bool {
	return slices.ContainsFunc(r.Expr, func(e json.RawMessage) bool {
		return strings.Contains(string(e), `"ct"`) && strings.Contains(string(e), `"state"`) && strings.Contains(string(e), `"`+state+`"`)
	})
}

func (r *rule) matchesFlags() bool {
	return slices.ContainsFunc(r.Expr, func(e json.RawMessage) bool {
		return strings.Contains(string(e), `"protocol"`) && strings.Contains(string(e), `"tcp"`) && strings.Contains(string(e), `"flags"`)
	})
}
