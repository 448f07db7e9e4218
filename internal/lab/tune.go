package lab

import "errors"

// quiet lets IPv6 addresses work from the first moment: nobody else is on these
// links. Interfaces take it over when they are made.
var quiet = []setting{
	{"net.ipv6.conf.default.accept_dad", "0"},
	{"net.ipv6.conf.default.dad_transmits", "0"},
	{"net.ipv6.conf.default.router_solicitations", "0"},
}

// tune sets the parameters that keep one measurement from reaching into the
// next and let the edge forward.
func (l *Lab) tune() error {
	if err := l.Server.sysctls([]setting{
		// Otherwise the kernel's memory of the client lets its SYNs through a
		// full queue, and no defence looks unharmed.
		{"net.ipv4.tcp_no_metrics_save", "1"},
		{"net.core.somaxconn", "4096"},
		{"net.ipv4.tcp_max_syn_backlog", "1024"},
	}); err != nil {
		return err
	}
	if err := l.Client.Sysctl("net.ipv4.tcp_no_metrics_save", "1"); err != nil {
		return err
	}
	// The attacker is a sink: it answers nothing on behalf of its sources.
	if err := l.Attacker.sysctls([]setting{
		{"net.ipv4.ip_forward", "0"},
		{"net.ipv6.conf.all.forwarding", "0"},
	}); err != nil {
		return err
	}
	if l.options.Topology == Bridge {
		return nil
	}
	return errors.Join(l.Edge.sysctls(routing), l.tuneFabric())
}
