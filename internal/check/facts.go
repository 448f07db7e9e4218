package check

import (
	"net/netip"
	"time"

	"smartcookie/internal/config"
	"smartcookie/internal/control"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/edge"
	"smartcookie/internal/keys"
	"smartcookie/internal/policy"
	"smartcookie/internal/server"
)

// Facts are what is known of a machine, and of what it is asked to do.
type Facts struct {
	Shape    Shape
	Services []policy.Service
	Forward  string // an edge's
	Generic  bool   // XDP in the kernel's stack is asked for
	Always   bool   // with the kernel's own cookies: flood mode without end
	Flows    int    // that the filter is made for
	Filter   uint64 // its bytes
	Places   int    // for translated connections
	Control  *config.Control

	Kernel    Kernel
	CPUs      int
	Memory    uint64 // bytes; 0: not known
	Devices   []Device
	Addresses []Address // of this network namespace
	Machine   *server.Host
	Virtual   []netip.AddrPort // TCP services of IPVS
	Keys      Keys
	Clock     Clock
	Agent     Agent
	Sockets   int // TCP connections of this network namespace
	Tracked   int // flows that connection tracking has
	InFilter  int // flows that an edge's filter has

	Unseen []unseen
	survey *dataplane.Survey // of the agent, for probing alone
}

// unseen is a topic that could not be looked at.
type unseen struct {
	topic   *Topic
	because string
	mend    string
}

// Kernel is what runs.
type Kernel struct {
	Release string
	NoTypes error    // why its types cannot be read
	Missing []string // helpers
	TCX     bool
	JIT     string // net.core.bpf_jit_enable, empty if it cannot be read
}

// What of netdev's XDP features matters (NETDEV_XDP_ACT_… of linux/netdev.h).
const (
	xdpBasic   = 1 << 0
	xdpXmit    = 1 << 2 // takes redirected frames
	xdpBuffers = 1 << 5 // of several buffers, on receipt
)

// Device is an interface that the configuration names.
type Device struct {
	Name, Driver, Kind string // the kind as rtnetlink has it
	Inside             bool   // a port of an edge that faces servers
	Tenant             bool
	Up                 bool
	MTU                int
	Master, MasterKind string
	Tagged             bool            // VLAN devices are above it
	Features           map[string]bool // as ethtool -k; nil if not known
	XDP                *uint64         // as netdev tells; nil if not known
	Program            uint32          // the XDP program that is there, 0 if none
	Queues             int             // at most; 0 if not known
	Refused            *edge.DeviceError
	NotForwarding      []string // families
}

// Address is one of this network namespace.
type Address struct {
	Address netip.Addr
	Device  string
	Kind    string
}

// Keys are what is known of the key file, and of the keys in the kernel.
type Keys struct {
	Path    string
	File    *keys.File
	Err     error // why there is no File
	Domains []string
	Epoch   uint64               // now
	Kernel  map[string]agreement // by domain; nil if not known
}

// agreement is how the agent's key of an epoch compares with the file's.
type agreement int

const (
	sameKey agreement = iota
	otherKey
	noKey
)

// Clock is the machine's clock as adjtimex(2) tells, and the agent's.
type Clock struct {
	Synchronised     bool
	Estimated, Bound time.Duration // of its error
	Ahead            time.Duration // real time against the agent's
	Epoch            time.Duration // of the agent; 0: none is attached
}

// Agent is what is attached.
type Agent struct {
	Attached bool
	Daemon   bool
	Programs map[uint32]bool // XDP programs that are ours; nil if not known
	Peers    map[uint32]control.Peer
	Now      time.Duration // monotonic, as in Peers
}
