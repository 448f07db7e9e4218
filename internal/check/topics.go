package check

import (
	"slices"
	"strings"

	"smartcookie/internal/server"
)

// Topic is a thing that is looked at. docs/check.md has them all.
type Topic struct {
	Name   string
	Shapes []Shape
	Wants  string // what holds where nothing is found
	Why    string
	Mend   string // words in capitals stand for what the finding is about
}

// Topics are all of them, in the order of docs/check.md.
var Topics []*Topic

func topic(name string, shapes []Shape, wants, why, mend string) *Topic {
	t := &Topic{name, shapes, wants, why, mend}
	Topics = append(Topics, t)
	return t
}

// topicOf is the topic of an obstacle or of a device's fault.
func topicOf(name string) *Topic { return Topics[indexOf(name)] }

func indexOf(name string) int {
	return slices.IndexFunc(Topics, func(t *Topic) bool { return t.Name == name })
}

// finding says something of the topic. The pairs replace words of its mend.
func (t *Topic) finding(s Severity, what string, pairs ...string) Finding {
	return Finding{t.Name, s, what, t.Why, strings.NewReplacer(pairs...).Replace(t.Mend)}
}

// skip says nothing of the topic, where the configuration does not touch it.
func (t *Topic) skip() Finding { return Finding{Name: t.Name} }

// mended puts a finding's own mend in the place of the topic's.
func (f Finding) mended(mend string) Finding {
	if mend != "" {
		f.Mend = mend
	}
	return f
}

// ofObstacle says what a daemon would say.
func ofObstacle(s Severity, o server.Obstacle) Finding {
	return topicOf(o.Name).finding(s, o.Problem).mended(o.Mend)
}

var (
	all      = []Shape{Edge, Server, Host, HostKernel}
	byXDP    = []Shape{Edge, Host, HostKernel}
	byTC     = []Shape{Server, Host}
	own      = []Shape{Server, Host, HostKernel}
	split    = []Shape{Edge, Server}
	onEdge   = []Shape{Edge}
	onServer = []Shape{Server}
)

// Of the kernel.
var (
	kernelBTF = topic("kernel-btf", all, "the kernel tells its types",
		"The programs are fitted to the running kernel by its types. Without them nothing is loaded.",
		"use a kernel with CONFIG_DEBUG_INFO_BTF=y, such as the distribution's")
	kernelHelpers = topic("kernel-helpers", all, "the kernel has every helper that the programs call",
		"The kernel refuses programs that call a helper or attach to a tracepoint that it does not have.",
		"use Linux OLDEST or later")
	kernelVersion = topic("kernel-version", all, "the kernel is one of those that are tested",
		"Verifiers of older kernels refuse the programs, or nobody has seen them take them.",
		"use Linux OLDEST or later")
	_ = topic("kernel-kfunc", byTC, "the kernel has bpf_sk_assign_tcp_reqsk",
		"Native connections need it. `setup: auto` translates without it, `setup: native` is refused.",
		"use Linux 6.9 or later, built with BTF")
	kernelTCX = topic("kernel-tcx", byTC, "the kernel attaches programs to TC by links",
		"The agent adds a filter of clsact instead, the first in its chain. Who rewrites the filters of the device takes it off.",
		"let no other program replace the qdisc clsact of the agent's devices, or use Linux 6.6 or later")
	kernelJIT = topic("kernel-jit", all, "the BPF compiler is on",
		"Interpreted programs take many times as long for each packet: a flood is as bad as without a defence.",
		"sysctl -w net.core.bpf_jit_enable=1")
)

