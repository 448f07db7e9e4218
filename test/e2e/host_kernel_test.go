package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/lab"
)

// newHostKernel prepares the host with the kernel's own cookies for the lab's
// HTTP and echo ports.
func newHostKernel(t *testing.T, l *lab.Lab, flags ...string) *daemon {
	t.Helper()
	if err := l.Edge.Pass(l.Edge.Inside); err != nil { // see newHost
		t.Fatal(err)
	}
	args := []string{"host", l.Server.Port, "--ports", fmt.Sprintf("%d,%d", lab.HTTPPort, echoPort), "--cookies", "kernel"}
	return &daemon{lab: l, at: l.Server.Namespace, name: "host", args: append(args, flags...)}
}

// kernelSysctls sets what cookies the server's kernel gives, and what of
// timestamps it hides.
func kernelSysctls(t *testing.T, l *lab.Lab, syncookies, timestamps string) {
	t.Helper()
	if err := errors.Join(
		l.Server.Sysctl("net.ipv4.tcp_syncookies", syncookies), l.Server.Sysctl("net.ipv4.tcp_timestamps", timestamps),
	); err != nil {
		t.Fatal(err)
	}
}

func TestKernelCookiesServeEveryRequestDuringAFlood(t *testing.T) {
	for _, c := range []lab.Case{
		{Flood: 100_000}, {Flood: 100_000, IPv6: true, Profile: lab.Linux},
	} {
		t.Run(family(c.IPv6), func(t *testing.T) {
			c.Defence, c.Duration = "host-kernel", floodTime()
			report, err := newLab(t, lab.Options{}).Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			allServed(t, c.Defence, report.Benign)
			if report.Flood.OfferedPPS < aFlood || report.Flood.AnsweredPPS < aFlood {
				t.Errorf("%.0f packets per second offered, %.0f answered", report.Flood.OfferedPPS, report.Flood.AnsweredPPS)
			}
			if v := report.Server.Verdicts; v["answer_syn"] < uint64(aFlood*floodTime().Seconds()) || v["pass_kernel_cookie"] == 0 {
				t.Errorf("verdicts %v", v)
			}
			t.Logf("%.0f SYNs per second offered, %.0f answered", report.Flood.OfferedPPS, report.Flood.AnsweredPPS)
		})
	}
}

// kernelViews connects and greets, and returns what both kernels say of the
// connection.
func kernelViews(t *testing.T, l *lab.Lab, ipv6 bool) (server, client view) {
	t.Helper()
	conn, err := dialIn(l.Client.Namespace, net.Dialer{}, webAddress(l, ipv6))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := greet(conn); err != nil {
		t.Fatal(err)
	}
	port := conn.LocalAddr().(*net.TCPAddr).Port
	return viewOf(t, l.Server.Namespace, lab.HTTPPort, port), viewOf(t, l.Client.Namespace, port, lab.HTTPPort)
}

func TestConnectionsOfKernelCookiesAreAsTheKernelsOwn(t *testing.T) {
	need(t, "nginx", "curl", "ss")
	l := newLab(t, lab.Options{})
	root := startNginx(t, l)
	kernelSysctls(t, l, "1", "2")
	if err := l.Client.Sysctl("net.ipv4.tcp_ecn", "1"); err != nil {
		t.Fatal(err)
	}
	plain := map[bool][2]view{}
	for _, ipv6 := range []bool{false, true} {
		server, client := kernelViews(t, l, ipv6)
		plain[ipv6] = [2]view{server, client}
	}
	kernelSysctls(t, l, "2", "2")
	host := newHostKernel(t, l, "--flood-syns", "0")
	host.start(t)
	for _, ipv6 := range []bool{false, true} {
		t.Run(family(ipv6), func(t *testing.T) {
			before := host.verdicts(t)
			server, client := kernelViews(t, l, ipv6)
			want := plain[ipv6]
			if server != want[0] || client != want[1] || !server.sack || !server.timestamps || !server.ecn || server.scales == "" {
				t.Errorf("the server has %+v, the client %+v, want %+v and %+v", server, client, want[0], want[1])
			}
			after := host.verdicts(t)
			if after["answer_syn"] == before["answer_syn"] || after["pass_kernel_cookie"] == before["pass_kernel_cookie"] {
				t.Errorf("no cookie of the kernel made this connection: %v", after)
			}
			sum := randomFile(t, root+"/file", 20<<20)
			downloadIs(t, l, ipv6, sum)
			uploadIs(t, l, ipv6, root, sum)
		})
	}
	if v := host.verdicts(t); v["drop_bad_cookie"] > 0 {
		t.Errorf("live connections have lost packets: %v", v)
	}
}

