package control

import (
	"fmt"
	"time"
)

// How fast flows are sent. The first announcement of an association is waited
// for; the others need only be over before the next.
const (
	firstWithin   = time.Second
	chunk         = 20 * time.Millisecond // in which messages are sent together
	bytesPerChunk = 16 << 10              // at least, and at most
	chunkMost     = 512 << 10
)

func pause(d time.Duration) { time.Sleep(d) }

func (p *edgePeer) generation() time.Duration {
	return time.Duration(p.hello.GenerationMS) * time.Millisecond
}

// generationLeast bounds what an edge can ask of us.
const generationLeast = time.Second

// due says whether an edge is to hear of all flows: when it asks for it the
// first time in its session, and then every half generation.
func (a *AgentEndpoint) due(p *edgePeer) bool {
	if p.peer == 0 || p.sending || a.Monotonic()-p.heardAt > Silence {
		return false
	}
	since := a.Monotonic() - p.begunAt
	if !p.announced && p.hello.WantsAll {
		return p.begunAt == 0 || since >= generationLeast
	}
	return since >= max(p.generation(), generationLeast)/2
}

// Announce walks the flows once and sends them to every edge for which that
// is due, each at its own pace; it returns when it has walked.
func (a *AgentEndpoint) Announce() error {
	edges := a.begin()
	if len(edges) == 0 {
		return nil
	}
	packed := newPacker()
	err := a.source.Walk(packed.add)
	packed.flush()
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, s := range edges {
			s.peer.sending = false
		}
		return fmt.Errorf("walk connections: %w", err)
	}
	if len(packed.done) == 0 { // that there is none is news too
		packed.done = append(packed.done, batch{body: make([]byte, flowsBytes)})
	}
	a.mu.Lock()
	a.announcement++
	number := a.announcement
	a.mu.Unlock()
	for i, b := range packed.done {
		b.number(number, uint32(i))
	}
	for _, s := range edges {
		a.sending.Go(func() { a.sendAll(s, packed.done) })
	}
	return nil
}

// sendTo is an announcement to one edge, which ends if the edge begins anew.
type sendTo struct {
	peer    *edgePeer
	session uint64
	within  time.Duration
}

func (a *AgentEndpoint) begin() (edges []sendTo) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.edges {
		if !a.due(p) {
			continue
		}
		within := max(p.generation(), generationLeast) / 4
		if !p.announced {
			within = min(within, firstWithin)
		}
		p.sending, p.announced, p.begunAt = true, true, a.Monotonic()
		edges = append(edges, sendTo{p, p.peer, within})
	}
	return edges
}

func (a *AgentEndpoint) sendAll(s sendTo, all []batch) {
	total := 0
	for _, b := range all {
		total += len(b.body) + headerBytes + tagBytes
	}
	perChunk := min(max(total/int(s.within/chunk), bytesPerChunk), chunkMost)
	begin := a.Monotonic()
	for i, sent, chunks := 0, 0, 0; i < len(all); chunks++ {
		if ahead := begin + time.Duration(chunks)*chunk - a.Monotonic(); ahead > 0 {
			a.pause(ahead)
		}
		first := i
		for ; i < len(all) && sent < (chunks+1)*perChunk; i++ {
			sent += len(all[i].body) + headerBytes + tagBytes
		}
		if !a.sendChunk(s, all[first:i], i == len(all)) {
			break
		}
	}
	a.mu.Lock()
	s.peer.sending = false
	a.mu.Unlock()
}

// sendChunk says whether the edge still is who it was.
func (a *AgentEndpoint) sendChunk(s sendTo, some []batch, end bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.peer.peer != s.session {
		return false
	}
	for i, b := range some {
		var flags uint16
		if end && i == len(some)-1 {
			flags = flowsLast
		}
		a.transmit(s.peer, &s.peer.association, KindFlows, flags, b.body, SentFlows)
		a.add(Announced, uint64(b.flows))
	}
	return true
}