// Of devices.
var (
	deviceUp = topic("device-up", all, "the devices are up",
		"Nothing comes by a device that is down, and some drivers give it no queues.",
		"ip link set dev DEVICE up")
	_ = topic("device-vrf", all, "no device is a VRF's own",
		"Packets do not come through the device of a VRF; the agent would see none.",
		"ip link show master DEVICE, and name its ports instead")
	devicePort = topic("device-port", all, "no device is a port of a bond or bridge",
		"A port sees a part of the packets, without the address and the socket that are its master's. The agent belongs on the master.",
		"name MASTER in the place of DEVICE")
	xdpNative = topic("xdp-native", byXDP, "the drivers have native XDP",
		"Native XDP is asked for and nothing else is chosen silently: the agent is refused.",
		"use a device whose driver has it, or `xdp: generic` (host: --generic), which is much slower")
	xdpGeneric = topic("xdp-generic", byXDP, "generic XDP is not asked for",
		"Generic XDP runs after the kernel has made its own buffer of each packet, which is most of a packet's cost.",
		"leave out `xdp: generic` (host: --generic) where the drivers have native XDP")
	xdpOccupied = topic("xdp-occupied", byXDP, "no other XDP program is on the devices",
		"A device has one XDP program. The agent is refused while another one is there.",
		"ip link set dev DEVICE xdp off, or detach it with the tool that attached it")
	xdpTransmit = topic("xdp-transmit", byXDP, "virtual devices transmit what XDP sends",
		"A veth hands frames of XDP to its other end only if that has GRO on or a program. Answers would be lost, and the agent is refused.",
		"ethtool -K OTHER gro on, at the other end of DEVICE")
	xdpQueues = topic("xdp-queues", byXDP, "there is a queue for each CPU",
		"XDP transmits by a queue of each CPU. Where there are fewer, drivers share them under a lock, or refuse.",
		"ethtool -L DEVICE combined CPUS, or fewer CPUs for the device's interrupts")
	_ = topic("offload-merging", byXDP, "no device merges packets before XDP",
		"What large receive offload or hardware GRO has merged is corrupt once XDP has forwarded it. The agent is refused.",
		"ethtool -K DEVICE lro off (rx-gro-hw: ethtool -K DEVICE rx-gro-hw off)")
	_ = topic("offload-vlan", byXDP, "no device hides VLAN tags from XDP",
		"Tagged frames look untagged to XDP: they are taken for another network's, or forwarded without their tag. On a bridge and below VLAN devices the agent is refused.",
		"ethtool -K DEVICE rxvlan off")
	mtuFrags = topic("mtu-frags", byXDP, "the drivers take frames of the devices' MTU to XDP",
		"Longer frames are in several buffers, and a driver that cannot give those to XDP refuses the program at this MTU.",
		"ip link set dev DEVICE mtu 1500")
	mtuBridge = topic("mtu-bridge", onEdge, "the ports of the bridge have one MTU",
		"A bridge does not fragment: frames that are longer than the other port's MTU are lost without a word to who sent them.",
		"ip link set dev DEVICE mtu MTU")
	mtuMSS = topic("mtu-mss", onEdge, "segments fit the way to the servers",
		"Clients send segments as long as the SYN-ACK has allowed. Where they do not fit, connections hang once they carry data, unless path MTU discovery works.",
		"set `mss: MSS` in service SERVICE")
	forwarding = topic("forwarding", onEdge, "the kernel forwards what comes by the devices",
		"With `forward: route` both XDP and the kernel look routes up for a device only if it forwards: nothing reaches the servers, or the clients.",
		"sysctl -w net.FAMILY.conf.DEVICE.forwarding=1")
	addressMissing = topic("address-missing", onServer, "addresses of services are on this host",
		"The agent makes connections at addresses that this host has. Services of none of them are another host's, or behind `tenants`.",
		"name this host's addresses in `prefixes`, or the devices of the servers in `tenants`")
	addressElsewhere = topic("address-elsewhere", onServer, "the devices with protected addresses are in `interfaces`",
		"Packets for an address of a VLAN, bond or bridge come up through that device. One that is not listed makes no connections.",
		"add DEVICE to `interfaces`, in the place of the device below it")
)

