package dataplane

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"smartcookie/internal/control"
	"smartcookie/internal/cookie"
	"smartcookie/internal/policy"
	"smartcookie/test/wire"
)

// newTenants is an agent whose services are all tenants'.
func newTenants(t *testing.T, change ...func(*ServerConfig)) serverAgent {
	t.Helper()
	all := slices.Clone(services)
	for i := range all {
		all[i].Setup = policy.Tenant
	}
	return newServer(t, append([]func(*ServerConfig){func(c *ServerConfig) {
		c.Services, c.Translated, c.Tenants = all, 100, []Interface{{Name: "lo", Index: 1}}
	}}, change...)...)
}

func (s serverAgent) toTenant(frame []byte) outcome {
	s.t.Helper()
	return s.run(s.TenantEgress, frame)
}
func (s serverAgent) fromTenant(frame []byte) outcome {
	s.t.Helper()
	return s.run(s.TenantIngress, frame)
}

func (s serverAgent) translation(key serverEndpoints) (v serverTranslation) {
	s.t.Helper()
	if err := s.Flows.Lookup(key, &v); err != nil {
		s.t.Fatal(err)
	}
	return v
}

// A service is a tenant's or the host's own: the other's programs let its packets
// pass as they are, also its errors.
func TestServicesAreServedAtTheirOwnDevices(t *testing.T) {
	tenants := newTenants(t)
	own := newServer(t, func(c *ServerConfig) {
		c.Translated, c.Tenants = 100, []Interface{{Name: "lo", Index: 1}}
	})
	for _, client := range bothFamilies() {
		tenants.translated(client, nil)
		own.translated(client, nil)
		in, out := client.Frame(), reversed(client).Frame()
		quote := quoteIn(reversed(client), map[bool]uint8{true: 3, false: 1}[client.Source.Addr().Is4()], 4).Frame()
		for name, got := range map[string]outcome{
			"tenant's, in at the host": tenants.ingress(in), "own, to a tenant": own.toTenant(in),
			"tenant's, out at the host": tenants.egress(out), "own, from a tenant": own.fromTenant(out),
			"error, in at the host": tenants.ingress(quote), "error, to a tenant": own.toTenant(quote),
		} {
			if got.verdict != "pass_other" || got.action != tcNext || !bytes.Equal(got.out, in) && !bytes.Equal(got.out, out) && !bytes.Equal(got.out, quote) {
				t.Errorf("%s, %s: %s", client.Source, name, got.verdict)
			}
		}
		if got := tenants.toTenant(quote); got.verdict != "pass_error" {
			t.Errorf("%s, a tenant's error: %s", client.Source, got.verdict)
		}
	}
}

// What nobody configured is not verified, which takes most of a start.
func TestProgramsOfOtherShapesAreLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		agent        serverAgent
		own, tenants bool
	}{
		"own services": {newTranslator(t), true, false},
		"tenants, too": {newTenants(t), true, true},
	} {
		for of, program := range map[string]struct {
			*ebpf.Program
			whole bool
		}{
			"server_ingress": {c.agent.ServerIngress, c.own}, "tenant_egress": {c.agent.TenantEgress, c.tenants},
			"proxy_egress": {c.agent.ProxyEgress, false},
		} {
			info, err := program.Info()
			if err != nil {
				t.Fatal(err)
			}
			if n, _ := info.VerifiedInstructions(); (n > 100) != program.whole {
				t.Errorf("%s: %s has %d instructions", name, of, n)
			}
		}
	}
}

