package e2e

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"smartcookie/internal/badwire"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
	"smartcookie/internal/policy"
)

// The ports of the crafted client. Its kernel neither sees nor answers what
// comes to them.
const (
	wirePortsFrom, wirePortsTo = 20000, 29999
	wirePatience               = 10 * time.Second
)

// wireShape is a place of the halves and a way between them.
type wireShape struct {
	name     string
	host     bool
	topology lab.Topology
	tenant   bool // the server is in a namespace behind its agent's
	proxy    bool // the edge alone
}

var (
	wireRoute  = wireShape{name: "split-route", topology: lab.Route}
	wireBridge = wireShape{name: "split-bridge", topology: lab.Bridge}
	wireHost   = wireShape{name: "host", host: true, topology: lab.Route}
	wireTenant = wireShape{name: "tenant", topology: lab.Route, tenant: true}
	wireShapes = []wireShape{wireRoute, wireBridge, wireHost}
	// wireServers are the shapes and a server out of its agent's sight.
	wireServers = append(slices.Clone(wireShapes), wireTenant)
)

// wireLab is a lab whose client's packets are made by hand.
type wireLab struct {
	*lab.Lab
	shape  wireShape
	agent  string // that holds the server's counters
	daemon *lab.Process
	random *rand.Rand
	client *wirePort // where the client's packets leave
	only4  bool      // the server's listeners are IPv4 sockets
	behind *wirePort // the edge's inside port: what is sent here has passed no edge

	mu    sync.Mutex
	flows map[wireFlowKey]*wireFlow
	port  uint16
}

type wireFlowKey struct {
	v6   bool
	port uint16
}

// wireSettings are what differs from a plain lab.
type wireSettings struct {
	server  string            // more lines of the server's configuration
	sysctls map[string]string // of the server
	before  func(*wireLab)    // runs while nothing defends the server
	setup   string            // how it makes connections, if the test cares
	resolve bool
	inside  *badwire.Faults // of the server's link
}

// newWire makes a lab with a crafted client and a defended server.
func newWire(t *testing.T, shape wireShape, settings wireSettings) *wireLab {
	t.Helper()
	need(t, "nft", "ss")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := newLab(t, lab.Options{Topology: shape.topology, Tenant: shape.tenant, Resolve: settings.resolve, Setup: settings.setup, InsideWire: settings.inside})
	w := &wireLab{
		Lab: l, shape: shape, agent: "server", port: wirePortsFrom,
		random: rand.New(rand.NewPCG(seed, 0)), flows: make(map[wireFlowKey]*wireFlow),
	}
	w.deafen(t)
	for name, value := range settings.sysctls {
		if err := l.Server.Sysctl(name, value); err != nil {
			t.Fatal(err)
		}
	}
	w.client = openWirePort(t, l.Client.Namespace, l.Client.Port, w.deliver)
	w.behind = openWirePort(t, l.Edge.Namespace, l.Edge.Inside, nil)
	if settings.before != nil {
		settings.before(w)
	}
	w.defend(t, settings.server)
	return w
}

