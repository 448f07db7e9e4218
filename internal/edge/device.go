package edge

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"smartcookie/internal/dataplane"
)

// DeviceError says what of a device stands in the way of XDP, and what mends
// it.
type DeviceError struct {
	Name                  string // of its kind, as docs/check.md has it
	Device, Problem, Mend string
}

func (e *DeviceError) Error() string {
	return fmt.Sprintf("interface %s: %s; mend it: %s", e.Device, e.Problem, e.Mend)
}

// ExitCode is that of wrong input: the machine is not set up for this.
func (e *DeviceError) ExitCode() int { return 2 }

// offload is a feature of a device that does not go together with XDP.
type offload struct {
	name, feature, problem, switchName string
}

var mergingOffloads = []offload{
	{"offload-merging", "rx-lro", "large receive offload merges packets before XDP sees them, and what it forwards is corrupt", "lro"},
	{"offload-merging", "rx-gro-hw", "hardware GRO merges packets before XDP sees them, and what it forwards is corrupt", "rx-gro-hw"},
}

var strippingOffload = offload{
	"offload-vlan", "rx-vlan-hw-parse", "VLAN tags are stripped on receipt and hidden from XDP: tagged frames look untagged", "rxvlan",
}

// CheckDevice refuses a device whose offloads break XDP. Stripped VLAN tags
// matter where there may be any: on a bridge, and below VLAN devices.
func CheckDevice(name string, generic, bridge bool, log *slog.Logger) error {
	if generic {
		return nil // the kernel's own stack undoes them
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer tool.Close()
	features, err := tool.Features(name)
	if err != nil {
		log.Warn("offloads are unknown", "interface", name, "error", err)
		return nil // fail open: a device without ethtool has no such offloads
	}
	fault, remark := JudgeOffloads(name, features, bridge || CarriesVLAN(name))
	if remark != nil {
		log.Warn(remark.Problem, "interface", name, "mend", remark.Mend)
	}
	if fault != nil {
		return fault
	}
	return nil
}

// JudgeOffloads says which of a device's features break XDP, and which would if
// there were tagged frames.
func JudgeOffloads(name string, features map[string]bool, tagged bool) (fault, remark *DeviceError) {
	for _, o := range mergingOffloads {
		if features[o.feature] {
			return o.fault(name), nil
		}
	}
	if !features[strippingOffload.feature] {
		return nil, nil
	}
	fault = strippingOffload.fault(name)
	if tagged {
		return fault, nil
	}
	fault.Problem = "VLAN tags would be hidden from XDP, but no VLAN is set up here"
	return nil, fault
}

// DriverOf names a device's driver, "" if it does not say.
func DriverOf(name string) string {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return ""
	}
	defer tool.Close()
	driver, err := tool.DriverName(name)
	if err != nil {
		return ""
	}
	return driver
}

func (o offload) fault(device string) *DeviceError {
	return &DeviceError{
		Name: o.name, Device: device, Problem: o.problem,
		Mend: fmt.Sprintf("ethtool -K %s %s off", device, o.switchName),
	}
}

// CarriesVLAN says whether a VLAN device lies above this one.
func CarriesVLAN(name string) bool {
	uppers, err := filepath.Glob(filepath.Join("/sys/class/net", name, "upper_*"))
	if err != nil {
		return false
	}
	for _, upper := range uppers {
		device := strings.TrimPrefix(filepath.Base(upper), "upper_")
		if _, err := net.InterfaceByName(device); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join("/proc/net/vlan", device)); err == nil {
			return true
		}
	}
	return false
}

// RefuseVRF refuses the device of a VRF, through which no packet comes: those
// of its ports do.
func RefuseVRF(name string) error {
	device, err := netlink.LinkByName(name)
	if err != nil || device.Type() != vrfType {
		return nil // whatever else is wrong with it shows when it is used
	}
	return &DeviceError{
		Name: "device-vrf", Device: name, Problem: "it is a VRF, and packets do not come through its device",
		Mend: "name the ports of the VRF instead: ip link show master " + name,
	}
}

const vrfType = "vrf" // as rtnetlink names the kind

// vrfOf finds the VRF that a device is a port of, nil if there is none.
func vrfOf(index int) *dataplane.VRF {
	device, err := netlink.LinkByIndex(index)
	if err != nil || device.Attrs().MasterIndex == 0 {
		return nil
	}
	master, err := netlink.LinkByIndex(device.Attrs().MasterIndex)
	if err != nil || master.Type() != vrfType {
		return nil
	}
	return &dataplane.VRF{Name: master.Attrs().Name, Index: master.Attrs().Index}
}