func TestKernelCookiesWithoutPlainTimestampsWorkAndAreComplainedAbout(t *testing.T) {
	need(t, "nginx", "ss")
	l := newLab(t, lab.Options{})
	startNginx(t, l)
	kernelSysctls(t, l, "2", "1")
	host := newHostKernel(t, l, "--flood-syns", "0")
	host.start(t)
	says := func(what string) {
		t.Helper()
		eventually(t, 30*time.Second, fmt.Sprintf("%q is said", what), func() bool { return strings.Contains(string(host.process.Log()), what) })
	}
	says(`msg="tcp_timestamps is 1: connections made from cookies lose window scale, SACK and timestamps" mend="sysctl -w net.ipv4.tcp_timestamps=2"`)
	for _, ipv6 := range []bool{false, true} {
		if server, client := kernelViews(t, l, ipv6); server.sack || server.timestamps || server.scales != "" || client.scales != "" {
			t.Errorf("the server has %+v, the client %+v", server, client)
		}
	}
	kernelSysctls(t, l, "2", "2")
	if server, _ := kernelViews(t, l, false); !server.sack || !server.timestamps || server.scales == "" {
		t.Errorf("a change of the sysctl is not heeded: %+v", server)
	}
	says(`msg="mended: tcp_timestamps is 1`)
}

func TestKernelCookiesOnABadLine(t *testing.T) {
	l := newLab(t, lab.Options{Wire: &badwire.Faults{Loss: 5, Delay: 2 * time.Millisecond, Seed: 2}})
	serveExchanges(t, l)
	kernelSysctls(t, l, "2", "2")
	host := newHostKernel(t, l, "--flood-syns", "0")
	host.start(t)
	trial := &trialOf{lab: l, stacks: twoStacks(t, l), seed: 7}
	trial.lossyStreams(t)
	if v := host.verdicts(t); v["pass_kernel_cookie"] == 0 {
		t.Errorf("no cookie came back: %v", v)
	}
}

// echoIn sends back what comes to a port of a namespace, until the test ends.
func echoIn(t *testing.T, at *lab.Namespace, port uint16) {
	t.Helper()
	listener := listenIn(t, at, fmt.Sprintf(":%d", port))
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // how it ends, the client finds out
			}()
		}
	}()
}

// What is not a SYN to a listener of a listed port is none of its business.
func TestKernelCookiesLeaveEverythingElseAlone(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l) // and nobody on the echo port
	kernelSysctls(t, l, "2", "2")
	newHostKernel(t, l, "--flood-syns", "0").start(t)
	const unlisted, closed = 8090, 8091
	echoIn(t, l.Server.Namespace, unlisted)
	echoIn(t, l.Client.Namespace, unlisted)
	for _, ipv6 := range []bool{false, true} {
		server, client := l.Server.Addr(ipv6), l.Client.Addr(ipv6)
		for _, port := range []uint16{closed, echoPort} {
			conn, err := dialIn(l.Client.Namespace, net.Dialer{}, netip.AddrPortFrom(server, port).String())
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("port %d, %s: %v, %v", port, family(ipv6), conn, err)
			}
		}
		for _, way := range []struct {
			from *lab.Namespace
			to   netip.Addr
		}{{l.Client.Namespace, server}, {l.Server.Namespace, client}} {
			conn, err := dialIn(way.from, net.Dialer{}, netip.AddrPortFrom(way.to, unlisted).String())
			if err != nil {
				t.Errorf("to %s: %v", way.to, err)
				continue
			}
			if err := (&talk{conn: conn, random: rand.NewChaCha8([32]byte{1})}).say(100_000, requestLimit); err != nil {
				t.Errorf("to %s: %v", way.to, err)
			}
			conn.Close()
		}
	}
}

// portModes reads the command's JSON, by port.
func (d *daemon) portModes(t *testing.T) map[uint16]dataplane.PortMode {
	t.Helper()
	out, err := d.at.Command(context.Background(), program, "status", "-o", "json", "--pin", d.pins()).Output()
	if err != nil {
		t.Fatalf("status: %v: %s", err, out)
	}
	var status struct {
		Ports []dataplane.PortMode `json:"ports"`
	}
	if err := json.Unmarshal(out, &status); err != nil {
		t.Fatal(err)
	}
	ports := make(map[uint16]dataplane.PortMode)
	for _, p := range status.Ports {
		ports[p.Port] = p
	}
	return ports
}

