package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/cookie"
	"smartcookie/internal/lab"
	"smartcookie/test/wire"
)

const keyScale = 7 // the window scale of a key that names none

// optionSwitches are the client's sysctls that choose its options, as bits of
// a combination.
var optionSwitches = []string{"tcp_timestamps", "tcp_sack", "tcp_window_scaling", "tcp_ecn"}

const everyOption = 1<<4 - 1

func chooseOptions(t *testing.T, client *lab.Namespace, combination int) {
	t.Helper()
	for bit, name := range optionSwitches {
		if err := client.Sysctl("net.ipv4."+name, fmt.Sprint(combination>>bit&1)); err != nil {
			t.Fatal(err)
		}
	}
}

func combinationName(combination int) string {
	var on []string
	for bit, name := range optionSwitches {
		if combination>>bit&1 == 1 {
			on = append(on, strings.TrimPrefix(name, "tcp_"))
		}
	}
	return "with " + strings.Join(on, ",")
}

// trial is one connection to nginx under a shape.
type trial struct {
	*lab.Lab
	tap     *tap
	ipv6    bool
	mtu     int
	offered int // MSS of the SYN-ACK on IPv4
	proxied bool
}

func (r trial) family() cookie.Family {
	if r.ipv6 {
		return cookie.IPv6
	}
	return cookie.IPv4
}

func (r trial) headers() int {
	if r.ipv6 {
		return 60
	}
	return 40
}

// connect opens a connection, has it serve a request, and compares what both
// kernels and the wire say of it with what the SYN asked for.
func (r trial) connect(t *testing.T, dialer net.Dialer) wire.Options {
	t.Helper()
	conn, err := dialIn(r.Client.Namespace, dialer, webAddress(r.Lab, r.ipv6))
	if err != nil {
		t.Error(err)
		return wire.Options{}
	}
	defer conn.Close()
	if err := greet(conn); err != nil {
		t.Error(err)
		return wire.Options{}
	}
	port := conn.LocalAddr().(*net.TCPAddr).Port
	syn, synack := r.tap.handshake(port)
	asked := wire.ReadOptions(syn.Options, syn.Flags)
	r.compare(t, asked, synack, port)
	return asked
}

// greet has a kept-alive connection serve one request.
func greet(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET /hello HTTP/1.1\r\nHost: lab\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && string(body) != "hello\n" {
		err = fmt.Errorf("served %q", body)
	}
	return err
}

func (r trial) compare(t *testing.T, asked wire.Options, synack wire.Seen, port int) {
	t.Helper()
	record := cookie.Encode(r.family(), asked.Options, cookie.OfferAll)
	survives := cookie.Decode(r.family(), record.Code, record.Timestamps, uint32(record.TSvalBits))
	got, want := viewOf(t, r.Server.Namespace, 80, port), r.serverView(survives)
	if send, _, scales := strings.Cut(got.scales, ","); scales && (setupOf() == "translate" || r.Home != nil || r.proxied) {
		got.scales = fmt.Sprintf("%s,%d", send, keyScale) // whatever the kernel means, that is what the client sees
	}
	if survives.Scale < asked.Scale {
		// Windows of the client look smaller than they are, and Linux sends no
		// segment larger than half of the largest.
		got.mss = want.mss
	}
	if got != want {
		t.Errorf("the server has %+v, want %+v for a client that asked for %+v", got, want, asked.Options)
	}
	offered := r.offered + 40 - r.headers()
	promised := record.Answer(r.family(), uint16(offered), keyScale)
	answered := wire.ReadOptions(synack.Options, synack.Flags).Options
	answered.ECN = synack.Flags&wire.ECE != 0
	if answered != promised {
		t.Errorf("the SYN-ACK has %+v, want %+v", answered, promised)
	}
	if got, want := viewOf(t, r.Client.Namespace, port, 80), r.clientView(promised, asked); got != want {
		t.Errorf("the client has %+v, want %+v", got, want)
	}
}

