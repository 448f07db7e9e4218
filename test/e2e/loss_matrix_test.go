package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
)

// The matrix: how bad the client's wire is, in both directions.
type lossCell struct{ loss, reorder float64 }

func lossCells() (cells []lossCell) {
	if !long() {
		// At 20 % a client's ACK and first segment are lost often enough for a
		// hundred connections to show a defence that starts a stream in its middle.
		return []lossCell{{0, 0}, {5, 5}, {20, 0}}
	}
	for _, loss := range []float64{0, 1, 5, 20} {
		for _, reorder := range []float64{0, 5} {
			cells = append(cells, lossCell{loss, reorder})
		}
	}
	return cells
}

const (
	lossRate   = 50 // connections per second of each kind
	lossDelay  = 5 * time.Millisecond
	lossJitter = time.Millisecond
	// bearable is the loss up to which the defence may cost next to nothing.
	bearable = 5
)

// lossSize is the number of connections of each kind, and how long each may
// take.
func lossSize() (connections int, limit time.Duration) {
	if long() {
		return 500, 30 * time.Second
	}
	return 100, 20 * time.Second
}

// lossDefences: the same wire without a defence is what each is compared with.
var lossDefences = []struct {
	name    string
	setup   string // of the server agent
	protect func(*testing.T, *lab.Lab)
}{
	{"none", "", func(t *testing.T, l *lab.Lab) {
		if err := l.Server.Sysctl("net.ipv4.tcp_syncookies", "0"); err != nil {
			t.Fatal(err)
		}
	}},
	{"split, native", "native", splitKinds},
	{"split, translate", "translate", splitKinds},
}

func splitKinds(t *testing.T, l *lab.Lab) { splitRoute.protect(t, l, protection{ports: lossPorts}) }

const lossHead = `| loss | reorder | says | defence | failed | first byte p50 | p99 | retransmits |
|---|---|---|---|---|---|---|---|
`

// No stream may have a hole, whatever the wire does. With LOSS_TABLE=FILE the
// figures are written there.
func TestLossMatrix(t *testing.T) {
	seed := uint64(1)
	t.Logf("seed %d", seed)
	table := lossHead
	for _, cell := range lossCells() {
		t.Run(fmt.Sprintf("loss %v reorder %v", cell.loss, cell.reorder), func(t *testing.T) {
			table += runLossCell(t, cell, seed)
		})
	}
	t.Log("\n" + table)
	if path := os.Getenv("LOSS_TABLE"); path != "" {
		if err := os.WriteFile(path, []byte(table), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// runLossCell measures every defence and compares it with none.
func runLossCell(t *testing.T, cell lossCell, seed uint64) string {
	results := make(map[string][]*tally)
	var lock sync.Mutex
	t.Run("defences", func(t *testing.T) {
		for _, defence := range lossDefences {
			t.Run(defence.name, func(t *testing.T) {
				if !long() { // then nobody quotes the times
					beside(t)
				}
				faults := badwire.Faults{Loss: cell.loss, Reorder: cell.reorder, Delay: lossDelay, Jitter: lossJitter, Seed: seed}
				l := newLab(t, lab.Options{Wire: &faults, Setup: defence.setup})
				defence.protect(t, l)
				serveKinds(t, l)
				kinds := runKinds(t, l)
				noOverload(t, l)
				lock.Lock()
				defer lock.Unlock()
				results[defence.name] = kinds
			})
		}
	})
	var rows strings.Builder
	for i, kind := range lossKinds {
		for _, defence := range lossDefences {
			if got := results[defence.name]; len(got) > 0 {
				rows.WriteString(lossRow(cell, kind, defence.name, got[i]))
				judge(t, cell, kind, defence.name, got[i], results[lossDefences[0].name][i])
			}
		}
	}
	return rows.String()
}

// runKinds makes the connections of all kinds at once, IPv4 and IPv6 in turn.
func runKinds(t *testing.T, l *lab.Lab) []*tally {
	connections, limit := lossSize()
	tallies := make([]*tally, len(lossKinds))
	var all sync.WaitGroup
	for i, kind := range lossKinds {
		tallies[i] = &tally{}
		all.Go(func() {
			spread := time.Duration(connections) * time.Second / lossRate
			requests(lossRate, spread, func(n int) error {
				tallies[i].add(kind.talkAcross(t.Context(), l, n%2 == 1, uint64(n), limit))
				return nil
			})
		})
	}
	all.Wait()
	return tallies
}

// noOverload wants that only what was asked for was lost.
func noOverload(t *testing.T, l *lab.Lab) {
	t.Helper()
	both := l.Wire.Counts()
	c := both[0].Plus(both[1])
	t.Logf("wire: %+v", c)
	if c.Overload > 0 {
		t.Errorf("the wire could not keep up: %+v", c)
	}
}

func lossRow(cell lossCell, k kind, defence string, c *tally) string {
	return fmt.Sprintf("| %v %% | %v %% | %s | %s | %.1f %% | %s | %s | %.2f |\n", cell.loss, cell.reorder, k.name, defence,
		100*float64(c.failed())/float64(len(c.streams)), inMilliseconds(c.firstByte(0.5)), inMilliseconds(c.firstByte(0.99)), c.retransmits())
}

func inMilliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// judge holds what the defence promises. Who waits for a server to speak and
// has lost the one ACK hangs by nature; the table shows the share.
func judge(t *testing.T, cell lossCell, k kind, defence string, got, none *tally) {
	t.Helper()
	name := fmt.Sprintf("%s, %s", defence, k.name)
	connections, _ := lossSize()
	if len(got.streams) != connections {
		t.Errorf("%s: %d connections, want %d", name, len(got.streams), connections)
	}
	if holes := got.holes(); holes > 0 {
		t.Errorf("%s: %d streams with a hole: %v", name, holes, got.example())
	}
	if cell.loss > bearable || k.serverFirst {
		return
	}
	if failed := got.failed(); failed > 0 {
		t.Errorf("%s: %d of %d failed, such as %v", name, failed, connections, got.example())
	}
	// A few streams of 70 segments each differ by more than that by chance.
	few := k.bytes > 10_000 && !long()
	if more := got.retransmits() - none.retransmits(); more > 1 && !few {
		t.Errorf("%s: %.2f retransmissions more than without a defence", name, more)
	}
}
