package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/badwire"
)

// Errors that callers tell apart.
var (
	ErrNotRoot       = errors.New("the lab makes network namespaces and loads BPF programs: run it as root")
	ErrNoLiveFrames  = errors.New("this kernel cannot send XDP frames from BPF_PROG_TEST_RUN: the flood needs Linux 5.18 or later")
	ErrNotStanding   = errors.New("no lab is standing: smartcookie lab up makes one")
	ErrStanding      = errors.New("a lab is standing already: smartcookie lab down removes it")
	ErrNoSuchDefence = errors.New("no such defence")
	ErrNoSuchRole    = errors.New("no such part of the lab")
)

// pinFolder is the part of a lab's state that is a BPF file system.
const pinFolder = "bpf"

// Topology says what the edge is to the packets.
type Topology int

const (
	// Route makes the edge a router with one port for the client, one for the
	// attacker and one for the server.
	Route Topology = iota
	// Bridge puts client and attacker on a switch in a namespace of its own:
	// the edge has one outside and one inside port and nothing between them.
	Bridge
)

// Options say what lab New makes. The zero value is a routed lab.
type Options struct {
	Topology Topology
	// Resolve leaves neighbours to ARP and neighbour discovery. Otherwise they
	// are permanent entries.
	Resolve bool
	// Direct connects client and server by a link without an edge, which then
	// sees SYNs only; the server's agent is on that link.
	Direct bool
	// Standing lets the lab outlive its process, until Down.
	Standing bool
	// MTU of every link, 1500 if 0.
	MTU int
	// ReadyWithin is how long an agent may take to start, 15 s if 0.
	ReadyWithin time.Duration
	// Edges is how many a routed lab has, 1 or 2; 0 is 1. Two share the flows by
	// a hash: see Move and Kill.
	Edges int
	// Asymmetric sends what the server says past the edges.
	Asymmetric bool
	// Tenant puts the server behind a bridge of a further machine, Home, in which
	// its agent is: a container's or virtual machine's place. Not with two edges
	// or a way back past them.
	Tenant bool
	// Wire makes the client's link a bad one, InsideWire the server's own; nil
	// leaves it to a plain veth pair.
	Wire, InsideWire *badwire.Faults
	// Setup is how the server makes connections of cookies: auto if empty.
	Setup string
	// Mode is when the service is defended: always if empty.
	Mode string
	// Flows is what the edge's filter is made for; 0: as configured by default.
	Flows int
	// Executable is the smartcookie program for agents, HTTP server and load;
	// this process's own if empty.
	Executable string
}

// Host is an end host with one port.
type Host struct {
	*Namespace
	Port string
	IPv4 netip.Addr
	IPv6 netip.Addr
}

// Addr returns the host's address of one family.
func (h Host) Addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return h.IPv6
	}
	return h.IPv4
}

// EdgeHost is the machine between the hosts.
type EdgeHost struct {
	*Namespace
	Outside []string
	Inside  string
}

// Lab is a network of namespaces.
type Lab struct {
	Client   Host
	Attacker Host
	Server   Host
	Edge     EdgeHost
	// SecondEdge has no namespace unless there are two edges.
	SecondEdge EdgeHost
	Switch     *Namespace // nil unless the topology is Bridge
	Home       *Namespace // nil unless the server is a tenant
	// Wire and InsideWire are at work in a lab that has them. Those of a
	// standing lab belong to processes of their own.
	Wire, InsideWire *badwire.Wire

	wires       *Namespace // where the bad wires are; nil without any
	front, back *Namespace // routers; nil unless packets have a choice of ways

	options Options
	cpus    cpus
	id      string
	hasKeys bool
	// edgeService is what the defence at work adds to the edges' configuration.
	edgeService string
	undo        []func() error
}

// New makes the namespaces, links, addresses and routes of a lab. Close, or
// Down for a standing one, removes them.
func New(options Options) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if options.Executable == "" {
		options.Executable = "/proc/self/exe"
	}
	if err := options.Check(); err != nil {
		return nil, err
	}
	cpus, err := splitCPUs()
	if err != nil {
		return nil, err
	}
	lab := &Lab{options: options, cpus: cpus}
	lab.plan()
	steps := []func() error{shareNamespaceDir, lab.makeState, lab.makeNamespaces, lab.makeLinks, lab.makeRoutes, lab.makeDirect, lab.tune}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("make the lab: %w", err), lab.Close())
		}
	}
	if options.Standing {
		lab.undo = nil
	}
	return lab, nil
}

// Close undoes, in reverse order, all that was done. It may be called twice.
func (l *Lab) Close() error {
	var errs []error
	for _, undo := range slices.Backward(l.undo) {
		errs = append(errs, undo())
	}
	l.undo = nil
	return errors.Join(errs...)
}

