package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

// The names of pin directories and logs.
const (
	edgeAgent   = "edge"
	edge2Agent  = "edge2"
	serverAgent = "server"
	hostAgent   = "host"
	kernelAgent = "host-kernel"
)

// defence is a way to protect the lab's server.
type defence struct {
	syncookies string // net.ipv4.tcp_syncookies of the server
	timestamps string // net.ipv4.tcp_timestamps of the server; empty: as it is
	// onHost says that the server answers from its own port by XDP_TX.
	onHost bool
	// ownEdge says that the edge's agent forwards, not the edge's kernel.
	ownEdge bool
	// edgeService is what the edge's configuration says of the service besides.
	edgeService string
	// resets says that a client's first connection is reset by design.
	resets bool
	agents []agent
}

// agent is one daemon of a defence.
type agent struct {
	name  string
	host  func(*Lab) *Namespace
	start func(*Lab) (args []string, err error)
}

var defences = map[string]defence{
	"none":   {syncookies: "0"},
	"kernel": {syncookies: "1"},
	"split": {
		syncookies: "1",
		ownEdge:    true,
		agents: []agent{
			{serverAgent, serverOf, startServer},
			{edgeAgent, edgeOf, startEdge},
		},
	},
	"proxy": {
		syncookies:  "1",
		ownEdge:     true,
		edgeService: "    strategy: proxy\n",
		agents:      []agent{{edgeAgent, edgeOf, startEdge}},
	},
	"auth-cookie": challenges("auth-cookie", true),
	"auth-full":   challenges("auth-full", true),
	"auth-rst":    challenges("auth-rst", false),
	"host": {
		syncookies: "1",
		onHost:     true,
		agents:     []agent{{hostAgent, serverOf, startHost}},
	},
	"host-kernel": {
		syncookies: "1",
		timestamps: "2",
		onHost:     true,
		agents:     []agent{{kernelAgent, serverOf, startHostKernel}},
	},
}

// challenges has the edge alone challenge addresses. The server has no cookies of
// its own: nothing of a flood may reach it. One client is many in the lab, so an
// address may open many connections.
func challenges(strategy string, resets bool) defence {
	return defence{
		syncookies:  "0",
		ownEdge:     true,
		edgeService: "    strategy: " + strategy + "\n    auth_syns: 10000\n",
		resets:      resets,
		agents:      []agent{{edgeAgent, edgeOf, startEdge}},
	}
}

// Defences lists what Defend knows.
func Defences() []string { return slices.Sorted(maps.Keys(defences)) }

// KnowsDefence returns ErrNoSuchDefence, with the names there are, for a name
// that Defend does not know.
func KnowsDefence(name string) error {
	if _, ok := defences[name]; !ok {
		return fmt.Errorf("%w: %q; there are %s", ErrNoSuchDefence, name, strings.Join(Defences(), ", "))
	}
	return nil
}

// secondEdge is the agent of the other edge of two.
var secondEdge = agent{edge2Agent, edge2Of, startEdge2}

func serverOf(l *Lab) *Namespace { return l.AgentHome() }
func edgeOf(l *Lab) *Namespace   { return l.Edge.Namespace }
func edge2Of(l *Lab) *Namespace  { return l.SecondEdge.Namespace }

// Guard is a defence at work.
type Guard struct {
	lab       *Lab
	defence   defence
	processes []*Process
}

// Defend protects the server until Stop, and returns once it is protected.
func (l *Lab) Defend(ctx context.Context, name string) (*Guard, error) {
	if err := KnowsDefence(name); err != nil {
		return nil, err
	}
	if err := Supported(name); err != nil {
		return nil, err
	}
	guard := &Guard{lab: l, defence: defences[name]}
	if err := guard.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start defence %s: %w", name, err), guard.Stop())
	}
	return guard, nil
}