// deafen keeps the crafted client's packets from the client's kernel, which
// would answer them with RST. Taps see them before.
func (w *wireLab) deafen(t *testing.T) {
	t.Helper()
	rules := fmt.Sprintf("add table inet wire; add chain inet wire in { type filter hook input priority 0; }; "+
		"add rule inet wire in tcp dport %d-%d drop", wirePortsFrom, wirePortsTo)
	if out, err := w.Client.Command(t.Context(), "nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

func (w *wireLab) defend(t *testing.T, more string) {
	t.Helper()
	if w.shape.proxy {
		w.agent = "edge"
		w.daemon = w.start(t, w.Edge.Namespace, "edge", w.proxyConfig(t)+more)
		return
	}
	if w.shape.host {
		w.agent = "host"
		guard, err := w.Defend(t.Context(), "host")
		if err != nil {
			t.Fatal(err)
		}
		w.daemon = guard.Process("host")
		return
	}
	keys, err := w.Keys()
	if err != nil {
		t.Fatal(err)
	}
	w.daemon = w.start(t, w.AgentHome(), "server", w.ServerConfig(keys)+more)
	w.start(t, w.Edge.Namespace, "edge", w.EdgeConfig(keys))
}

func (w *wireLab) start(t *testing.T, at *lab.Namespace, agent, config string) *lab.Process {
	t.Helper()
	file, err := w.WriteFile(agent+".yaml", config)
	if err != nil {
		t.Fatal(err)
	}
	process, err := w.Start(t.Context(), at, agent, agent, "-c", file, "--pin", w.PinDir(agent))
	if err != nil {
		t.Fatal(err)
	}
	return process
}

// ---- verdicts ----

type wireVerdicts map[string]uint64

// verdicts are the server's half's so far.
func (w *wireLab) verdicts(t *testing.T) wireVerdicts { return w.verdictsOf(t, w.agent) }

// verdictsOf reads the counters of no service and of the lab's only one: all of
// them take a hundred times as long.
func (w *wireLab) verdictsOf(t *testing.T, agent string) wireVerdicts {
	t.Helper()
	now := wireVerdicts{}
	files, err := filepath.Glob(filepath.Join(w.PinDir(agent), "*", "maps", "counters"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no counters of %s: %v", agent, err)
	}
	for _, file := range files {
		now.add(t, file)
	}
	if setupOf() != "native" || w.shape.tenant { // of either kind
		now["setup"] += now["setup_translated"]
	}
	return now
}

func (v wireVerdicts) add(t *testing.T, file string) {
	t.Helper()
	counters, err := ebpf.LoadPinnedMap(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer counters.Close()
	stride := counters.MaxEntries() / (policy.MaxServices + 1)
	var perCPU []uint64
	for service := range uint32(2) {
		for i, name := range dataplane.VerdictNames() {
			if err := counters.Lookup(service*stride+uint32(i), &perCPU); err != nil {
				t.Fatal(err)
			}
			for _, n := range perCPU {
				v[name] += n
			}
		}
	}
}

// since is what was decided after `before`.
func (v wireVerdicts) since(before wireVerdicts) wireVerdicts {
	diff := wireVerdicts{}
	for name, n := range v {
		if n != before[name] {
			diff[name] = n - before[name]
		}
	}
	return diff
}

// expect waits until exactly so many new verdicts of each name are counted.
func (w *wireLab) expect(t *testing.T, before wireVerdicts, want wireVerdicts) {
	t.Helper()
	var got wireVerdicts
	fits := func() bool {
		got = w.verdicts(t).since(before)
		for name, n := range want {
			if got[name] != n {
				return false
			}
		}
		return true
	}
	if !wirePoll(t, wirePatience/5, fits) {
		t.Fatalf("verdicts %v, want %v", got, want)
	}
}

// wirePoll says whether a condition holds within some time. The caller knows
// what to say if it does not.
func wirePoll(t *testing.T, within time.Duration, holds func() bool) bool {
	t.Helper()
	deadline := time.After(within)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			return false
		case <-tick.C:
		}
	}
	return true
}

// await waits until so many new verdicts of these names are counted together.
func (w *wireLab) await(t *testing.T, before wireVerdicts, total uint64, names ...string) wireVerdicts {
	t.Helper()
	var got wireVerdicts
	if !wirePoll(t, wirePatience, func() bool {
		got = w.verdicts(t).since(before)
		var sum uint64
		for _, name := range names {
			sum += got[name]
		}
		return sum >= total
	}) {
		t.Fatalf("verdicts %v, want %d of %v", got, total, names)
	}
	return got
}

// states lists the kernel's sockets at the server for a client's port.
func (w *wireLab) states(t *testing.T, port uint16) []string {
	t.Helper()
	out, err := w.Server.Command(t.Context(), "ss", "-Htan", fmt.Sprintf("sport = :%d and dport = :%d", lab.HTTPPort, port)).Output()
	if err != nil {
		t.Fatalf("ss: %v", err)
	}
	var all []string
	for line := range strings.Lines(string(out)) {
		all = append(all, strings.Fields(line)[0])
	}
	return all
}

// awaitState waits until the server's only socket for the flow is in a state.
func (w *wireLab) awaitState(t *testing.T, f *wireFlow, want string) {
	t.Helper()
	var got string
	if !wirePoll(t, wirePatience, func() bool {
		got = strings.Join(w.states(t, f.port), " ")
		return got == want
	}) {
		t.Fatalf("the server's socket is in %q, want %q", got, want)
	}
}

// ---- raw ports ----

// wirePort sends and receives whole frames on a device.
type wirePort struct {
	raw  syscall.RawConn
	mac  net.HardwareAddr
	file *os.File
}

// wireFrame is a frame that a port has seen.
type wireFrame struct {
	bytes []byte
	out   bool // sent by the host, not received
	at    time.Time
}

func openWirePort(t *testing.T, at *lab.Namespace, name string, deliver func(wireFrame)) *wirePort {
	t.Helper()
	p := &wirePort{}
	var fd int
	err := at.Do(func() error {
		device, err := net.InterfaceByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		p.mac = device.HardwareAddr
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		protocol := uint16(0)
		if deliver != nil {
			protocol = binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: device.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) // a smaller one only drops
	p.file = os.NewFile(uintptr(fd), name)
	if p.raw, err = p.file.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	if deliver == nil {
		close(ended)
	} else {
		go func() { defer close(ended); p.receive(deliver) }()
	}
	t.Cleanup(func() { p.file.Close(); <-ended })
	return p
}

func (p *wirePort) receive(deliver func(wireFrame)) {
	buffer := make([]byte, 1<<17)
	for {
		var n int
		var from unix.Sockaddr
		var err error
		closed := p.raw.Read(func(fd uintptr) bool {
			n, from, err = unix.Recvfrom(int(fd), buffer, 0)
			return err != unix.EAGAIN
		})
		if closed != nil {
			return
		}
		if err != nil {
			continue
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		deliver(wireFrame{
			bytes: append([]byte{}, buffer[:n]...), out: ok && link.Pkttype == unix.PACKET_OUTGOING, at: time.Now(),
		})
	}
}

func (p *wirePort) send(t *testing.T, frame []byte) {
	t.Helper()
	var err error
	closed := p.raw.Write(func(fd uintptr) bool {
		_, err = unix.Write(int(fd), frame)
		return err != unix.EAGAIN
	})
	if closed != nil || err != nil {
		t.Fatalf("send a frame: %v %v", closed, err)
	}
}

// wireTap records what a port sees.
type wireTap struct {
	port *wirePort
	mu   sync.Mutex
	all  []wireFrame
}

func newWireTap(t *testing.T, at *lab.Namespace, name string) *wireTap {
	t.Helper()
	tap := &wireTap{}
	tap.port = openWirePort(t, at, name, func(f wireFrame) {
		tap.mu.Lock()
		defer tap.mu.Unlock()
		tap.all = append(tap.all, f)
	})
	return tap
}

// frames are those seen so far for which `is` holds.
func (tap *wireTap) frames(is func(wireFrame) bool) []wireFrame {
	tap.mu.Lock()
	defer tap.mu.Unlock()
	var some []wireFrame
	for _, f := range tap.all {
		if is(f) {
			some = append(some, f)
		}
	}
	return some
}

// ---- packets ----

// wirePacket is a TCP segment with its IP header.
type wirePacket struct {
	tcp layers.TCP
	ip4 *layers.IPv4
	ip6 *layers.IPv6
}

func parseWirePacket(frame []byte) (wirePacket, bool) {
	parsed := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	tcp, ok := parsed.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok {
		return wirePacket{}, false
	}
	p := wirePacket{tcp: *tcp}
	p.ip4, _ = parsed.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	p.ip6, _ = parsed.Layer(layers.LayerTypeIPv6).(*layers.IPv6)
	return p, true
}

// stamps are a segment's timestamps.
func (p *wirePacket) stamps() (tsval, tsecr uint32, ok bool) {
	for _, o := range p.tcp.Options {
		if o.OptionType == layers.TCPOptionKindTimestamps && len(o.OptionData) == 8 {
			return binary.BigEndian.Uint32(o.OptionData), binary.BigEndian.Uint32(o.OptionData[4:]), true
		}
	}
	return 0, 0, false
}

// deliver hands a frame to the flow that it belongs to.
func (w *wireLab) deliver(f wireFrame) {
	if f.out {
		return
	}
	p, ok := parseWirePacket(f.bytes)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if flow := w.flows[wireFlowKey{p.ip6 != nil, uint16(p.tcp.DstPort)}]; flow != nil {
		select {
		case flow.inbox <- p:
		default: // a full inbox loses packets as a full link does
		}
	}
}

// network makes the Ethernet and IP headers of a packet to the server.
func (w *wireLab) network(v6 bool, source netip.Addr, protocol layers.IPProtocol) (*layers.Ethernet, gopacket.NetworkLayer) {
	ethernet := &layers.Ethernet{SrcMAC: w.client.mac, DstMAC: w.gatewayMAC(), EthernetType: layers.EthernetTypeIPv4}
	target := w.Server.Addr(v6)
	if v6 {
		ethernet.EthernetType = layers.EthernetTypeIPv6
		return ethernet, &layers.IPv6{
			Version: 6, NextHeader: protocol, HopLimit: 64, SrcIP: source.AsSlice(), DstIP: target.AsSlice(),
		}
	}
	return ethernet, &layers.IPv4{
		Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: protocol,
		SrcIP: source.AsSlice(), DstIP: target.AsSlice(),
	}
}

// gatewayMAC is where the client's frames go.
func (w *wireLab) gatewayMAC() net.HardwareAddr {
	at, port := w.Server.Namespace, w.Server.Port
	if w.shape.topology == lab.Route {
		at, port = w.Edge.Namespace, w.Edge.Outside[0]
	}
	mac, err := at.HardwareAddr(port)
	if err != nil {
		panic(err) // the lab has just made it
	}
	return mac
}

// redirected is the frame as it must be when it begins at the edge's inside
// port.
func (w *wireLab) redirected(frame []byte) []byte {
	mac, err := w.Server.HardwareAddr(w.Server.Port)
	if err != nil {
		panic(err) // the lab has just made it
	}
	moved := append(append([]byte{}, mac...), w.behind.mac...)
	return append(moved, frame[12:]...)
}

func serializeWire(t *testing.T, all ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, all...); err != nil {
		t.Fatal(err)
	}
	return append([]byte{}, buffer.Bytes()...)
}

// ---- flows ----

// wireFlags are the flags of a segment.
type wireFlags struct{ syn, ack, fin, rst, psh, urg bool }

var (
	wireACK    = wireFlags{ack: true}
	wireData   = wireFlags{ack: true, psh: true}
	wireFINACK = wireFlags{ack: true, fin: true}
	wireRST    = wireFlags{rst: true}
)

// wireFlow is the client's side of one connection, driven by the test.
type wireFlow struct {
	t      *testing.T
	w      *wireLab
	v6     bool
	port   uint16
	source netip.Addr
	behind bool // its packets pass no edge

	isn    uint32
	stamps bool
	tsval  uint32

	cookie uint32
	tsecr  uint32 // the server's latest TSval
	got    []byte // the server's stream
	fin    bool   // and its end
	sent   int    // bytes of the client's stream, where a test keeps count
	reset  *wirePacket
	first  *uint32 // sequence number of the server's first segment after the SYN-ACK
	latest wirePacket
	count  int // segments since the SYN-ACK
	inbox  chan wirePacket
}

// flow is a new one from a port that has not been used.
func (w *wireLab) flow(t *testing.T, v6 bool) *wireFlow {
	t.Helper()
	w.port++
	f := &wireFlow{
		t: t, w: w, v6: v6, port: w.port, source: w.Client.Addr(v6), isn: w.random.Uint32(),
		stamps: true, tsval: 1 << 30, inbox: make(chan wirePacket, 8192),
	}
	w.register(f)
	return f
}

// reuse is a new flow from the same port.
func (f *wireFlow) reuse() *wireFlow {
	next := &wireFlow{
		t: f.t, w: f.w, v6: f.v6, port: f.port, source: f.source, isn: f.w.random.Uint32(),
		stamps: f.stamps, tsval: f.tsval + 1000, inbox: make(chan wirePacket, 8192),
	}
	f.w.register(next)
	return next
}

func (w *wireLab) register(f *wireFlow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flows[wireFlowKey{f.v6, f.port}] = f
}

// window is what the client announces, unscaled.
const wireWindow = 0xfff0

func (f *wireFlow) options(syn bool) []layers.TCPOption {
	var all []layers.TCPOption
	if syn {
		all = append(all,
			layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{0x05, 0xa0}},
			layers.TCPOption{OptionType: layers.TCPOptionKindSACKPermitted, OptionLength: 2},
			layers.TCPOption{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{7}},
		)
	}
	if f.stamps {
		data := binary.BigEndian.AppendUint32(nil, f.tsval)
		all = append(all, layers.TCPOption{
			OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: binary.BigEndian.AppendUint32(data, f.tsecr),
		})
	}
	return all
}

// raw makes a segment with any numbers.
func (f *wireFlow) raw(seq, ack uint32, flags wireFlags, payload []byte) []byte {
	f.t.Helper()
	ethernet, network := f.w.network(f.v6, f.source, layers.IPProtocolTCP)
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(f.port), DstPort: lab.HTTPPort, Seq: seq, Ack: ack, Window: wireWindow,
		SYN: flags.syn, ACK: flags.ack, FIN: flags.fin, RST: flags.rst, PSH: flags.psh, URG: flags.urg,
	}
	if !flags.rst {
		tcp.Options = f.options(flags.syn)
	}
	if err := tcp.SetNetworkLayerForChecksum(network); err != nil {
		f.t.Fatal(err)
	}
	return serializeWire(f.t, ethernet, network.(gopacket.SerializableLayer), tcp, gopacket.Payload(payload))
}

// frame makes the segment at an offset of the client's stream; it acknowledges
// all that came from the server.
func (f *wireFlow) frame(at int, flags wireFlags, payload []byte) []byte {
	f.t.Helper()
	ack := f.cookie + 1 + uint32(len(f.got))
	if f.fin {
		ack++
	}
	return f.raw(f.isn+1+uint32(at), ack, flags, payload)
}

func (f *wireFlow) emit(frames ...[]byte) {
	f.t.Helper()
	for _, frame := range frames {
		if f.behind {
			f.w.behind.send(f.t, f.w.redirected(frame))
		} else {
			f.w.client.send(f.t, frame)
		}
	}
}

func (f *wireFlow) send(at int, flags wireFlags, payload []byte) []byte {
	f.t.Helper()
	frame := f.frame(at, flags, payload)
	f.emit(frame)
	return frame
}

// open sends the SYN and takes the SYN-ACK. The defence must answer the first
// one; before it stands, the links may still be coming up.
func (f *wireFlow) open() {
	f.t.Helper()
	syn := f.raw(f.isn, 0, wireFlags{syn: true}, nil)
	f.emit(syn)
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for deadline := time.After(wirePatience); ; {
		select {
		case p := <-f.inbox:
			if !p.tcp.SYN || !p.tcp.ACK || p.tcp.Ack != f.isn+1 {
				continue // of the port's connection before
			}
			f.cookie = p.tcp.Seq
			f.tsecr, _, _ = p.stamps()
			return
		case <-again.C:
			if f.w.daemon == nil {
				f.emit(syn)
			}
		case <-deadline:
			f.t.Fatal("no answer to the SYN")
		}
	}
}

// connect completes the handshake with data and waits for its echo. It returns
// the packet that set up.
func (f *wireFlow) connect(data string) []byte {
	f.t.Helper()
	f.open()
	if f.w.shape.proxy { // what comes before the window is open has to come again
		f.send(0, wireACK, nil)
		f.expectWindow()
	}
	setup := f.send(0, wireData, []byte(data))
	f.expectStream(data)
	return setup
}

// expectWindow waits until a proxy opens the window.
func (f *wireFlow) expectWindow() {
	f.t.Helper()
	f.pump("the window is opened", func() bool { return f.count > 0 && f.latest.tcp.Window > 0 })
	if f.latest.tcp.Seq != f.cookie+1 || f.latest.tcp.Ack != f.isn+1 {
		f.t.Errorf("the window update has the numbers cookie+%d, ISN+%d", f.latest.tcp.Seq-f.cookie, f.latest.tcp.Ack-f.isn)
	}
}

// take follows the server's stream.
func (f *wireFlow) take(p wirePacket) {
	if p.tcp.RST {
		f.reset = &p
		return
	}
	if p.tcp.SYN {
		return
	}
	f.count++
	f.latest = p
	if f.first == nil {
		f.first = &p.tcp.Seq
	}
	if tsval, _, ok := p.stamps(); ok {
		f.tsecr = tsval
	}
	at := int32(p.tcp.Seq - f.cookie - 1)
	payload := p.tcp.Payload
	if skip := len(f.got) - int(at); at >= 0 && skip >= 0 && skip <= len(payload) {
		f.got = append(f.got, payload[skip:]...)
		f.fin = f.fin || p.tcp.FIN
	}
}

// pump takes packets until the condition holds.
func (f *wireFlow) pump(what string, holds func() bool) {
	f.t.Helper()
	f.pumpWith(what, holds, nil)
}

// pumpWith also does something now and then.
func (f *wireFlow) pumpWith(what string, holds func() bool, do func()) {
	f.t.Helper()
	deadline, tick := time.After(wirePatience), time.NewTicker(time.Second)
	defer tick.Stop()
	for !holds() {
		select {
		case p := <-f.inbox:
			f.take(p)
		case <-tick.C:
			if do != nil {
				do()
			}
		case <-deadline:
			f.t.Fatalf("port %d: not within %s: %s; server's stream %d bytes %.40q, fin %v, reset %v, sockets %v",
				f.port, wirePatience, what, len(f.got), f.got, f.fin, f.reset != nil, f.w.states(f.t, f.port))
		}
	}
}

// drain takes what is there already.
func (f *wireFlow) drain() {
	for {
		select {
		case p := <-f.inbox:
			f.take(p)
		default:
			return
		}
	}
}

// expectStream waits until the server has sent exactly this. It acknowledges
// only if that takes long: a server that had to repeat itself on a busy machine
// waits for it.
func (f *wireFlow) expectStream(want string) {
	f.t.Helper()
	f.pumpWith("the server's answer", func() bool { return len(f.got) >= len(want) || f.reset != nil }, func() {
		if len(f.got) > 0 {
			f.emit(f.raw(f.latest.tcp.Ack, f.cookie+1+uint32(len(f.got)), wireACK, nil))
		}
	})
	if string(f.got) != want {
		f.t.Fatalf("the server has sent %.80q (reset %v), want %.80q", f.got, f.reset != nil, want)
	}
}

func (f *wireFlow) expectFIN() {
	f.t.Helper()
	f.pump("the server's FIN", func() bool { return f.fin })
}

func (f *wireFlow) expectReset() {
	f.t.Helper()
	f.pump("a RST", func() bool { return f.reset != nil })
}

// expectCookieIsISN checks that nothing is translated.
func (f *wireFlow) expectCookieIsISN() {
	f.t.Helper()
	if f.first == nil || *f.first != f.cookie+1 {
		f.t.Fatalf("the server's first sequence number is %v, want cookie+1 = %d", f.first, f.cookie+1)
	}
}
