package lab

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

func startTransactions(t *testing.T, lab *Lab) *Transactions {
	t.Helper()
	// Clients that close first and keep TIME_WAIT would run out of ports.
	if err := lab.Attacker.Sysctl("net.ipv4.tcp_max_tw_buckets", "0"); err != nil {
		t.Fatal(err)
	}
	flows, err := lab.StartTransactions(t.Context(), lab.Edge.Namespace, TransactionOptions{
		Server: netip.AddrPortFrom(lab.FloodedEdge(), HTTPPort), Flows: 10, Limit: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return flows
}

func TestTransactionsGoOnUntilTheyAreStopped(t *testing.T) {
	lab := newLab(t, Options{})
	for range 2 { // nothing of the first is in the way of the second
		flows := startTransactions(t, lab)
		eventually(t, "transactions", func() bool { return flows.Count() > 1000 })
		// Each was closed by both ends in order, and nobody remembers it.
		for _, at := range []*Namespace{lab.Edge.Namespace, lab.Attacker.Namespace} {
			if n := sockets(t, at, timeWait); n > 0 {
				t.Errorf("%d TIME_WAITs in %s", n, at.Name)
			}
		}
		if err := flows.Stop(); err != nil {
			t.Error(err)
		}
	}
	if pids, err := processesIn(lab.Attacker.Name); err != nil || len(pids) > 0 {
		t.Errorf("processes %v are left, %v", pids, err)
	}
}

// timeWait is a state of /proc/net/tcp, TCP_TIME_WAIT of the kernel.
const timeWait = "06"

// sockets counts those of IPv4, of both kinds of sockets, in a state.
func sockets(t *testing.T, n *Namespace, state string) (count int) {
	t.Helper()
	for _, table := range []string{"tcp", "tcp6"} {
		var text []byte
		if err := n.Do(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/" + table); return err }); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 3 && fields[3] == state {
				count++
			}
		}
	}
	return count
}

func TestFloodIsReceivedOnItsOwnCPU(t *testing.T) {
	lab := newLab(t, Options{})
	if !lab.Apart() {
		t.Skip("there is one CPU")
	}
	if err := lab.ModerateFlood(); err != nil {
		t.Fatal(err)
	}
	sink, err := lab.NewSink()
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	flood, err := lab.StartFlood(FloodOptions{Rate: 100_000, Target: lab.FloodedEdge(), Limit: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Stop()
	// What nobody listens for is reset, and resets are counted by the CPU that sends
	// them, which is the one that has received.
	var perCPU []uint64
	other := lab.LoadCPU()
	eventually(t, "resets", func() bool {
		err := sink.objects.SinkCounts.Lookup(sinkCountSINK_RST, &perCPU)
		return err == nil && perCPU[other]+perCPU[lab.cpus.generator] > 5_000
	})
	if n := perCPU[lab.cpus.generator]; n > 0 {
		t.Errorf("the generator's CPU has received %d packets, the other one %d", n, perCPU[other])
	}
}
