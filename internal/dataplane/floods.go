package dataplane

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"smartcookie/internal/policy"
)

// answerBudgets is how many networks are counted apart: enough that a flood
// with sources from everywhere leaves each of them some 40 tries a second of
// ten million.
const answerBudgets = 1 << 18

// windowNS is the time in which answers are counted (ANSWER_WINDOW_SHIFT).
const windowNS = 1 << 30

func (c *EdgeConfig) limitsPackets() bool {
	return slices.ContainsFunc(c.Services, func(s policy.Service) bool { return s.PacketsPerFlow > 0 })
}

// flowBudgets is how many budgets there are in each of the two rows: one for
// each flow that the filter is made for.
func (c *EdgeConfig) flowBudgets() uint32 {
	return 1 << bits.Len32(uint32(max(c.Flows, 1)-1))
}

// shapeBudgets makes room for what is limited, and for nothing else.
func (e *Edge) shapeBudgets(spec *ebpf.CollectionSpec) {
	if e.config.limitsPackets() {
		spec.Maps["flow_budgets"].MaxEntries = 2 * e.config.flowBudgets()
	}
	if e.config.Floods.Answers > 0 {
		spec.Maps["answer_budgets"].MaxEntries = answerBudgets
	}
}

func (c *EdgeConfig) floodConstants() map[string]any {
	f := &c.Floods
	all := map[string]any{
		"ttl_matters":     slices.ContainsFunc(c.Services, func(s policy.Service) bool { return s.MinTTL > 0 }),
		"packets_limited": c.limitsPackets(),
		"other_tcp_drops": f.DropOther,
	}
	if c.limitsPackets() {
		all["flow_budget_mask"] = c.flowBudgets() - 1
	}
	if f.Answers > 0 {
		all["answers_per_window"] = uint32(min(uint64(f.Answers)*windowNS/1e9, math.MaxUint32))
		all["answer_budget_mask"] = uint32(answerBudgets - 1)
		all["answer_network_mask4"] = uint32(math.MaxUint32) << (32 - f.Network4)
		all["answer_network_mask6"] = uint64(math.MaxUint64) << (64 - f.Network6)
	}
	return all
}

// prepareFloods fills what limits and lists need before the first packet.
func (e *Edge) prepareFloods() error {
	var key [edgeFilterLayoutFILTER_KEYS]uint64
	if err := binary.Read(rand.Reader, binary.LittleEndian, &key); err != nil {
		return fmt.Errorf("make key of budgets: %w", err)
	}
	if err := e.objects.BudgetKey.Put(uint32(0), key); err != nil {
		return fmt.Errorf("write key of budgets: %w", err)
	}
	if err := e.writePlaces(); err != nil {
		return err
	}
	return e.configureLists()
}

// configureLists has the lists hold what the configuration says.
func (e *Edge) configureLists() error {
	f := &e.config.Floods
	for list, wanted := range map[List][]netip.Prefix{Deny: f.Deny, Allow: f.Allow} {
		if err := e.lists.configure(list, wanted); err != nil {
			return err
		}
	}
	return e.lists.refreshState(f.Places() > 0)
}

func (e *Edge) writePlaces() error {
	put := func(all []netip.Prefix, place edgePlace) error {
		for _, prefix := range all {
			if err := putPrefix(e.objects.Places4, e.objects.Places6, prefix, place); err != nil {
				return err
			}
		}
		return nil
	}
	if err := put(e.config.Floods.InsideOnly, edgePlace{}); err != nil {
		return err
	}
	for i, b := range e.config.Floods.Bypass {
		place := edgePlace{Port: uint32(b.Port), Bypass: uint32(i), IntervalNs: interval(b.SYNs)}
		if err := put(b.Sources, place); err != nil {
			return err
		}
	}
	return nil
}

// Occupancies returns how full the lists of sources are.
func (e *Edge) Occupancies() []Occupancy { return e.lists.Occupancies() }

// SweepLists removes the prefixes that have expired.
func (e *Edge) SweepLists() (int, error) { return e.lists.Sweep() }
