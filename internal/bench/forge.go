package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"smartcookie/internal/cookie"
	"smartcookie/internal/lab"
)

// forgery is the attack on a victim: own flows first, then ACKs of clients that the
// attacker can send as and not hear for.
type forgery struct {
	*victim
	forger forger
	own    []ownFlow
	parity uint32 // of the epoch's cookies
}

// forged is what came of it.
type forged struct {
	probes int // own flows until every other one could be forged
	taken  uint64
	known  uint64 // packets behind a forged ACK that passed as a connection's
}

func (v *victim) attackWith(f forger) *forgery {
	target := netip.AddrPortFrom(v.lab.Server.IPv4, lab.HTTPPort)
	return &forgery{victim: v, forger: f, own: ownFlows(v.lab.Attacker.IPv4, target)}
}

// Bits of a cookie that are of its MAC: all but the parity, once the code is taken out.
const (
	cookieMACBits    = 26
	cookieMACMask    = 1<<cookieMACBits - 1
	cookieCodeMask   = 0x1f
	cookieParityMask = 1 << 31
)

// plainCode is the code of a SYN without options, as the probes are.
var plainCode = uint32(cookie.Encode(cookie.IPv4, cookie.Options{}, cookie.OfferAll).Code)

// tOf takes T out of a cookie, without its top bit.
func tOf(number uint32) uint32 {
	return (number>>cookieMACBits-plainCode)&cookieCodeMask<<cookieMACBits | number&cookieMACMask
}

// cookieOf is the cookie of T.
func (f *forgery) cookieOf(t uint32) uint32 {
	return f.parity | (t>>cookieMACBits+plainCode)&cookieCodeMask<<cookieMACBits | t&cookieMACMask
}

// see opens a flow of its own and returns its message and T.
func (f *forgery) see(own ownFlow) ([]byte, uint32, error) {
	number, err := f.intruder.probe(own)
	f.parity = number & cookieParityMask
	return forgedMessage(own.Flow, own.isn), tOf(number), err
}

// targets are clients of the lab's crowd, one at each of its first addresses, and
// other flows each time. The first byte of the addresses is the attacker's own too,
// nothing else of the flows.
func (f *forgery) targets(count int) (all []ownFlow) {
	const lowest, ports = 1024, 1<<16 - 1024
	network := binary.BigEndian.Uint32(lab.Crowd4.Addr().AsSlice())
	f.batches++
	random := rand.New(rand.NewPCG(uint64(f.batches), 0))
	for i := range count {
		source := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, network+uint32(i))))
		port := uint16(lowest + (40507*f.batches+7*i)%ports) // another one in each batch: 40507 has no divisor in common
		flow := cookie.Flow{Source: netip.AddrPortFrom(source, port), Destination: f.own[0].Destination}
		all = append(all, ownFlow{flow, random.Uint32()})
	}
	return all
}

// learn opens flows of its own until all targets can be forged.
func (f *forgery) learn(targets []ownFlow) (probes int, err error) {
	can := func() bool {
		for _, t := range targets {
			if _, ok := f.forger.predict(forgedMessage(t.Flow, t.isn)); !ok {
				return false
			}
		}
		return true
	}
	for _, own := range f.own {
		if can() {
			break
		}
		message, t, err := f.see(own)
		if err != nil {
			return probes, err
		}
		f.forger.learn(message, t)
		probes++
	}
	if !can() {
		return probes, errors.New("the attacker's own flows differ in too few bits")
	}
	return probes, nil
}

// forge sends a forged ACK for each target, and a packet behind it.
func (f *forgery) forge(ctx context.Context, targets []ownFlow) (r forged, err error) {
	finish := func() error {
		for i, target := range targets {
			if i%64 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			t, _ := f.forger.predict(forgedMessage(target.Flow, target.isn))
			if err := f.intruder.send(target.Flow, flagACK, target.isn+1, f.cookieOf(t)+1); err != nil {
				return err
			}
		}
		return nil
	}
	first, err := f.count(ctx, len(targets), finish)
	if err != nil {
		return r, err
	}
	second, err := f.count(ctx, len(targets), finish)
	r.taken, r.known = first["pass_cookie"], second["pass_verified"]
	return r, err
}

// honest proves that the edge takes a cookie from whom it was made for: else that it
// takes none would mean nothing.
func (f *forgery) honest(ctx context.Context) error {
	own := f.own[0]
	f.batches++
	own.Source = netip.AddrPortFrom(own.Source.Addr(), own.Source.Port()+uint16(f.batches)) // none that has been
	number, err := f.intruder.probe(own)
	if err != nil {
		return err
	}
	counts, err := f.count(ctx, 1, func() error { return f.intruder.send(own.Flow, flagACK, own.isn+1, number+1) })
	if err == nil && counts["pass_cookie"] != 1 {
		err = fmt.Errorf("the edge does not take its own cookie: %v", counts)
	}
	return err
}

// again goes on into the next epoch, and forges there with what is known, and a flow
// of its own more.
func (f *forgery) again(ctx context.Context, targets []ownFlow) (r forged, err error) {
	if err := f.rekey(); err != nil {
		return r, err
	}
	own := f.own[len(f.own)/2]
	message, t, err := f.see(own)
	if err != nil {
		return r, err
	}
	f.forger.rekeyed(message, t)
	r, err = f.forge(ctx, targets)
	r.probes = 1
	return r, err
}

// attack is the whole of it, with so many forged ACKs in each epoch.
func (f *forgery) attack(ctx context.Context, acks int) (map[string]float64, error) {
	if err := f.honest(ctx); err != nil {
		return nil, err
	}
	targets := f.targets(acks)
	begun := time.Now()
	probes, err := f.learn(targets)
	if err != nil {
		return nil, err
	}
	learnt := time.Since(begun)
	r, err := f.forge(ctx, targets)
	if err != nil {
		return nil, err
	}
	figures := map[string]float64{
		"probes": float64(probes), "learning_ms": float64(learnt) / 1e6, "forged": float64(acks),
		"taken": float64(r.taken), "taken_percent": 100 * float64(r.taken) / float64(acks), "known_percent": 100 * float64(r.known) / float64(acks),
	}
	if f.rekey == nil {
		return figures, nil
	}
	next, err := f.again(ctx, f.targets(acks))
	figures["next_epoch_probes"], figures["next_epoch_taken_percent"] = float64(next.probes), 100*float64(next.taken)/float64(acks)
	return figures, err
}