// The first packet becomes a SYN and is kept, as are those behind it, up to a
// bound; a damaged one is not.
func TestFirstFlightIsHeldUpToABound(t *testing.T) {
	const bound = 12
	s := newTenants(t)
	for _, syn := range []wire.Packet{syn4(linuxOptions), syn6(linuxOptions)} {
		made := cookie.Make(mainSlot, cookie.Flow{Source: syn.Source, Destination: syn.To}, syn.Seq, 0)
		first := syn
		first.Flags, first.Seq, first.Ack, first.Payload = wire.ACK|wire.PSH, syn.Seq+1, made+1, []byte("odd")
		first.Options = nil
		if got := s.toTenant(first.Frame()); got.verdict != "setup_translated" || got.out[tcpFlagsAt(first)] != byte(wire.SYN) {
			t.Fatalf("%s: %s: %x", syn.Source, got.verdict, got.out)
		}
		later := first
		later.Seq += 3
		damaged := later.Frame()
		damaged[len(damaged)-1] ^= 1
		if got := s.toTenant(damaged); got.verdict != "drop_early" || got.action != tcDrop {
			t.Errorf("%s, damaged: %s", syn.Source, got.verdict)
		}
		for n := 1; n < bound; n++ {
			if got := s.toTenant(later.Frame()); got.verdict != "hold_early" || got.action != tcDrop {
				t.Errorf("%s, packet %d: %s", syn.Source, n, got.verdict)
			}
		}
		if got := s.toTenant(later.Frame()); got.verdict != "drop_early" {
			t.Errorf("%s, one too many: %s", syn.Source, got.verdict)
		}
		var key serverHeldKey
		var value serverHeld
		for all := s.Held.Iterate(); all.Next(&key, &value); {
			want := later.Frame()
			if key.Index == 0 {
				want = first.Frame()
			}
			if key.Ends == endpointsOf(first) && !bytes.Equal(value.Frame[:value.Length], want) {
				t.Errorf("%s, held %d: %x, want %x", syn.Source, key.Index, value.Frame[:value.Length], want)
			}
		}
	}
}

func tcpFlagsAt(p wire.Packet) int {
	if p.Source.Addr().Is4() {
		return 14 + 20 + 13
	}
	return 14 + 40 + 13
}

// Both FINs, or a RST of the server, are the end; a client's RST alone is not.
func TestEndsOfTenantsConnectionsAreRead(t *testing.T) {
	s := newTenants(t)
	closed, live, ending := uint8(serverTranslationStateTRANSLATION_CLOSED), uint64(time.Hour), uint64(6*time.Minute)
	for _, client := range bothFamilies() {
		client.Seq, client.Payload = usualTranslation.ClientIsn+1, nil
		server := reversed(client)
		server.Seq, server.Ack = 7000, usualTranslation.ClientIsn+1
		type event struct {
			from  bool
			flags wire.Flags
			seq   uint32 // added
		}
		fin, rst, ack := wire.ACK|wire.FIN, wire.RST, wire.ACK
		for _, c := range []struct {
			name   string
			events []event
			state  uint8
			within uint64
		}{
			{"nothing", []event{{true, ack, 0}}, usualTranslation.State, 6 * 24 * live},
			{"client's FIN", []event{{false, fin, 0}, {true, ack, 0}}, uint8(serverTranslationStateTRANSLATION_CLIENT_FIN), ending},
			{"server's FIN", []event{{true, fin, 0}}, uint8(serverTranslationStateTRANSLATION_SERVER_FIN), ending},
			{"both, client first", []event{{false, fin, 0}, {true, fin, 0}}, closed, 65e9},
			{"both, server first", []event{{true, fin, 0}, {false, fin, 0}, {true, ack, 0}}, closed, 65e9},
			{"the same FIN twice", []event{{true, fin, 0}, {true, fin, 0}}, uint8(serverTranslationStateTRANSLATION_SERVER_FIN), ending},
			{"server's RST", []event{{true, rst, 0}}, closed, 2e9},
			{"client's RST", []event{{true, ack, 0}, {false, rst, 0}}, usualTranslation.State, ending},
			{"client's RST, the server goes on", []event{{false, rst, 0}, {true, ack, 0}}, usualTranslation.State, 6 * 24 * live},
			{"forged RST", []event{{true, ack, 0}, {false, rst, 1 << 30}}, usualTranslation.State, 6 * 24 * live},
			{"forged FIN", []event{{false, fin, 1 << 31}, {true, fin, 0}}, uint8(serverTranslationStateTRANSLATION_SERVER_FIN), ending},
		} {
			key := s.translated(client, func(v *serverTranslation) { v.ExpiresNs = monotonic(t) + 64e9 })
			for _, e := range c.events {
				p, run := client, s.toTenant
				if e.from {
					p, run = server, s.fromTenant
				}
				p.Flags, p.Seq = e.flags, p.Seq+e.seq
				run(p.Frame())
			}
			got, now := s.translation(key), monotonic(t)
			if left := got.ExpiresNs - now; got.State != c.state || left > c.within || left < c.within/2 && c.within > 2e9 {
				t.Errorf("%s, %s: state %d, %s left; want state %d, about %s", client.Source, c.name, got.State, time.Duration(left), c.state, time.Duration(c.within))
			}
		}
	}
}

