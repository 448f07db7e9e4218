package e2e

import (
	"strings"
	"testing"
	"time"

	"smartcookie/internal/badwire"
	"smartcookie/internal/lab"
)

// fabricRequests is enough for a hash to reach both edges.
const fabricRequests = 40

// guarded makes a lab whose HTTP server is defended.
func guarded(t *testing.T, options lab.Options, defence string) *lab.Lab {
	t.Helper()
	l := newLab(t, options)
	startHTTP(t, l)
	guard, err := l.Defend(t.Context(), defence)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := guard.Stop(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// ask makes requests of both families, one after the other.
func ask(t *testing.T, l *lab.Lab) {
	t.Helper()
	for i := range fabricRequests {
		if err := shortRequest(t.Context(), l.Client.Namespace, httpAddress(l, i%2 == 1)); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
}

// answers is how many SYNs each edge has answered.
func answers(t *testing.T, l *lab.Lab) [2]uint64 {
	t.Helper()
	return [2]uint64{verdictsOf(t, l, "edge")["answer_syn"], verdictsOf(t, l, "edge2")["answer_syn"]}
}

func TestTwoEdgesShareTheFlowsAndHandThemOver(t *testing.T) {
	l := guarded(t, lab.Options{Edges: 2}, "split")
	ask(t, l)
	both := answers(t, l)
	if both[0] == 0 || both[1] == 0 || both[0]+both[1] != fabricRequests {
		t.Errorf("of %d SYNs the edges have answered %v", fabricRequests, both)
	}
	if err := l.Move(1, 0); err != nil {
		t.Fatal(err)
	}
	ask(t, l)
	if now := answers(t, l); now[0] != both[0]+fabricRequests || now[1] != both[1] {
		t.Errorf("all flows moved to the first edge: answers before %v, now %v", both, now)
	}
	if err := l.Move(0.5, 1); err != nil {
		t.Fatal(err)
	}
	if err := l.Kill(0); err != nil {
		t.Fatal(err)
	}
	ask(t, l)
	if now := answers(t, l)[1]; now != both[1]+fabricRequests {
		t.Errorf("the first edge is dead: the second has answered %d of %d SYNs", now-both[1], fabricRequests)
	}
}

// What the server sends passes two routers, and an edge besides if it goes by
// one. (An edge's own counts have its routers' neighbour discovery in them.)
func TestAnswersThatPassTheEdgesByAreSeenByNone(t *testing.T) {
	need(t, "nft")
	for _, edges := range []int{1, 2} {
		l := guarded(t, lab.Options{Edges: edges, Asymmetric: true}, "split")
		runIn(t, l.Client.Namespace, "nft", "table inet hops { counter two {}; counter other {}; "+
			"chain in { type filter hook input priority 0; tcp sport != 80 accept; tcp flags & syn == syn accept; "+
			"ip ttl 62 counter name two accept; ip6 hoplimit 62 counter name two accept; counter name other; }; }")
		ask(t, l)
		for _, edge := range []string{"edge", "edge2"}[:edges] {
			if verdicts := verdictsOf(t, l, edge); verdicts["answer_syn"] == 0 {
				t.Errorf("%s of %d: %v", edge, edges, verdicts)
			}
		}
		counters := runIn(t, l.Client.Namespace, "nft", "list", "counters")
		if strings.Count(counters, "packets 0 ") != 1 || !strings.Contains(counters, "counter other {\n\t\tpackets 0 ") {
			t.Errorf("%d edges: by the number of hops: %s", edges, counters)
		}
	}
}

// What no other test puts together: shapes and bad wires at both ends.
func TestDefencesServeThroughBadWires(t *testing.T) {
	wire := &badwire.Faults{Loss: 2, Duplicate: 2, Reorder: 2, Delay: time.Millisecond, Seed: 1}
	for _, test := range []struct {
		name, defence string
		options       lab.Options
	}{
		{"bridge", "split", lab.Options{Topology: lab.Bridge}},
		{"host", "host", lab.Options{}},
		{"host behind two edges", "host", lab.Options{Edges: 2}},
		{"two edges, asymmetric", "split", lab.Options{Edges: 2, Asymmetric: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.options.Wire, test.options.InsideWire = wire, wire
			ask(t, guarded(t, test.options, test.defence))
		})
	}
}

func TestLabCommandServesWhileAnEdgeDies(t *testing.T) {
	report := labJSON(t, "--edges", "2", "--defence", "split", "--flood", "20k", "--duration", "4s", "--kill-after", "2s", "--loss", "0.1")
	requests, ok := field[float64](t, report, "benign.requests"), field[float64](t, report, "benign.ok")
	if requests == 0 || ok < requests*0.99 {
		t.Errorf("%.0f of %.0f requests served", ok, requests)
	}
	if passed := field[[]any](t, report, "wires.outside"); len(passed) != 2 {
		t.Errorf("the wire's counts: %v", passed)
	}
	t.Logf("%.0f of %.0f requests served", ok, requests)
}
