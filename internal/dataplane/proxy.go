package dataplane

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"smartcookie/internal/policy"
)

// ProxyPorts are an edge's, as its translator sees them.
type ProxyPorts struct {
	Outside, Inside []Interface
	Forward         Forwarding
}

// bridge returns the ports between which a bridge passes packets, 0 of a router.
func (p *ProxyPorts) bridge() (inside, outside uint32) {
	if p == nil || p.Forward != Bridge {
		return 0, 0
	}
	return uint32(p.Inside[0].Index), uint32(p.Outside[0].Index)
}

func (p *ProxyPorts) inside() []Interface {
	if p == nil {
		return nil
	}
	return p.Inside
}

// Proxy is an edge's translator: the connections of its services whose strategy
// is proxy.
type Proxy struct {
	server *Server
	sent   map[serverEndpoints]int // SYNs that were sent again, of what is half open
}

// LoadProxy loads the translator beside an edge, whose tables and connections it
// shares.
func LoadProxy(pins *Pins, edge *Edge, recent int) (*Proxy, error) {
	c := &edge.config
	s, err := LoadServer(pins, ServerConfig{
		Services: c.Services, Domains: c.Domains, Epochs: c.Epochs, Recent: recent, Edge: edge,
		Proxy: &ProxyPorts{Outside: c.Outside, Inside: c.Inside, Forward: c.Forward},
	})
	if err != nil {
		return nil, err
	}
	return &Proxy{server: s, sent: make(map[serverEndpoints]int)}, nil
}

// Attach pins the maps and puts the programs in their places, those that translate
// back first. Before the edge's own: nothing is let through to a hook that is bare.
func (p *Proxy) Attach(pins *Pins) error {
	o, ports := &p.server.objects, p.server.config.Proxy
	if err := pinMaps(pins, map[string]*ebpf.Map{
		"counters": o.Counters, "recent": o.Recent, "half_open": o.HalfOpen, "syns": o.Syns,
	}); err != nil {
		return err
	}
	type hook struct {
		at      []Interface
		program *ebpf.Program
		attach  ebpf.AttachType
	}
	hooks := []hook{{ports.Inside, o.ProxyIngress, ebpf.AttachTCXIngress}, {ports.Inside, o.ProxyEgress, ebpf.AttachTCXEgress}}
	if ports.Forward == Bridge {
		hooks = append(hooks, hook{ports.Outside, o.ProxyCross, ebpf.AttachTCXIngress})
	}
	for _, h := range hooks {
		for _, i := range h.at {
			if err := attachTC(pins, p.server.links, i, h.program, h.attach); err != nil {
				return err
			}
		}
	}
	if err := p.server.heedFlows(); err != nil { // which the former programs made until now
		return err
	}
	return pins.keepLinks(p.server.links)
}

// Undo takes off what Attach newly put in place.
func (p *Proxy) Undo(pins *Pins) { p.server.Undo(pins) }

// Close lets go of everything; what is pinned goes on.
func (p *Proxy) Close() error { return p.server.Close() }

// Occupancies returns how full the table of connections is.
func (p *Proxy) Occupancies() []Occupancy { return p.server.Occupancies() }

// SweepFlows removes connections that are over, see Server.
func (p *Proxy) SweepFlows() (seen, removed int, err error) { return p.server.SweepFlows() }

// synTimes is when a SYN is sent again that the server has not answered; after
// synLimit the client is told. As a Linux client would, but for fewer seconds:
// the client waits.
var synTimes = []time.Duration{1 * time.Second, 3 * time.Second, 7 * time.Second}

const (
	synLimit = 15 * time.Second
	// linger is LINGER_NS of translate.h: how long a handshake is remembered.
	linger = 64 * time.Second
	// sendsMost is how many packets are sent in one round: 0.1 s of a CPU.
	sendsMost = 8192
)

// due is what is to be done for a half-open connection of some age, of which so
// many SYNs were sent again.
func due(age time.Duration, sent int) (syn, reset bool) {
	if age >= synLimit {
		return false, true
	}
	return sent < len(synTimes) && age >= synTimes[sent], false
}

// Remind sends SYNs again that have no answer, and tells clients of servers that
// are silent. It is to be called once a second.
func (p *Proxy) Remind() error { return p.remindSome(sendsMost) }

func (p *Proxy) remindSome(most int) error {
	now, err := coarseNow()
	if err != nil {
		return err
	}
	sent, sends := make(map[serverEndpoints]int), 0
	cursor, keys, values := ebpf.MapBatchCursor{}, make([]serverEndpoints, flowsBatch), make([]serverTranslation, flowsBatch)
	for {
		n, err := p.server.objects.HalfOpen.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			if values[i].expired(now) {
				continue
			}
			if count := p.sent[keys[i]]; count > 0 { // also of those that have to wait
				sent[keys[i]] = count
			}
			if sends >= most {
				continue
			}
			done, err := p.remind(&keys[i], &values[i], now, sent)
			if err != nil {
				return err
			}
			if done {
				sends++
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			p.sent = sent
			return nil // the end
		}
		if err != nil {
			return fmt.Errorf("read half-open connections: %w", err)
		}
	}
}

func (p *Proxy) remind(key *serverEndpoints, t *serverTranslation, now uint64, sent map[serverEndpoints]int) (bool, error) {
	age := linger - time.Duration(t.ExpiresNs-now)
	syn, reset := due(age, p.sent[*key])
	if !syn && !reset {
		return false, nil
	}
	var kept serverSynKept
	if err := p.server.objects.Syns.Lookup(key, &kept); err != nil {
		return false, nil // too long to be kept, or just gone: it ends by itself
	}
	if syn {
		sent[*key] = p.sent[*key] + 1
		return true, p.send(kept.Frame[:kept.Length], &kept, key, edgeVerdictVERDICT_SENT_SYN, 0)
	}
	frame := resetFrame(&kept, t)
	return true, p.send(frame, &kept, key, edgeVerdictVERDICT_SENT_RESET, bpfIngress)
}

// bpfIngress is BPF_F_INGRESS.
const bpfIngress = 1

func (p *Proxy) send(frame []byte, kept *serverSynKept, key *serverEndpoints, verdict edgeVerdict, flags uint32) error {
	context := skbContext{Ifindex: kept.Ifindex, CB: [5]uint32{flags, uint32(verdict), p.service(key), kept.tag()}}
	_, err := p.server.objects.ProxySend.Run(&ebpf.RunOptions{Data: frame, Context: context})
	if err != nil && !errors.Is(err, unix.ENODEV) { // the device has gone
		return fmt.Errorf("send to port %d: %w", kept.Ifindex, err)
	}
	return nil
}

// service is the id of the service of a connection, 0 if there is none any more.
func (p *Proxy) service(key *serverEndpoints) uint32 {
	server := tenantFlow(key).Server
	i, ok := policy.Protects(p.server.config.Edge.config.Services, server.Addr(), server.Port())
	if !ok {
		return 0
	}
	return p.server.id(i)
}
