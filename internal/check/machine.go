package check

import (
	"fmt"
	"slices"
	"strings"

	"smartcookie/internal/host"
	"smartcookie/internal/policy"
	"smartcookie/internal/server"
)

// judgeMachine says of this host what its daemon would, and what is worth knowing
// where the daemon goes around it by translation.
func judgeMachine(f *Facts) (found []Finding) {
	services := f.Services
	if f.Shape != Edge {
		services = server.Own(f.Services)
	}
	if len(services) == 0 || f.Shape == Edge && f.Forward != "route" {
		return skipMachine()
	}
	all := obstacles(f, services)
	serious := all
	if f.Shape == Server || f.Shape == Host {
		serious = server.InTheWay(services, all)
	}
	goneAround := slices.ContainsFunc(services, func(s policy.Service) bool { return s.Setup == policy.Auto })
	for _, o := range all {
		switch {
		case strings.HasSuffix(o.Name, unknownSuffix):
			found = append(found, ofObstacle(Unseen, o))
			found = append(found, skipTopics(strings.TrimSuffix(strings.TrimSuffix(o.Name, unknownSuffix), "s")+"-")...)
		case !slices.Contains(serious, o) && goneAround:
			o.Problem += " (translated instead)"
			found = append(found, ofObstacle(Notice, o))
		case !slices.Contains(serious, o):
		case o.Fatal:
			found = append(found, ofObstacle(Error, o))
		default:
			found = append(found, ofObstacle(Warning, o))
		}
	}
	return append(found, judgeVirtual(f, services)...)
}

// unknownSuffix ends the name of what could not be looked at; the topics that begin
// like it are those that nothing is known of then.
const unknownSuffix = "-unknown"

func obstacles(f *Facts, services []policy.Service) []server.Obstacle {
	switch f.Shape {
	case Edge: // what it sends on may still meet the kernel's rules
		return f.Machine.Firewall(services)
	case HostKernel:
		return append(host.Terms(f.Machine, services[0].Ports, f.Always), f.Machine.Firewall(services)...)
	}
	return f.Machine.Obstacles(services)
}

// skipMachine is for who has no connections of its own here.
func skipMachine() []Finding {
	return skipTopics("kernel-kfunc", "sysctl-", "conntrack-", "listener", "firewall-", "ipvs")
}

func skipTopics(beginnings ...string) (skipped []Finding) {
	for _, t := range Topics {
		if slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(t.Name, b) }) {
			skipped = append(skipped, t.skip())
		}
	}
	return skipped
}

func judgeVirtual(f *Facts, services []policy.Service) (found []Finding) {
	for _, at := range f.Virtual {
		if i, ok := policy.Protects(services, at.Addr(), at.Port()); ok {
			found = append(found, ipvs.finding(Warning,
				fmt.Sprintf("IPVS has a virtual server at %s, of service %q", at, services[i].Name), "ADDRESS", at.String()))
		}
	}
	return found
}