// Of the machine. The daemons say the same, in internal/server and internal/host.
var (
	_ = topic("sysctl-syncookies", own, "tcp_syncookies is not 0",
		"With 0 the kernel makes no connection from any cookie. With the kernel's own cookies 1 gives one only while the queue is full.",
		"sysctl -w net.ipv4.tcp_syncookies=1")
	_ = topic("sysctl-rfc1337", byTC, "tcp_rfc1337 is 0",
		"A RST is what clears the old connection of a client that reuses its port. With 1 the kernel ignores it, and the client hangs until TIME_WAIT is over.",
		"sysctl -w net.ipv4.tcp_rfc1337=0")
	_ = topic("sysctl-timestamps", own, "tcp_timestamps is as cookies need it",
		"The option is promised to the client by the cookie. The kernel refuses the connection where its own setting denies it.",
		"sysctl -w net.ipv4.tcp_timestamps=1")
	_ = topic("sysctl-sack", byTC, "tcp_sack is 1",
		"The option is promised to the client by the cookie. The kernel refuses the connection where its own setting denies it.",
		"sysctl -w net.ipv4.tcp_sack=1")
	_ = topic("sysctl-window-scaling", byTC, "tcp_window_scaling is 1",
		"The option is promised to the client by the cookie. The kernel refuses the connection where its own setting denies it.",
		"sysctl -w net.ipv4.tcp_window_scaling=1")
	_ = topic("sysctl-ecn", byTC, "tcp_ecn is not 0",
		"Edges agree to ECN for the server. A host that was told to leave ECN alone gets connections with it.",
		"sysctl -w net.ipv4.tcp_ecn=2")
	_ = topic("conntrack-loose", byTC, "connection tracking takes connections that begin without a SYN",
		"Connection tracking sees no SYN of a native connection and calls its packets invalid. A rule that drops those cuts every client off.",
		"sysctl -w net.netfilter.nf_conntrack_tcp_loose=1")
	_ = topic("listeners-unknown", own, "the listeners are known",
		"Without them neither MPTCP listeners nor ports without a listener are seen.",
		"ss -tlnp")
	listenerMPTCP = topic("listener-mptcp", byTC, "no listener of a service is MPTCP",
		"The kernel makes no connection from a cookie at an MPTCP listener, which is what Go opens by default. `setup: auto` translates for it, `setup: native` fails.",
		"GODEBUG=multipathtcp=0 for a Go program, or sysctl -w net.mptcp.enabled=0 and restart it")
	_ = topic("listener-missing", own, "every port has a listener in this network namespace",
		"The agent looks sockets up in its own network namespace. A server in a container's is not found there.",
		"start the server, or run this agent in the namespace that has it")
	_ = topic("firewall-legacy", all, "there are no rules of legacy iptables",
		"The agent does not read these rules. One that drops what began without a SYN would go unnoticed.",
		"iptables-legacy-save, and see that none drops `ctstate INVALID` or TCP that is new without a SYN")
	firewallUnknown = topic("firewall-unknown", all, "the rules of nftables are known",
		"A rule that drops what began without a SYN, or forwards a protected port, would go unnoticed.",
		"nft list ruleset")
	_ = topic("firewall-stateful", all, "no rule of nftables drops connections that began without a SYN",
		"Where SYNs are answered before the firewall, it sees connections begin in their middle. Such a rule cuts every client off, but for connections that a server translates.",
		"nft list ruleset; accept the protected ports before it, or exempt them: table raw, `tcp dport … notrack`")
	_ = topic("firewall-dnat", all, "no rule of nftables forwards a protected port",
		"Network address translation wants to see the SYN, which the edge has answered. Nothing may translate addresses between the halves, Docker's published ports included.",
		"protect the port where it is forwarded to (`tenants`), or take the rule away")
	ipvs = topic("ipvs", all, "no virtual server of IPVS is at a protected address",
		"IPVS chooses the server at the SYN, which the edge has answered: it knows none of the connections and resets them.",
		"protect the real servers behind it, or ipvsadm -D -t ADDRESS")
)