func (l *Lab) onClose(undo func() error) { l.undo = append(l.undo, undo) }

// Dir holds the lab's files: keys, configuration, logs.
func (l *Lab) Dir() string { return filepath.Join(stateDir, l.id) }

// PinDir is where the named agent pins its maps and links, on a BPF file
// system that belongs to the lab.
func (l *Lab) PinDir(agent string) string { return filepath.Join(l.Dir(), pinFolder, agent) }

// WriteFile writes a file of the lab that only root can read, and returns its
// path.
func (l *Lab) WriteFile(name, content string) (string, error) {
	path := filepath.Join(l.Dir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return "", fmt.Errorf("write a file of the lab: %w", err)
	}
	return path, nil
}

func (l *Lab) makeState() error {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if err := l.claim(); err != nil {
		return err
	}
	dir := l.Dir()
	l.onClose(func() error { return removeState(dir) })
	pins := filepath.Join(dir, pinFolder)
	if err := os.Mkdir(pins, 0o700); err != nil {
		return fmt.Errorf("make the pin directory: %w", err)
	}
	if err := unix.Mount("bpf", pins, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system on %s: %w", pins, err)
	}
	return nil
}

// claim takes the first free name; mkdir decides between two who want it.
func (l *Lab) claim() error {
	for sequence := 1; ; sequence++ {
		l.id = fmt.Sprintf("%d-%d", os.Getpid(), sequence)
		if l.options.Standing {
			l.id = standing
		}
		err := os.Mkdir(l.Dir(), 0o700)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrExist):
			return fmt.Errorf("make the state directory: %w", err)
		case l.options.Standing:
			return ErrStanding
		}
	}
}

// members lists the namespaces by role.
func (l *Lab) members() []member {
	all := []member{
		{"client", &l.Client.Namespace},
		{"attacker", &l.Attacker.Namespace},
		{"edge", &l.Edge.Namespace},
		{"server", &l.Server.Namespace},
	}
	if l.options.Topology == Bridge {
		all = append(all, member{switchRole, &l.Switch})
	}
	if l.options.Tenant {
		all = append(all, member{homeRole, &l.Home})
	}
	if l.options.Wire != nil || l.options.InsideWire != nil {
		all = append(all, member{wiresRole, &l.wires})
	}
	return append(all, l.fabricMembers()...)
}

type member struct {
	role string
	at   **Namespace
}

const (
	switchRole = "switch"
	wiresRole  = "wires"
)

func (l *Lab) makeNamespaces() error {
	for _, m := range l.members() {
		namespace, err := newNamespace(namespaceName(l.id, m.role))
		if err != nil {
			return err
		}
		l.onClose(namespace.remove)
		if err := namespace.sysctls(quiet); err != nil {
			return err
		}
		if m.role == frontRole || m.role == backRole {
			if err := namespace.sysctls(choosing); err != nil {
				return err
			}
		}
		*m.at = namespace
	}
	return nil
}

func namespaceName(id, role string) string { return namePrefix + id + "-" + role }

// Namespace returns the namespace of a role: "client", "attacker", "edge",
// "server" or, in a bridged lab, "switch".
func (l *Lab) Namespace(role string) (*Namespace, error) {
	var roles []string
	for _, m := range l.members() {
		if m.role == role {
			return *m.at, nil
		}
		roles = append(roles, m.role)
	}
	return nil, fmt.Errorf("%w: %q; there are %s", ErrNoSuchRole, role, strings.Join(roles, ", "))
}

// recognise finds out from its namespaces what the standing lab was made of.
func (o *Options) recognise() {
	has := func(role string) bool {
		_, err := os.Stat(filepath.Join(namespaceDir, namespaceName(standing, role)))
		return err == nil
	}
	if has(switchRole) {
		o.Topology = Bridge
	}
	if has(secondEdgeRole) {
		o.Edges = edgesLimit
	} else if has(frontRole) {
		o.Asymmetric = true // why else
	}
}

// Open returns the standing lab. Its Close leaves it standing.
func Open() (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if _, err := os.Stat(filepath.Join(stateDir, standing)); errors.Is(err, os.ErrNotExist) {
		return nil, ErrNotStanding
	}
	cpus, err := splitCPUs()
	if err != nil {
		return nil, err
	}
	lab := &Lab{id: standing, cpus: cpus}
	lab.options.recognise()
	lab.plan()
	for _, m := range lab.members() {
		namespace, err := openNamespace(namespaceName(standing, m.role))
		if err != nil {
			return nil, errors.Join(err, lab.Close())
		}
		lab.onClose(func() error { namespace.close(); return nil })
		*m.at = namespace
	}
	return lab, nil
}
