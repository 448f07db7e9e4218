/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors quote the packet that they are about. Where that is one of a
 * translated connection, the kernel must see the sequence number that it sent,
 * or path MTU discovery fails.
 */
#ifndef SMARTCOOKIE_ICMP_H
#define SMARTCOOKIE_ICMP_H

#include "memo.h"
#include "translate.h"

/* Where the quoted TCP header is, and whose it is. */
struct quote {
	struct flow flow;
	u32 icmp; /* offsets */
	u32 tcp;
};

INLINE bool quote_ports(struct __sk_buff *skb, struct quote *q)
{
	u32 ports;

	if (bpf_skb_load_bytes(skb, q->tcp, &ports, sizeof(ports)))
		return false;
	q->flow.ports = BE32(ports);
	return true;
}

INLINE bool quote_ip4(struct __sk_buff *skb, const struct packet *p, struct quote *q)
{
	struct ip4_header ip;
	u8 type;

	if (bpf_skb_load_bytes(skb, p->network, &ip, sizeof(ip)) || ip.protocol != PROTOCOL_ICMP ||
	    ip.fragment_be & BE16(IP4_FRAGMENT_MASK))
		return false;
	q->icmp = p->network + (ip.version_length & 0x0f) * 4U;
	if (bpf_skb_load_bytes(skb, q->icmp, &type, sizeof(type)) ||
	    (type != ICMP_UNREACHABLE && type != ICMP_TIME_EXCEEDED && type != ICMP_PARAMETER))
		return false;
	if (bpf_skb_load_bytes(skb, q->icmp + ICMP_LENGTH, &ip, sizeof(ip)) ||
	    ip.protocol != PROTOCOL_TCP)
		return false;
	q->tcp = q->icmp + ICMP_LENGTH + (ip.version_length & 0x0f) * 4U;
	q->flow.source[0] = BE32(ip.source_be);
	q->flow.destination[0] = BE32(ip.destination_be);
	return quote_ports(skb, q);
}

INLINE bool quote_ip6(struct __sk_buff *skb, const struct packet *p, struct quote *q)
{
	struct ip6_header ip;
	u8 type;

	if (bpf_skb_load_bytes(skb, p->network, &ip, sizeof(ip)) || ip.next != PROTOCOL_ICMP6)
		return false;
	q->icmp = p->network + IP6_LENGTH;
	if (bpf_skb_load_bytes(skb, q->icmp, &type, sizeof(type)) || type < ICMP6_UNREACHABLE ||
	    type > ICMP6_PARAMETER)
		return false;
	if (bpf_skb_load_bytes(skb, q->icmp + ICMP_LENGTH, &ip, sizeof(ip)) ||
	    ip.next != PROTOCOL_TCP)
		return false;
	q->tcp = q->icmp + ICMP_LENGTH + IP6_LENGTH;
	q->flow.v6 = true;
	for (int i = 0; i < 4; i++) {
		q->flow.source[i] = BE32(ip.source_be[i]);
		q->flow.destination[i] = BE32(ip.destination_be[i]);
	}
	return quote_ports(skb, q);
}

/* True: the packet is an error about a translated connection, and now says so
 * in the kernel's numbers. Anything else passes as it is: fail open. */
GLOBAL bool icmp_translate(struct __sk_buff *skb, const struct packet *p, bool tenant)
{
	struct quote q = {};
	struct endpoints e;
	u32 was, is;

	if (!p || !(p->flow.v6 ? quote_ip6(skb, p, &q) : quote_ip4(skb, p, &q)))
		return false;
	int id = service_at(q.flow.source, q.flow.v6, (u16)(q.flow.ports >> 16));
	if (id == UNPROTECTED || service_is_tenants((u32)id) != tenant)
		return false; /* the tenant's device translates it, or the host's */
	endpoints_of(&q.flow, true, &e);
	const struct translation *t = translation_find(&e);
	if (!t || !deltas_are_known(t) || bpf_skb_load_bytes(skb, q.tcp + 4, &was, sizeof(was)))
		return false;
	is = BE32(BE32(was) + t->delta);
	return !bpf_skb_store_bytes(skb, q.tcp + 4, &is, sizeof(is), 0) &&
	       !bpf_l4_csum_replace(skb, q.icmp + ICMP_CHECKSUM, was, is, sizeof(is));
}

#endif
