package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"smartcookie/internal/control"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
	"smartcookie/internal/policy"
)

// crowdSize is how many connections the server has; each also takes a socket
// of the client's, on the same machine.
func crowdSize() int {
	if long() {
		return 1_000_000
	}
	return 100_000
}

// Each member of the crowd is a process with connections of its own to a port
// of its own: a process may have so many files.
const (
	crowdEnv  = "SMARTCOOKIE_E2E_CROWD"
	perMember = 9_500
	crowdPort = 8100
)

// crowdOf makes connections of real sockets, idle from then on, which end with
// the test.
func crowdOf(t *testing.T, l *lab.Lab, n int) {
	t.Helper()
	for member := 0; n > 0; member++ {
		source := l.Client.IPv4.As4()
		source[3] = byte(10 + member)
		addAddress(t, l.Client, netip.AddrFrom4(source))
		c := idlers{
			Client: l.Client.Name, Server: l.Server.Name, From: netip.AddrFrom4(source),
			To: netip.AddrPortFrom(l.Server.IPv4, uint16(crowdPort+member)), Count: min(n, perMember),
		}
		c.start(t)
		n -= c.Count
	}
}

func addAddress(t *testing.T, host lab.Host, a netip.Addr) {
	t.Helper()
	if err := host.Do(func() error {
		port, err := netlink.LinkByName(host.Port)
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr(a.String() + "/24")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(port, address)
	}); err != nil {
		t.Fatal(err)
	}
}

// idlers are what one process of it does.
type idlers struct {
	Client, Server string // namespaces
	From           netip.Addr
	To             netip.AddrPort
	Count          int
}

// start runs it until the test ends, and waits until its connections are there.
func (c idlers) start(t *testing.T) {
	t.Helper()
	what, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	member := exec.CommandContext(t.Context(), "/proc/self/exe")
	member.Env = append(os.Environ(), crowdEnv+"="+string(what))
	member.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	member.Stderr = &said
	out, err := member.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := member.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = member.Process.Kill(); _ = member.Wait() })
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatalf("a crowd of connections: %v %s", err, said.String())
	}
}

// runCrowd is the life of such a process.
func runCrowd(what string) error {
	var c idlers
	if err := json.Unmarshal([]byte(what), &c); err != nil {
		return err
	}
	runtime.LockOSThread()
	listener, err := c.listen()
	if err != nil {
		return err
	}
	if err := enter(c.Client); err != nil {
		return err
	}
	for i := range c.Count {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: c.From.As4(), Port: 20_000 + i}); err != nil {
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: c.To.Addr().As4(), Port: int(c.To.Port())}); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		accepted, _, err := unix.Accept(listener)
		if err != nil {
			return err
		}
		for _, end := range []int{fd, accepted} { // by a reset: nothing stays behind in TIME_WAIT
			if err := unix.SetsockoptLinger(end, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
				return err
			}
		}
	}
	fmt.Print(".")
	return unix.Pause() // until it is killed
}

func (c idlers) listen() (fd int, err error) {
	if err := enter(c.Server); err != nil {
		return 0, err
	}
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(c.To.Port())}); err != nil {
		return 0, err
	}
	return fd, unix.Listen(fd, 128)
}

func enter(namespace string) error {
	handle, err := netns.GetFromName(namespace)
	if err != nil {
		return err
	}
	defer handle.Close()
	return netns.Set(handle)
}

// cpuTime is what a process has used, the kernel's work for it included.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	ticks := 0
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const perSecond = 100 // USER_HZ
	return time.Duration(ticks) * time.Second / perSecond
}

// idleShare is the share of a core that a process uses when nothing happens.
func idleShare(t *testing.T, pid int) float64 {
	t.Helper()
	const long = 5 * time.Second
	begin, used := time.Now(), cpuTime(t, pid)
	<-time.After(long)
	return (cpuTime(t, pid) - used).Seconds() / time.Since(begin).Seconds()
}

