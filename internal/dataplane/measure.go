package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Programs are those at the server's ingress and egress, for measuring them.
func (s *Server) Programs() (ingress, egress *ebpf.Program) {
	return s.objects.ServerIngress, s.objects.ServerEgress
}

// TranslateStamps makes a connection a translated one whose timestamps are
// shifted, and whose sequence numbers are by nothing: a program can be measured
// with one packet again and again, and does for it what it does for any other.
func (s *Server) TranslateStamps(client, server netip.AddrPort, shift uint32) error {
	const scale = 7
	value := serverTranslation{
		State:      uint8(serverTranslationStateTRANSLATION_ESTABLISHED),
		StampDelta: shift, Options: translationOptions(scale, scale, scale, true),
	}
	key := serverEndpoints{
		ClientBe: wordsOf(client.Addr()), ClientPortBe: client.Port()<<8 | client.Port()>>8,
		ServerBe: wordsOf(server.Addr()), ServerPortBe: server.Port()<<8 | server.Port()>>8,
	}
	if err := s.objects.Flows.Put(key, value); err != nil {
		return fmt.Errorf("write a translated connection: %w", err)
	}
	if err := s.objects.Translating.Set(true); err != nil {
		return fmt.Errorf("set translating: %w", err)
	}
	return nil
}

// translationOptions are a connection's three window scales, and whether it has
// timestamps.
func translationOptions(client, announced, kernel uint16, timestamps bool) uint16 {
	options := client | announced<<serverTranslationOptionsTRANSLATION_ANNOUNCED_SHIFT | kernel<<serverTranslationOptionsTRANSLATION_KERNEL_SHIFT
	if timestamps {
		options |= uint16(serverTranslationOptionsTRANSLATION_TIMESTAMPS)
	}
	return options
}

// wordsOf is an address as it lies in the tables, IPv4 mapped into IPv6.
func wordsOf(a netip.Addr) (words [4]uint32) {
	bytes := a.As16()
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return words
}
