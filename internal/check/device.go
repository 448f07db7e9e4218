package check

import (
	"fmt"
	"net/netip"
	"slices"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/edge"
	"smartcookie/internal/policy"
)

func judgeDevices(f *Facts) (found []Finding) {
	for i := range f.Devices {
		d := &f.Devices[i]
		found = append(found, judgePlace(f, d)...)
		if f.Shape != Server {
			found = append(found, judgeXDP(f, d)...)
			found = append(found, judgeOffloads(f, d)...)
		}
	}
	if f.Shape == Edge {
		found = append(found, judgeMTUs(f)...)
	}
	return found
}

// judgePlace says whether a device is one that an agent can be on.
func judgePlace(f *Facts, d *Device) (found []Finding) {
	if d.Refused != nil {
		found = append(found, topicOf(d.Refused.Name).finding(Error, d.Name+": "+d.Refused.Problem).mended(d.Refused.Mend))
	}
	if !d.Up {
		found = append(found, deviceUp.finding(Warning, d.Name+" is down", "DEVICE", d.Name))
	}
	if !d.Tenant && slices.Contains([]string{"bond", "team", "bridge"}, d.MasterKind) {
		found = append(found, devicePort.finding(Warning,
			fmt.Sprintf("%s is a port of the %s %s", d.Name, d.MasterKind, d.Master), "DEVICE", d.Name, "MASTER", d.Master))
	}
	return found
}

func judgeXDP(f *Facts, d *Device) (found []Finding) {
	native := d.XDP != nil && *d.XDP&xdpBasic != 0
	switch {
	case f.Generic:
		what := d.Name + ": generic XDP is asked for"
		if native {
			what += ", though its driver (" + d.Driver + ") has native XDP"
		}
		found = append(found, xdpGeneric.finding(Notice, what), xdpNative.skip())
	case d.XDP != nil && !native:
		found = append(found, xdpNative.finding(Error, fmt.Sprintf("%s: its driver (%s) has no native XDP", d.Name, orUnknown(d.Driver))))
	}
	if d.Program != 0 && f.Agent.Programs != nil && !f.Agent.Programs[d.Program] {
		found = append(found, xdpOccupied.finding(Error,
			fmt.Sprintf("%s: another XDP program is there (id %d)", d.Name, d.Program), "DEVICE", d.Name))
	}
	if f.Generic || !native {
		return found
	}
	if d.Driver == "veth" && *d.XDP&xdpXmit == 0 {
		found = append(found, xdpTransmit.finding(Error,
			d.Name+": the other end of this veth has neither GRO nor a program: it takes no frames of XDP", "DEVICE", d.Name))
	}
	if d.MTU > dataplane.SingleBufferMTU && *d.XDP&xdpBuffers == 0 {
		found = append(found, mtuFrags.finding(Error,
			fmt.Sprintf("%s: its MTU is %d, and its driver (%s) gives XDP no frames of several buffers (more than %d)", d.Name, d.MTU, d.Driver, dataplane.SingleBufferMTU),
			"DEVICE", d.Name))
	}
	if d.Queues > 0 && d.Queues < f.CPUs {
		found = append(found, xdpQueues.finding(Notice,
			fmt.Sprintf("%s has %d queues at most for %d CPUs", d.Name, d.Queues, f.CPUs), "DEVICE", d.Name, "CPUS", fmt.Sprint(d.Queues)))
	}
	return found
}

func orUnknown(driver string) string {
	if driver == "" {
		return "unknown"
	}
	return driver
}

func judgeOffloads(f *Facts, d *Device) (found []Finding) {
	if f.Generic { // the kernel's own stack undoes them
		return nil
	}
	fault, remark := edge.JudgeOffloads(d.Name, d.Features, f.Forward == "bridge" || d.Tagged)
	for severity, e := range map[Severity]*edge.DeviceError{Error: fault, Notice: remark} {
		if e != nil {
			found = append(found, topicOf(e.Name).finding(severity, e.Device+": "+e.Problem).mended(e.Mend))
		}
	}
	return found
}

// judgeMTUs compares an edge's ports with each other and with what clients are told.
func judgeMTUs(f *Facts) (found []Finding) {
	least, most := f.Devices[0], f.Devices[0]
	for _, d := range f.Devices {
		if d.MTU < least.MTU {
			least = d
		}
		if d.MTU > most.MTU {
			most = d
		}
	}
	if f.Forward == "bridge" && least.MTU != most.MTU {
		found = append(found, mtuBridge.finding(Warning,
			fmt.Sprintf("%s has an MTU of %d, %s one of %d", most.Name, most.MTU, least.Name, least.MTU),
			"DEVICE", most.Name, "MTU", fmt.Sprint(least.MTU)))
	}
	for i := range f.Services {
		s := &f.Services[i]
		const ip4, ip6 = 40, 60 // headers without options
		for _, d := range f.Devices {
			if !d.Inside || int(s.MSS4)+ip4 <= d.MTU && int(s.MSS6)+ip6 <= d.MTU {
				continue
			}
			found = append(found, mtuMSS.finding(Warning,
				fmt.Sprintf("service %q: segments of %d bytes (IPv4) do not fit the MTU of %s, %d", s.Name, s.MSS4, d.Name, d.MTU),
				"MSS", fmt.Sprint(d.MTU-ip4), "SERVICE", s.Name))
		}
	}
	return found
}

func judgeForwarding(f *Facts) (found []Finding) {
	if f.Shape != Edge || f.Forward != "route" {
		return []Finding{forwarding.skip()}
	}
	for _, d := range f.Devices {
		for _, family := range d.NotForwarding {
			found = append(found, forwarding.finding(Error,
				fmt.Sprintf("%s: net.%s.conf.%s.forwarding is 0", d.Name, family, d.Name), "DEVICE", d.Name, "FAMILY", family))
		}
	}
	return found
}

// notOwn are the kinds of devices that an address can be on while its packets
// come by another one.
var notOwn = []string{"loopback", "dummy", "vrf"}

func judgeAddresses(f *Facts) (found []Finding) {
	own := slices.ContainsFunc(f.Devices, func(d Device) bool { return !d.Tenant })
	if f.Shape != Server || !own {
		return []Finding{addressMissing.skip(), addressElsewhere.skip()}
	}
	some := false
	for _, a := range f.Addresses {
		if !protectsAddress(f.Services, a.Address) {
			continue
		}
		some = true
		listed := slices.ContainsFunc(f.Devices, func(d Device) bool { return d.Name == a.Device })
		if !listed && !slices.Contains(notOwn, a.Kind) {
			found = append(found, addressElsewhere.finding(Warning,
				fmt.Sprintf("%s is on %s, which is not among the interfaces", a.Address, a.Device), "DEVICE", a.Device))
		}
	}
	if !some {
		found = append(found, addressMissing.finding(Warning, "no address of this host belongs to a service"), addressElsewhere.skip())
	}
	return found
}

func protectsAddress(services []policy.Service, a netip.Addr) bool {
	return slices.ContainsFunc(services, func(s policy.Service) bool {
		return slices.ContainsFunc(s.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}