// Of keys and clocks.
var (
	keyFile = topic("key-file", split, "the key file can be used",
		"Without keys the agent is refused.",
		"smartcookie keys show FILE")
	keyDomain = topic("key-domain", split, "the key file has every domain that is asked for",
		"Without the keys of a domain the agent is refused.",
		"smartcookie keys export FLEET.KEYS --domain DOMAIN -o FILE")
	keyCurrent = topic("key-current", split, "every domain has a key that is in force",
		"Without a key no SYN is answered and no cookie is valid: `keys_end` decides what becomes of clients.",
		"date, and smartcookie keys show FILE: is the clock right, or the first key's time still to come?")
	keySpare = topic("key-spare", onServer, "the server has the keys of its own domains alone",
		"Who breaks into this server has every key that is on it, and could make cookies for the services of others.",
		"smartcookie keys export FLEET.KEYS --domain DOMAIN -o FILE")
	keyKernel = topic("key-kernel", split, "the agent uses the keys of the file",
		"The halves agree only if both use what the file says. A file that was not taken over ends that at the next rollover.",
		"read the daemon's log for `key file not taken over`; if none runs, start it")
	keyEpoch = topic("key-epoch", split, "the agent counts the file's epochs",
		"A new length of epochs holds only once every agent has been started anew; until then the halves have different keys.",
		"start the daemon anew, as all others")
	clockSync = topic("clock-sync", split, "the clock is synchronised",
		"Cookies are of epochs, which each machine counts by its own clock. Clocks that differ by more than an epoch refuse each other's cookies.",
		"timedatectl set-ntp true, or start chronyd; then timedatectl")
	clockError = topic("clock-error", split, "the clock's error is small beside an epoch",
		"Two clocks that are off by half an epoch each can be an epoch apart, and cookies are refused.",
		"chronyc tracking, or timedatectl timesync-status: is a server near?")
	clockStep = topic("clock-step", split, "the agent's clock is that of the machine",
		"The agent has refused a step of the clock and counts its own epochs. Others count by real time.",
		"set the clock right, or confirm it: kill -USR1 (the daemon's process)")
)

// Of agents and their peers.
var (
	daemon = topic("daemon", all, "a daemon keeps the agent",
		"The programs go on without it, but nobody gives them keys (after 72 hours they have none), follows the clock or announces connections.",
		"start it: smartcookie SHAPE")
	noControl = topic("no-control", split, "the halves speak with each other",
		"Without control messages connections that are idle for longer than two generations are lost, other edges do not know them, and nobody compares keys and clocks.",
		"a section `control` in both files")
	peerSilent = topic("peer-silent", split, "every peer is heard",
		"A peer that says nothing for 5 s counts as silent: its connections are not announced, and `silent` decides what becomes of its services.",
		"at PEER: smartcookie status, and see that UDP to ADDRESS passes")
	peerKey = topic("peer-key", split, "the peers have the same keys",
		"With other keys no cookie of one half is valid at the other: nobody gets a connection.",
		"compare: smartcookie keys show FILE, here and at PEER; export the file to it anew")
	peerClock = topic("peer-clock", split, "the peers' clocks agree",
		"The clocks differ by more than half an epoch. From a whole one on cookies are refused.",
		"timedatectl, here and at PEER")
	peerEpoch = topic("peer-epoch", split, "the peers count epochs of the same length",
		"With other epochs there are other keys: nobody gets a connection.",
		"give PEER the file and start its daemon anew")
	peerDiffers = topic("peer-differs", split, "the peers agree on window scale, MSS and mode",
		"Another scale makes windows too large or too small, too large an MSS loses long segments, and a service that is off at one half is half defended.",
		"compare the files here and at PEER: window_scale, mss, mode")
)

// Of sizes.
var (
	filterSize = topic("filter-size", []Shape{Edge, Host}, "the filter has room for the flows",
		"Above the number it is made for, more than one unknown packet in 10,000 passes the filter and reaches the servers.",
		"flows: FLOWS")
	filterMemory = topic("filter-memory", onEdge, "the filter takes a small part of the memory",
		"The filter is allocated when the agent starts, and never swapped.",
		"flows: FLOWS, or more memory")
	translatedSize = topic("translated-size", onServer, "there is room for every connection that may be translated",
		"A full table refuses newcomers.",
		"translated: FLOWS, after smartcookie detach")
)
