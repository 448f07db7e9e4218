package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"smartcookie/internal/policy"
)

// readFirewall looks for rules that lose connections which began without a
// SYN: native mode shows connection tracking none. And for those that forward
// ports of services, which nothing can protect here.
func readFirewall(services []policy.Service) []Obstacle {
	var found []Obstacle
	for _, file := range []string{"/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"} {
		if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
			found = append(found, Obstacle{
				Name:    "firewall-legacy",
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
		return append(found, Obstacle{Name: "firewall-unknown", Problem: fmt.Sprintf("nftables rules are unknown: %s", err), Mend: "look: nft list ruleset", Native: true})
	}
	return append(found, harmfulRules(text, services)...)
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

// harmfulRules finds rules that drop or reject what connection tracking calls
// invalid, or new without a SYN, and rules that forward ports of services.
func harmfulRules(text []byte, services []policy.Service) []Obstacle {
	var rules ruleset
	if err := json.Unmarshal(text, &rules); err != nil {
		return []Obstacle{{Name: "firewall-unknown", Problem: fmt.Sprintf("nftables rules cannot be read: %s", err), Mend: "look: nft list ruleset", Native: true}}
	}
	var found []Obstacle
	for _, entry := range rules.Nftables {
		r := entry.Rule
		if r == nil {
			continue
		}
		for _, o := range r.obstacles(services) {
			if !slices.Contains(found, o) {
				found = append(found, o)
			}
		}
	}
	return found
}

func (r *rule) obstacles(services []policy.Service) (found []Obstacle) {
	if r.losesConnections() {
		found = append(found, Obstacle{
			Name:    "firewall-stateful",
			Problem: fmt.Sprintf("a rule in nftables chain %s %s %s drops connections that began without a SYN", r.Family, r.Table, r.Chain),
			Mend:    "accept the protected ports before it, or exempt them: table raw, `tcp dport … notrack`",
			Native:  true,
		})
	}
	if port, ok := r.forwards(services); ok {
		found = append(found, Obstacle{
			Name:    "firewall-dnat",
			Problem: fmt.Sprintf("a rule in nftables chain %s %s %s forwards the protected port %d: its connections cannot be made here", r.Family, r.Table, r.Chain, port),
			Mend:    "protect the port where it is forwarded to (`tenants`), or take the rule away",
		})
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

// forwards says whether the rule translates the destination of a protected port,
// and which one. Rules that name no port forward whatever earlier ones leave them.
func (r *rule) forwards(services []policy.Service) (uint16, bool) {
	if !slices.ContainsFunc(r.Expr, translatesDestination) {
		return 0, false
	}
	for _, e := range r.Expr {
		for _, named := range destinationPorts(e) {
			for i := range services {
				for _, own := range services[i].Ports {
					if named.Low <= own.High && own.Low <= named.High {
						return max(named.Low, own.Low), true
					}
				}
			}
		}
	}
	return 0, false
}

// translatesDestination knows nft's own statements and those of iptables-nft.
func translatesDestination(e json.RawMessage) bool {
	var statement map[string]json.RawMessage
	if json.Unmarshal(e, &statement) != nil {
		return false
	}
	_, dnat := statement["dnat"]
	_, redirect := statement["redirect"]
	var target struct{ Type, Name string }
	_ = json.Unmarshal(statement["xt"], &target) // none: the names stay empty
	return dnat || redirect || target.Type == "target" && (target.Name == "DNAT" || target.Name == "REDIRECT")
}

// destinationPorts are those that an expression `tcp dport …` matches.
func destinationPorts(e json.RawMessage) []policy.PortRange {
	var x struct {
		Match struct {
			Op   string `json:"op"`
			Left struct {
				Payload struct{ Protocol, Field string } `json:"payload"`
			} `json:"left"`
			Right json.RawMessage `json:"right"`
		} `json:"match"`
	}
	if json.Unmarshal(e, &x) != nil || x.Match.Op == "!=" || x.Match.Left.Payload.Protocol != "tcp" || x.Match.Left.Payload.Field != "dport" {
		return nil
	}
	return portsOf(x.Match.Right)
}

// portsOf reads a port, a range or a set of both.
func portsOf(value json.RawMessage) (all []policy.PortRange) {
	var port uint16
	if json.Unmarshal(value, &port) == nil {
		return []policy.PortRange{{Low: port, High: port}}
	}
	var many struct {
		Range []uint16          `json:"range"`
		Set   []json.RawMessage `json:"set"`
	}
	if json.Unmarshal(value, &many) != nil {
		return nil
	}
	if len(many.Range) == 2 {
		all = append(all, policy.PortRange{Low: many.Range[0], High: many.Range[1]})
	}
	for _, member := range many.Set { // which is no set itself
		all = append(all, portsOf(member)...)
	}
	return all
}