// Supported tells what this kernel lacks for a defence.
func Supported(name string) error {
	if len(defences[name].agents) == 0 {
		return nil
	}
	if _, err := btf.LoadKernelSpec(); err != nil {
		return fmt.Errorf("this kernel does not tell its types (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	return nil
}

func (g *Guard) start(ctx context.Context) error {
	if err := g.lab.Server.Sysctl("net.ipv4.tcp_syncookies", g.defence.syncookies); err != nil {
		return err
	}
	if err := g.stamp(g.defence.timestamps); err != nil {
		return err
	}
	if err := g.forward(); err != nil {
		return err
	}
	if g.defence.onHost {
		at, port := g.lab.serverPeer()
		if err := at.Pass(port); err != nil {
			return err
		}
	}
	g.lab.edgeService = g.defence.edgeService
	for _, agent := range g.agents() {
		args, err := agent.start(g.lab)
		if err != nil {
			return err
		}
		args = append(args, "--pin", g.lab.PinDir(agent.name))
		process, err := g.lab.Start(ctx, agent.host(g.lab), agent.name, args...)
		if err != nil {
			return err
		}
		g.processes = append(g.processes, process)
	}
	return nil
}

// stamp sets the server's timestamps, where the defence asks for a kind of them.
func (g *Guard) stamp(value string) error {
	if g.defence.timestamps == "" {
		return nil
	}
	return g.lab.Server.Sysctl("net.ipv4.tcp_timestamps", value)
}

// agents lists what this lab needs of the defence: a second edge has an agent of
// its own.
func (g *Guard) agents() []agent {
	if g.defence.ownEdge && g.lab.options.Edges > 1 {
		return append(slices.Clone(g.defence.agents), secondEdge)
	}
	return g.defence.agents
}

// forward joins the ports of a bridging edge, or leaves that to the agent.
func (g *Guard) forward() error {
	if g.lab.options.Topology != Bridge {
		return nil
	}
	if g.defence.ownEdge {
		return g.lab.PartEdge()
	}
	return g.lab.JoinEdge()
}

// Process returns a daemon by its name: "edge", "edge2", "server" or "host"; nil
// if the defence has none of that name.
func (g *Guard) Process(name string) *Process {
	for _, process := range g.processes {
		if process.Name == name {
			return process
		}
	}
	return nil
}

// onServer lists the daemons that run on the server.
func (g *Guard) onServer() (all []*Process) {
	for _, agent := range g.agents() {
		if process := g.Process(agent.name); process != nil && agent.host(g.lab) == g.lab.Server.Namespace {
			all = append(all, process)
		}
	}
	return all
}

// EdgeVerdicts returns what the edges have decided together, by name. On a host that is
// its own edge these are the verdicts of both halves, as in ServerVerdicts.
func (g *Guard) EdgeVerdicts() (map[string]uint64, error) { return g.verdicts(edgeAgent) }

// ServerVerdicts returns what the server's agent has decided, by name.
func (g *Guard) ServerVerdicts() (map[string]uint64, error) { return g.verdicts(serverAgent) }

func (g *Guard) verdicts(half string) (map[string]uint64, error) {
	total := map[string]uint64{}
	for _, agent := range g.agents() {
		if !agent.is(half) {
			continue
		}
		verdicts, err := dataplane.Verdicts(g.lab.PinDir(agent.name))
		if err != nil {
			return nil, err
		}
		for name, n := range verdicts {
			total[name] += n
		}
	}
	return total, nil
}

// is tells whether an agent is, or is part of, a half.
func (a agent) is(half string) bool {
	return a.name == half || a.name == hostAgent || a.name == kernelAgent || a.name == edge2Agent && half == edgeAgent
}

// Stop ends the daemons and detaches their programs.
func (g *Guard) Stop() error {
	var errs []error
	for _, process := range slices.Backward(g.processes) {
		errs = append(errs, process.Stop(), g.detach(process.Name))
	}
	g.processes = nil
	errs = append(errs, g.stamp("1"))
	if g.defence.onHost {
		at, port := g.lab.serverPeer()
		errs = append(errs, at.Bare(port))
	}
	return errors.Join(errs...)
}

func (g *Guard) detach(name string) error {
	if _, err := dataplane.Detach(g.lab.PinDir(name)); err != nil {
		return fmt.Errorf("detach %s: %w", name, err)
	}
	return nil
}

func startEdge(l *Lab) ([]string, error)  { return l.edgeCommand(edgeAgent, l.Edge) }
func startEdge2(l *Lab) ([]string, error) { return l.edgeCommand(edge2Agent, l.SecondEdge) }

func (l *Lab) edgeCommand(name string, edge EdgeHost) ([]string, error) {
	keys, err := l.Keys()
	if err != nil {
		return nil, err
	}
	file, err := l.WriteFile(name+".yaml", l.edgeConfig(edge, keys)+l.edgeService)
	return []string{"edge", "-c", file}, err
}

func startServer(l *Lab) ([]string, error) {
	keys, err := l.Keys()
	if err != nil {
		return nil, err
	}
	file, err := l.WriteFile("server.yaml", l.ServerConfig(keys))
	return []string{"server", "-c", file}, err
}

func startHost(l *Lab) ([]string, error) {
	return []string{
		"host", l.Server.Port, "--ports", fmt.Sprint(HTTPPort), "--setup", l.Setup(),
		"--mode", l.mode(), "--detect", "calm=" + labCalm.String(),
	}, nil
}

func startHostKernel(l *Lab) ([]string, error) {
	args := []string{"host", l.Server.Port, "--ports", fmt.Sprint(HTTPPort), "--cookies", "kernel"}
	if l.options.Mode != "" { // auto is what it is for, and its own default
		args = append(args, "--mode", l.options.Mode)
	}
	return args, nil
}

// Keys returns the path of the lab's key file and makes it the first time.
func (l *Lab) Keys() (string, error) {
	path := filepath.Join(l.Dir(), "keys")
	if l.hasKeys {
		return path, nil
	}
	made, err := l.Server.Command(context.Background(), l.options.Executable, "keys", "new", path).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make the lab's keys (%v): %s", err, made)
	}
	l.hasKeys = true
	return path, nil
}

// EdgeConfig returns the configuration of the lab's edge, or of each of two.
func (l *Lab) EdgeConfig(keys string) string { return l.edgeConfig(l.Edge, keys) }

func (l *Lab) edgeConfig(edge EdgeHost, keys string) string {
	forward := "route"
	if l.options.Topology == Bridge {
		forward = "bridge"
	}
	text := fmt.Sprintf("keys: %s\noutside: [%s]\ninside: [%s]\nforward: %s\nlearn: 0s\n%s%s    mode: always\n",
		keys, strings.Join(edge.Outside, ", "), edge.Inside, forward, l.flows(), l.service())
	if l.mode() == policy.Always.String() {
		return text
	}
	return strings.Replace(text, "    mode: always\n", l.detect(), 1)
}

func (l *Lab) flows() string {
	if l.options.Flows == 0 {
		return ""
	}
	return fmt.Sprintf("flows: %d\n", l.options.Flows)
}

// ServerConfig returns the configuration of the lab's server agent.
func (l *Lab) ServerConfig(keys string) string {
	return fmt.Sprintf("keys: %s\n%s%s    setup: %s\n", keys, l.AgentDevices(), l.service(), l.Setup())
}

// Setup is how the lab's server makes connections of cookies.
func (l *Lab) Setup() string { return cmp.Or(l.options.Setup, "auto") }

func (l *Lab) service() string {
	return fmt.Sprintf("services:\n  - name: web\n    prefixes: [%s/32, \"%s/128\"]\n    ports: [%d]\n",
		l.Server.IPv4, l.Server.IPv6, HTTPPort)
}