// A proven first packet from the port of a live connection begins another one, unless
// its numbers may be that connection's: one of its packets has a valid cookie by chance.
func TestNumbersOfALiveConnectionBeginNoOther(t *testing.T) {
	s := newTenants(t)
	const far, window = 1 << 30, 8 << 20
	for _, syn := range []wire.Packet{syn4(""), syn6("")} {
		for _, c := range []struct {
			name          string
			isn, ack      uint32 // ahead of the old connection's
			sent, repeats uint32 // by the server
			verdict       string
		}{
			{"ISN and cookie far off", far, far, 0, 0, "setup_translated"},
			{"ISN in the old window, nothing sent", 5000, far, 0, 0, "setup_translated"},
			{"ISN just behind the old one", 0xffffffff, far, 0, 0, "setup_translated"},
			{"ISN far off, acknowledges what was sent", far, far, far, 0, "setup_translated"},
			{"acknowledges what was sent", 5000, far, far, 0, "pass_connection"},
			{"of which some is sent again", 5000, far, far, far / 2, "pass_connection"},
			{"a window behind", 5000, far - window, far, 0, "pass_connection"},
			{"two windows behind", 5000, far - 2*window, far, 0, "setup_translated"},
			{"a long packet ahead", 5000, far + 1<<19, far, 0, "pass_connection"},
			{"a window ahead", 5000, far + window, far, 0, "setup_translated"},
		} {
			first := firstOf(syn, 0)
			s.translated(first, func(v *serverTranslation) {
				v.ClientIsn, v.Cookie = first.Seq-1-c.isn, first.Ack-1-c.ack
			})
			server := reversed(first)
			server.Flags, server.Ack = wire.ACK, first.Seq-c.isn
			for _, sent := range []uint32{c.sent, c.repeats} {
				if sent > 0 {
					server.Seq = first.Ack - c.ack + usualTranslation.Delta + sent
					s.fromTenant(server.Frame())
				}
			}
			if got := s.toTenant(first.Frame()); got.verdict != c.verdict {
				t.Errorf("%s, %s: %s, want %s", syn.Source, c.name, got.verdict, c.verdict)
			}
			syn.Source = portAfter(syn.Source)
		}
	}
}

// What is of no connection is the tenant's to judge, unless the agent is strict.
func TestUnprovenPacketsAreTheTenantsUnlessStrict(t *testing.T) {
	client := bothFamilies()[0]
	for strict, want := range map[bool]string{false: "pass_unproven", true: "drop_bad_cookie"} {
		s := newTenants(t, func(c *ServerConfig) { c.Strict, c.Allowed = strict, prefixes("192.0.2.128/25") })
		if got := s.toTenant(client.Frame()); got.verdict != want {
			t.Errorf("strict %t: %s", strict, got.verdict)
		}
		allowed := client
		allowed.Source = netip.MustParseAddrPort("192.0.2.200:40000")
		if got := s.toTenant(allowed.Frame()); got.verdict != "pass_unproven" {
			t.Errorf("strict %t, allowed: %s", strict, got.verdict)
		}
	}
}

func TestTenantsLiveConnectionsAreAnnounced(t *testing.T) {
	s := newTenants(t)
	now := monotonic(t)
	server := &Server{tables: *s.tables, objects: *s.serverObjects, config: ServerConfig{Tenants: []Interface{{}}}}
	var want []control.Flow
	for i, change := range []func(*serverTranslation){
		func(v *serverTranslation) { v.ExpiresNs = now + 1<<40 },
		func(v *serverTranslation) { v.ExpiresNs = 1 },
		func(v *serverTranslation) {
			v.ExpiresNs, v.State = now+1<<40, uint8(serverTranslationStateTRANSLATION_CLOSED)
		},
		func(v *serverTranslation) {
			v.ExpiresNs, v.State = now+1<<40, uint8(serverTranslationStateTRANSLATION_SERVER_FIN)
		},
	} {
		client := bothFamilies()[i%2]
		client.Source = netip.AddrPortFrom(client.Source.Addr(), uint16(1000+i))
		s.translated(client, change)
		if i == 0 || i == 3 {
			want = append(want, control.Flow{Client: client.Source, Server: client.To})
		}
	}
	var got []control.Flow
	if err := server.walkTenants(func(f control.Flow) { got = append(got, f) }); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b control.Flow) int { return int(a.Client.Port()) - int(b.Client.Port()) })
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