// awaitMode waits until the echo port is in a mode after so many changes.
func (d *daemon) awaitMode(t *testing.T, mode string, changes uint32) dataplane.PortMode {
	t.Helper()
	var p dataplane.PortMode
	eventually(t, 30*time.Second, fmt.Sprintf("mode %s after %d changes", mode, changes), func() bool {
		p = d.portModes(t)[echoPort]
		return p.Mode == mode && p.Changes >= changes
	})
	if p.Changes != changes {
		t.Errorf("%d changes of mode, want %d", p.Changes, changes)
	}
	return p
}

// floodUntil floods until the echo port is in flood mode, and a little longer.
func (d *daemon) floodUntil(t *testing.T, changes uint32) {
	t.Helper()
	flood, err := d.lab.StartFlood(lab.FloodOptions{Rate: besideFlood, Port: echoPort, Limit: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	p := d.awaitMode(t, "flood", changes)
	eventually(t, 20*time.Second, "SYNs are answered", func() bool { return d.portModes(t)[echoPort].Answered > p.Answered+aFlood/10 })
	if err := flood.Stop(); err != nil {
		t.Fatal(err)
	}
}

// The whole life of a port: nobody who is connected notices.
func TestKernelCookiesComeAndGoUnderLiveConnections(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	serveEcho(t, l)
	kernelSysctls(t, l, "2", "2") // with 1 a queue that the flood has filled is its sign for a minute
	talks := newTalks(t, l, 200)
	busy := startTransfers(t.Context(), talks[100:])
	t.Cleanup(busy.stop)
	host := newHostKernel(t, l, "--flood-syns", "2000", "--calm", "2s")
	host.start(t)
	if p := host.awaitMode(t, "passive", 0); p.Answered != 0 {
		t.Errorf("%d SYNs were answered before any flood", p.Answered)
	}
	host.floodUntil(t, 1)
	host.awaitMode(t, "passive", 2)
	allAnswer(t, "idle connections after the first flood", talks[:100])
	log := string(host.process.Log())
	for _, line := range []string{`msg="flood mode" port=8007 because="500 SYNs within `, `msg="passive mode" port=8007 because="calm for 2s" lasted=`} {
		if !strings.Contains(log, line) {
			t.Errorf("%q is not in the log: %s", line, log)
		}
	}

	host.kill(t)
	host.floodUntil(t, 3)
	host.awaitMode(t, "passive", 3) // by the clock; what changes it is the next packet, or a daemon
	newTalks(t, l, 2)
	host.start(t) // and takes over
	counts := host.awaitMode(t, "passive", 4)
	if counts.SYNs < 2*aFlood/10 || counts.CalmS < 2 {
		t.Errorf("the next daemon has lost the counts: %+v", counts)
	}
	if web := host.portModes(t)[lab.HTTPPort]; web.Mode != "passive" || web.Changes != 0 {
		t.Errorf("the other port has not been flooded: %+v", web)
	}
	host.kill(t)
	allAnswer(t, "idle connections at the end", talks[:100])
	busy.finish(t)
	if v := host.verdicts(t); v["pass_socket"] == 0 || v["drop_bad_cookie"] > 0 {
		t.Errorf("verdicts %v", v)
	}
	detach(t, l, l.Server.Namespace, "host", "detached host/xdp_eth0")
	if left := programsOn(t, l.Server.Namespace); len(left) > 0 {
		t.Errorf("still attached: %q", left)
	}
	requestsServed(t, l)
}

// requestsServed makes one of each family.
func requestsServed(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, ipv6 := range []bool{false, true} {
		if err := shortRequest(t.Context(), l.Client.Namespace, httpAddress(l, ipv6)); err != nil {
			t.Errorf("%s: %v", family(ipv6), err)
		}
	}
}

// With tcp_syncookies at 1 the queue itself tells of a flood that is far below
// the limit, as in the paper.
func TestFullQueueOfTheKernelIsAFlood(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	if err := l.Server.Sysctl("net.core.somaxconn", "64"); err != nil {
		t.Fatal(err)
	}
	echoIn(t, l.Server.Namespace, echoPort)
	kernelSysctls(t, l, "1", "2")
	host := newHostKernel(t, l, "--flood-syns", "1000000")
	host.start(t)
	flood(t, l, lab.FloodOptions{Rate: 1000, Port: echoPort})
	eventually(t, 30*time.Second, "the echo port is in flood mode", func() bool { return host.portModes(t)[echoPort].Mode == "flood" })
	eventually(t, 10*time.Second, "the log says why", func() bool {
		return strings.Contains(string(host.process.Log()), `msg="flood mode" port=8007 because="the kernel's queue is full"`)
	})
	if p := host.portModes(t)[lab.HTTPPort]; p.Mode != "passive" || p.Changes != 0 {
		t.Errorf("the other port: %+v", p)
	}
}

func TestStatusShowsThePortsOfKernelCookies(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	kernelSysctls(t, l, "2", "2")
	newHostKernel(t, l, "--flood-syns", "0").start(t)
	requestsServed(t, l)
	out, err := l.Server.Command(t.Context(), program, "status", "--pin", l.PinDir("host")).CombinedOutput()
	if err != nil {
		t.Fatalf("status: %v: %s", err, out)
	}
	fields := strings.Join(strings.Fields(string(out)), " ")
	for _, want := range []string{"port mode SYNs answered changes of mode", "8007 always 0 0 0"} {
		if !strings.Contains(fields, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	numbers := func(pattern string) []uint64 {
		t.Helper()
		found := regexp.MustCompile(pattern).FindStringSubmatch(fields)
		if found == nil {
			t.Fatalf("%q is not in %s", pattern, out)
		}
		var all []uint64
		for _, text := range found[1:] {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, n)
		}
		return all
	}
	web := numbers(`\b80 always (\d+) (\d+) 1\b`)
	answers, taken := numbers(`\bhost (\d+) answer_syn\b`)[0], numbers(`\bhost (\d+) pass_kernel_cookie\b`)[0]
	// A SYN or an ACK that is repeated counts again.
	if syns, answered := web[0], web[1]; answered < 2 || syns < answered || answers != answered || taken < 2 {
		t.Errorf("two requests, %d SYNs, %d answered, %d verdicts, %d cookies taken", syns, answered, answers, taken)
	}
}

// `smartcookie mode` acts on the pinned maps, by the port as the name.
func TestModeOfAPortWithKernelCookiesIsChangedAtOnce(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	kernelSysctls(t, l, "2", "2")
	host := newHostKernel(t, l)
	host.start(t)
	set := func(mode string) {
		t.Helper()
		out, err := l.Server.Command(t.Context(), program, "mode", "80", mode, "--pin", host.pins()).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "host: 80 is "+mode) {
			t.Fatalf("mode: %v: %s", err, out)
		}
	}
	answered := func(want bool, what string) {
		t.Helper()
		before := host.portModes(t)[lab.HTTPPort].Answered
		requestsServed(t, l)
		if got := host.portModes(t)[lab.HTTPPort].Answered > before; got != want {
			t.Errorf("%s: answered %t", what, got)
		}
	}
	answered(false, "auto, without a flood")
	set("always")
	answered(true, "always")
	host.kill(t)
	set("off")
	answered(false, "off")
	host.start(t)
	if p := host.portModes(t)[lab.HTTPPort]; p.Mode != "off" {
		t.Errorf("the next daemon makes it %s", p.Mode)
	}
	set("monitor")
	if p := host.portModes(t)[lab.HTTPPort]; !p.Monitor {
		t.Errorf("monitored: %+v", p)
	}
	requestsServed(t, l)
}

func TestUnconfirmedHostWithKernelCookiesTakesEverythingOff(t *testing.T) {
	l := newLab(t, lab.Options{})
	startHTTP(t, l)
	host := newHostKernel(t, l)
	p := typeIn(t, l, l.Server.Namespace, append(host.args, "--confirm", "60s", "--pin", host.pins())...)
	p.says(t, "press Enter to keep the protection on")
	if left := programsOn(t, l.Server.Namespace); len(left) != 1 {
		t.Errorf("attached: %q", left)
	}
	p.keyboard.Close()
	p.ends(t, 1, "not confirmed in time")
	if left := programsOn(t, l.Server.Namespace); len(left) > 0 {
		t.Errorf("still attached: %q", left)
	}
	requestsServed(t, l)
}

func TestKernelCookiesAreRefusedWhereTheKernelTakesNone(t *testing.T) {
	l := newLab(t, lab.Options{})
	kernelSysctls(t, l, "0", "1")
	host := newHostKernel(t, l)
	refuse(t, l.Server.Namespace, nil, append(host.args, "--pin", host.pins())...).
		is(t, 2, "tcp_syncookies is 0: the kernel gives no cookie and takes none; mend it: sysctl -w net.ipv4.tcp_syncookies=1")
	refuse(t, l.Server.Namespace, nil, append(host.args, "--setup", "native")...).is(t, 2, "--setup: ")
	refuse(t, l.Server.Namespace, nil, append(host.args, "--detect", "syns=10")...).is(t, 2, "--detect: ")
	if left := programsOn(t, l.Server.Namespace); len(left) > 0 {
		t.Errorf("attached: %q", left)
	}
}
