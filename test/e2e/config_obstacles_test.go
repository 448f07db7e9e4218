package e2e

import (
	"net"
	"strings"
	"testing"
	"time"

	"smartcookie/internal/lab"
)

// obstacle is something that stands in the way of setups, and what an agent
// has to say about it.
type obstacle struct {
	name          string
	make, mend    func(*testing.T, *lab.Lab)
	problem, help string
}

func obstacles() []obstacle {
	return []obstacle{
		sysctlObstacle("net.ipv4.tcp_rfc1337", "1", "0", "a client that reuses a port cannot replace its connection in TIME_WAIT", "sysctl -w net.ipv4.tcp_rfc1337=0"),
		sysctlObstacle("net.ipv4.tcp_timestamps", "0", "1", "the kernel refuses connections with timestamps", "sysctl -w net.ipv4.tcp_timestamps=1"),
		sysctlObstacle("net.ipv4.tcp_sack", "0", "1", "the kernel refuses connections with SACK", "sysctl -w net.ipv4.tcp_sack=1"),
		sysctlObstacle("net.ipv4.tcp_window_scaling", "0", "1", "the kernel refuses connections with window scaling", "sysctl -w net.ipv4.tcp_window_scaling=1"),
		sysctlObstacle("net.ipv4.tcp_ecn", "0", "2", "connections are made with ECN", "sysctl -w net.ipv4.tcp_ecn=2"),
		sysctlObstacle("net.netfilter.nf_conntrack_tcp_loose", "0", "1", "connection tracking calls connections invalid that began without a SYN", "sysctl -w net.netfilter.nf_conntrack_tcp_loose=1"),
		mptcpObstacle(),
		rulesObstacle("invalid", "ct state invalid drop"),
		rulesObstacle("stateless", "tcp flags & (fin|syn|rst|ack) != syn ct state new drop"),
		rulesObstacle("refused", "tcp flags != syn ct state new counter reject with tcp reset"),
	}
}

func sysctlObstacle(name, bad, good, problem, help string) obstacle {
	set := func(value string) func(*testing.T, *lab.Lab) {
		return func(t *testing.T, l *lab.Lab) {
			t.Helper()
			if err := l.Server.Sysctl(name, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	short := name[strings.LastIndexByte(name, '.')+1:]
	return obstacle{name, set(bad), set(good), short + " is " + bad + ": " + problem, `mend="` + help}
}

// mptcpObstacle is what net.Listen of Go does without being asked.
func mptcpObstacle() obstacle {
	var listener net.Listener
	return obstacle{
		name: "MPTCP listener",
		make: func(t *testing.T, l *lab.Lab) {
			t.Helper()
			err := l.Server.Do(func() (err error) {
				listener, err = net.Listen("tcp", ":8080")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { listener.Close() })
		},
		mend:    func(*testing.T, *lab.Lab) { listener.Close() },
		problem: "the listener at [::]:8080 is MPTCP", help: "GODEBUG=multipathtcp=0",
	}
}

// rulesObstacle is an nftables rule in a chain of its own.
func rulesObstacle(chain, rule string) obstacle {
	return obstacle{
		name: rule,
		make: func(t *testing.T, l *lab.Lab) {
			t.Helper()
			need(t, "nft")
			runIn(t, l.Server.Namespace, "nft", "add table inet guard; add chain inet guard "+chain+
				" { type filter hook input priority 0; }; add rule inet guard "+chain+" "+rule)
		},
		mend: func(t *testing.T, l *lab.Lab) {
			t.Helper()
			runIn(t, l.Server.Namespace, "nft", "delete chain inet guard "+chain)
		},
		problem: "a rule in nftables chain inet guard " + chain + " drops connections that began without a SYN",
		help:    "notrack",
	}
}

// listenerElsewhere is one in a namespace that the agent does not see.
const listenerElsewhere = `nobody listens on port 9090 of service`

func typeServer(t *testing.T, l *lab.Lab) *typed {
	t.Helper()
	config := strings.Replace(l.ServerConfig(keysOf(t, l)), "[80]", "[80, 8080-8089, 9090]", 1)
	return typeIn(t, l, l.Server.Namespace, "server", "-c", fileOf(t, l, "server.yaml", config), "--pin", l.PinDir("server"))
}

func TestObstaclesAreNamedAtStart(t *testing.T) {
	l := newLab(t, lab.Options{Setup: "native"})
	listenIn(t, l.Client.Namespace, ":9090")
	for _, o := range obstacles() {
		o.make(t, l)
	}
	p := typeServer(t, l)
	p.says(t, "msg=ready")
	named(t, p, "WARN", listenerElsewhere, "run this agent in the namespace that has it")
	for _, o := range obstacles() {
		named(t, p, "WARN", o.problem, o.help)
	}
}

// named wants a line of this level with all the words.
func named(t *testing.T, p *typed, level string, words ...string) {
	t.Helper()
	if !isNamed(p.text(t), level, words...) {
		t.Errorf("no line of level %s has %q: %s", level, words, p.text(t))
	}
}

func isNamed(text, level string, words ...string) bool {
	for line := range strings.Lines(text) {
		all := strings.Contains(line, "level="+level)
		for _, word := range words {
			all = all && strings.Contains(line, word)
		}
		if all {
			return true
		}
	}
	return false
}

func TestObstaclesAreNamedWhenTheyComeAndGo(t *testing.T) {
	beside(t)
	l := newLab(t, lab.Options{Setup: "native"})
	listenIn(t, l.Server.Namespace, ":80")
	elsewhere := listenIn(t, l.Server.Namespace, ":9090")
	all := append(obstacles(), sysctlObstacle("net.ipv4.tcp_syncookies", "0", "1", "the kernel makes no connection from a cookie", "sysctl -w net.ipv4.tcp_syncookies=1"))
	p := typeServer(t, l)
	p.says(t, "msg=ready")
	if text := p.text(t); strings.Contains(text, "WARN") {
		t.Errorf("warnings without an obstacle: %s", text)
	}
	const within = 30 * time.Second // the agent looks every ten
	elsewhere.Close()
	for _, o := range all {
		o.make(t, l)
	}
	eventually(t, within, "the server's listener that went is named", func() bool { return isNamed(p.text(t), "WARN", listenerElsewhere) })
	for _, o := range all {
		eventually(t, within, o.name+" is named", func() bool { return isNamed(p.text(t), "WARN", o.problem, o.help) })
	}
	for _, o := range all {
		o.mend(t, l)
	}
	for _, o := range all {
		eventually(t, within, o.name+" is named as mended", func() bool { return isNamed(p.text(t), "INFO", "mended: "+o.problem) })
	}
}

func TestServerThatCanMakeNoConnectionIsRefused(t *testing.T) {
	l := newHostLab(t)
	keys := keysOf(t, l)
	server := fileOf(t, l, "server.yaml", strings.Replace(l.ServerConfig(keys), "setup: "+l.Setup(), "setup: native", 1))
	if err := l.Edge.Bare(l.Edge.Inside); err != nil {
		t.Fatal(err)
	}
	if err := l.Server.Sysctl("net.ipv4.tcp_syncookies", "0"); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"server", "-c", server}, {"host", "eth0", "--ports", "80", "--setup", "native"}} {
		t.Run(args[0], func(t *testing.T) {
			refuse(t, l.Server.Namespace, nil, append(args, "--pin", l.PinDir(args[0]))...).
				is(t, 2, "tcp_syncookies is 0: ", "mend it: sysctl -w net.ipv4.tcp_syncookies=1")
			nothingAttached(t, l)
		})
	}
}