// serverView is what the server's kernel has to show for these options of the
// client.
func (r trial) serverView(o cookie.Options) view {
	v := view{timestamps: o.Timestamps, sack: o.SACK, ecn: o.ECN, advmss: r.mtu - r.headers()}
	v.mss = min(int(o.MSS), v.advmss)
	if o.HasScale {
		v.scales = fmt.Sprintf("%d,%d", o.Scale, keyScale)
	}
	return v.withTimestamps()
}

// clientView is what the client's kernel has to show after this SYN-ACK.
func (r trial) clientView(o cookie.Options, asked wire.Options) view {
	v := view{timestamps: o.Timestamps, sack: o.SACK, ecn: o.ECN, advmss: int(asked.MSS)}
	v.mss = min(int(o.MSS), r.mtu-r.headers())
	if o.HasScale {
		v.scales = fmt.Sprintf("%d,%d", o.Scale, asked.Scale)
	}
	return v.withTimestamps()
}

// withTimestamps takes the timestamp option out of the sizes: 10 bytes and two
// of padding on every segment.
func (v view) withTimestamps() view {
	if v.timestamps {
		v.mss, v.advmss = v.mss-12, v.advmss-12
	}
	return v
}

func TestConnectionHasTheOptionsThatItsClientAskedFor(t *testing.T) {
	need(t, "ss", "nginx")
	for _, shape := range slices.Concat(allShapes, proxyShapes) {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{}, protection{})
			startNginx(t, l)
			tap := newTap(t, l.Client.Namespace, l.Client.Port)
			for _, ipv6 := range []bool{false, true} {
				r := trial{Lab: l, tap: tap, ipv6: ipv6, mtu: 1500, offered: 1460, proxied: shape.proxy}
				for combination := range everyOption + 1 {
					t.Run(family(ipv6)+" "+combinationName(combination), func(t *testing.T) {
						tap.t = t
						chooseOptions(t, l.Client.Namespace, combination)
						asked := r.connect(t, net.Dialer{})
						if got := combinationOf(asked); got != combination {
							t.Errorf("the client's SYN is %s, not %s", combinationName(got), combinationName(combination))
						}
					})
				}
			}
		})
	}
}

func combinationOf(o wire.Options) (combination int) {
	for bit, on := range []bool{o.Timestamps, o.SACK, o.HasScale, o.ECN} {
		if on {
			combination |= 1 << bit
		}
	}
	return combination
}

func TestConnectionHasTheWindowScaleOfItsClient(t *testing.T) {
	need(t, "ss", "nginx")
	for _, shape := range []shape{splitBridge, hostShape, proxyBridge} {
		t.Run(shape.name, func(t *testing.T) {
			l := deploy(t, shape, lab.Options{}, protection{})
			startNginx(t, l)
			r := trial{Lab: l, tap: newTap(t, l.Client.Namespace, l.Client.Port), mtu: 1500, offered: 1460, proxied: shape.proxy}
			for scale := range 15 {
				for _, combination := range []int{everyOption, everyOption &^ 1} { // and without timestamps
					t.Run(fmt.Sprintf("%d %s", scale, combinationName(combination)), func(t *testing.T) {
						r.tap.t = t
						r.ipv6 = scale%2 == 1
						chooseOptions(t, l.Client.Namespace, combination)
						if asked := r.connect(t, scaled(t, l.Client.Namespace, scale)); int(asked.Scale) != scale {
							t.Errorf("the client's SYN has scale %d", asked.Scale)
						}
					})
				}
			}
		})
	}
}

// scaled has Linux ask for a window scale: it takes the smallest that can show
// the largest receive buffer, which a socket may bound.
func scaled(t *testing.T, client *lab.Namespace, scale int) net.Dialer {
	t.Helper()
	largest := 1 << (15 + scale)
	if err := client.Sysctl("net.ipv4.tcp_rmem", fmt.Sprintf("4096 131072 %d", max(largest, 131072))); err != nil {
		t.Fatal(err)
	}
	if scale > 6 { // net.core.rmem_max may be the larger one below
		return net.Dialer{}
	}
	return net.Dialer{Control: onSocket(func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, largest)
	})}
}

// onSocket makes a Dialer's Control of what happens to the socket before it
// connects.
func onSocket(set func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) (err error) {
		if e := raw.Control(func(fd uintptr) { err = set(int(fd)) }); e != nil {
			return e
		}
		return err
	}
}