// walkCost walks the connections of a namespace, and says how many there were
// and what CPU time it took.
func walkCost(t *testing.T, l *lab.Lab, at *lab.Namespace, first bool) (flows int, used time.Duration) {
	t.Helper()
	services := []policy.Service{{
		Name: "crowd", Domain: "default", Mode: policy.Always, Prefixes: []netip.Prefix{netip.PrefixFrom(l.Server.IPv4, 32)},
		Ports: []policy.PortRange{{Low: crowdPort, High: crowdPort + 200}},
	}}
	table, err := policy.Compile(services)
	if err != nil {
		t.Fatal(err)
	}
	if err := at.Do(func() error {
		server, err := dataplane.LoadServer(nil, dataplane.ServerConfig{
			Services: services, Table: table, Domains: []string{"default"}, Epochs: 1, Recent: 1024,
			Interfaces: []dataplane.Interface{{Name: "lo", Index: 1}}, HearsEdges: true,
		})
		if err != nil {
			return err
		}
		defer server.Close()
		if first { // of the sockets; what follows reads the table
			return timed(&used, func() error { return server.Walk(func(control.Flow) { flows++ }) })
		}
		if err := server.Walk(func(control.Flow) {}); err != nil {
			return err
		}
		return timed(&used, func() error { return server.Walk(func(control.Flow) { flows++ }) })
	}); err != nil {
		t.Fatal(err)
	}
	return flows, used
}

// timed tells the CPU time that this thread uses.
func timed(used *time.Duration, do func() error) error {
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &before); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &after); err != nil {
		return err
	}
	*used = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	return nil
}

// The cost is that of one announcement and of the share of a walk over the
// sockets that comes with it, since everything else is one message a second; at
// the usual generation there is one every 30 s.
func TestAnnouncingIdleConnectionsCostsLittle(t *testing.T) {
	const every = 30 * time.Second // half of the usual generation
	l := newLab(t, lab.Options{})
	n := crowdSize()
	crowdOf(t, l, n)
	flows, sockets := walkCost(t, l, l.Server.Namespace, true)
	again, table := walkCost(t, l, l.Server.Namespace, false)
	none, _ := walkCost(t, l, l.Edge.Namespace, true)
	if flows != n || again != n || none != 0 {
		t.Errorf("%d connections, %d in the table and %d elsewhere are found, want %d, as many, and 0", flows, again, none, n)
	}
	t.Logf("a walk over %d connections: %s of the sockets, %s of the table", n, sockets, table)
	split := newSpeaking(t, l, false, "learn: 0s", "learn: 0s\ngeneration: 10s\nflows: 1000000")
	split.server.start(t)
	pid := split.server.process.Pid()
	idle := idleShare(t, pid)
	split.edge.start(t)
	counted := func(name string) uint64 { return split.server.verdicts(t)[name] }
	sent := func() uint64 { return counted("control_announced") / uint64(n) }
	begin := time.Now()
	awaitPhase(t, split.edge, "grace", 2*time.Second+time.Duration(n)*time.Microsecond)
	t.Logf("%d connections: the edge knows them %s after it was ready", n, time.Since(begin))
	eventually(t, time.Minute, "the first announcement", func() bool { return sent() >= 1 })
	begin, before, bytesBefore, first := time.Now(), cpuTime(t, pid), counted("control_sent_bytes"), sent()
	const rounds = 10
	eventually(t, 2*time.Minute, "some announcements", func() bool { return sent() >= first+rounds })
	used := cpuTime(t, pid) - before - time.Duration(idle*float64(time.Since(begin)))
	t.Logf("the daemon without an edge: %.2f%% of a core", 100*idle)
	per := used/rounds + sockets/dataplane.SocketsEvery
	bytes := float64(counted("control_sent_bytes")-bytesBefore) / rounds
	share := per.Seconds() / every.Seconds()
	t.Logf("%d connections: %s of CPU and %.0f bytes for each announcement; every %s: %.2f%% of a core, %.3f MB/s",
		n, per, bytes, every, 100*share, bytes/every.Seconds()/1e6)
	million, limit := 1e6/float64(n), 0.02
	if !long() {
		limit = 0.05 // what does not grow with their number weighs more for a tenth of them
	}
	t.Logf("for a million that is %.2f%% of a core", 100*share*million)
	if share*million > limit {
		t.Errorf("that is more than %.0f%%", 100*limit)
	}
	if rate := bytes * million / every.Seconds(); rate > 3e6 {
		t.Errorf("for a million that is %.1f MB/s, more than 3", rate/1e6)
	}
	if learned := split.edge.verdicts(t)["control_learned"]; learned < uint64(n) {
		t.Errorf("the edge has learnt %d", learned)
	}
}
