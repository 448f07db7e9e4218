package lab

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// What XDP on a veth needs. Without receive GRO (or a program) its peer takes
// no redirected frames, and it learns of GRO only if both are up; with transmit
// checksum offload, checksums of what crosses XDP are wrong; with VLAN
// offloads, XDP does not see the tags.
var offloads = map[string]bool{
	"rx-gro":                 true,
	"tx-checksum-ip-generic": false,
	"tx-checksum-sctp":       false,
	"rx-vlan-hw-parse":       false,
	"tx-vlan-hw-insert":      false,
	"rx-vlan-stag-hw-parse":  false,
	"tx-vlan-stag-hw-insert": false,
}

// What a bad wire needs besides: each frame by itself, none merged.
var wireOffloads = map[string]bool{"rx-gro": false}

func (n *Namespace) prepare(port string) error { return n.change(port, offloads) }

func (n *Namespace) change(port string, offloads map[string]bool) error {
	return n.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open ethtool in %s: %w", n.Name, err)
		}
		defer tool.Close()
		if err := tool.Change(port, offloads); err != nil {
			return fmt.Errorf("set offloads of %s in %s: %w", port, n.Name, err)
		}
		return nil
	})
}
