package lab

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"smartcookie/internal/badwire"
)

func TestClientReachesServerByEveryFabric(t *testing.T) {
	wire := &badwire.Faults{Delay: time.Millisecond}
	for _, test := range []struct {
		name    string
		options Options
	}{
		{"two edges", Options{Edges: 2}},
		{"two edges with neighbour discovery", Options{Edges: 2, Resolve: true}},
		{"two edges, asymmetric", Options{Edges: 2, Asymmetric: true}},
		{"asymmetric, bad wires", Options{Asymmetric: true, Wire: wire, InsideWire: wire}},
	} {
		t.Run(test.name, func(t *testing.T) {
			lab := fabricLab(t, test.options)
			for _, ipv6 := range []bool{false, true} {
				report := load(t, lab, LoadOptions{URL: lab.URL(ipv6), Rate: 100, Duration: 300 * time.Millisecond})
				if report.Requests == 0 || report.OK != report.Requests {
					t.Errorf("IPv6 %t: %+v", ipv6, report)
				}
			}
		})
	}
}

// fabricLab is a lab with its HTTP server and the kernel's own defence.
func fabricLab(t *testing.T, options Options) *Lab {
	t.Helper()
	lab := newLab(t, options)
	if _, err := lab.Defend(t.Context(), "kernel"); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	return lab
}

// session is a connection that can ask more than once.
type session struct {
	conn   net.Conn
	reader *bufio.Reader
}

func openSession(t *testing.T, lab *Lab, ipv6 bool) *session {
	t.Helper()
	var conn net.Conn
	if err := lab.Client.Do(func() (err error) {
		address := netip.AddrPortFrom(lab.Server.Addr(ipv6), HTTPPort).String()
		conn, err = net.DialTimeout("tcp", address, 5*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &session{conn, bufio.NewReader(conn)}
}

func (s *session) ask(t *testing.T) {
	t.Helper()
	if err := s.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(s.conn, "GET / HTTP/1.1\r\nHost: lab\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(s.reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
}

// received is what the edges' ports have received.
type received struct{ out, in [edgesLimit]uint64 }

func receivedOf(t *testing.T, lab *Lab) (now received) {
	t.Helper()
	received := func(n *Namespace, port string) uint64 {
		link, err := n.link.LinkByName(port)
		if err != nil {
			t.Fatal(err)
		}
		return link.Attrs().Statistics.RxPackets
	}
	for i, edge := range lab.Edges() {
		now.out[i], now.in[i] = received(edge.Namespace, edge.Outside[0]), received(edge.Namespace, edge.Inside)
	}
	return now
}

// chatter is more than what neighbours say by themselves meanwhile.
const chatter = 10

// via tells by which edges a session's packets go, towards the server and back.
func (s *session) via(t *testing.T, lab *Lab) (there, back [edgesLimit]bool) {
	t.Helper()
	before := receivedOf(t, lab)
	for range 2 * chatter {
		s.ask(t)
	}
	now := receivedOf(t, lab)
	for i := range there {
		there[i], back[i] = now.out[i]-before.out[i] > chatter, now.in[i]-before.in[i] > chatter
	}
	return there, back
}

func TestBothDirectionsOfAFlowMeetAtOneEdge(t *testing.T) {
	lab := fabricLab(t, Options{Edges: 2})
	used := map[[edgesLimit]bool]int{}
	for i := range 40 {
		there, back := openSession(t, lab, i%2 == 1).via(t, lab)
		if there != back || there[0] == there[1] {
			t.Errorf("there by %v, back by %v", there, back)
		}
		used[there]++
	}
	if len(used) != edgesLimit {
		t.Errorf("of 40 flows none went by one of the edges: %v", used)
	}
}

func TestAsymmetricAnswersPassTheEdgesBy(t *testing.T) {
	lab := fabricLab(t, Options{Edges: 2, Asymmetric: true})
	for _, ipv6 := range []bool{false, true} {
		there, back := openSession(t, lab, ipv6).via(t, lab)
		if there[0] == there[1] || back != [edgesLimit]bool{} {
			t.Errorf("IPv6 %t: there by %v, back by %v", ipv6, there, back)
		}
	}
}

func TestFlowsMoveAndMoveBackWithTheirConnections(t *testing.T) {
	lab := fabricLab(t, Options{Edges: 2})
	sessions := openSessions(t, lab)
	for _, to := range []int{0, 1, 0} {
		if err := lab.Move(1, to); err != nil {
			t.Fatal(err)
		}
		onlyBy(t, lab, to, append(sessions, openSessions(t, lab)...))
	}
}

func TestKilledEdgeLeavesItsFlowsToTheOther(t *testing.T) {
	for dead := range edgesLimit {
		lab := fabricLab(t, Options{Edges: 2})
		sessions := openSessions(t, lab)
		if err := lab.Kill(dead); err != nil {
			t.Fatal(err)
		}
		onlyBy(t, lab, 1-dead, append(sessions, openSessions(t, lab)...))
	}
}

func openSessions(t *testing.T, lab *Lab) (sessions []*session) {
	t.Helper()
	for i := range 8 {
		sessions = append(sessions, openSession(t, lab, i%2 == 1))
	}
	return sessions
}

// onlyBy wants every session alive, and all its packets at one edge.
func onlyBy(t *testing.T, lab *Lab, edge int, sessions []*session) {
	t.Helper()
	var want [edgesLimit]bool
	want[edge] = true
	for _, session := range sessions {
		if there, back := session.via(t, lab); there != want || back != want {
			t.Errorf("there by %v, back by %v, want %v", there, back, want)
		}
	}
}

func TestLabsThatCannotBeAreRefused(t *testing.T) {
	needRoot(t)
	for _, options := range []Options{{Edges: 3}, {Edges: -1}, {Edges: 2, Topology: Bridge}, {Asymmetric: true, Topology: Bridge}} {
		if lab, err := New(options); err == nil {
			t.Errorf("%+v is made", options)
			lab.Close()
		}
	}
	lab := newLab(t, Options{})
	if lab.Move(1, 1) == nil || lab.Kill(0) == nil {
		t.Error("a lab with one edge moves flows")
	}
}
