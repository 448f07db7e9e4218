/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What both hooks need of the kernel: its flow tuples and its skbs. */
#ifndef SMARTCOOKIE_SOCKET_H
#define SMARTCOOKIE_SOCKET_H

#include "lib/packet.h"
#include "maps.h"

enum {
	AF_INET = 2,
	AF_INET6 = 10,
	NETNS_OF_DEVICE = -1, /* BPF_F_CURRENT_NETNS, as a signed number */
	TC_NEXT = -1,         /* TCX_NEXT, and TC_ACT_UNSPEC for clsact: the next program */
	TC_DROP = 2,          /* TC_ACT_SHOT */
	HEADERS_MAX = 256,    /* of a packet that must lie in one piece */
};

/* Devices without an Ethernet header (tunnels) have 0; set when loading. */
const volatile u32 link_length = ETHERNET_LENGTH;

/* The kernel's tuple of a flow; returns its size for this family. */
INLINE u32 flow_tuple(const struct flow *f, struct bpf_sock_tuple *t)
{
	u16 source = BE16((u16)(f->ports >> 16)), destination = BE16((u16)f->ports);

	if (!f->v6) {
		t->ipv4.saddr = BE32(f->source[0]);
		t->ipv4.daddr = BE32(f->destination[0]);
		t->ipv4.sport = source;
		t->ipv4.dport = destination;
		return sizeof(t->ipv4);
	}
	for (int i = 0; i < 4; i++) {
		t->ipv6.saddr[i] = BE32(f->source[i]);
		t->ipv6.daddr[i] = BE32(f->destination[i]);
	}
	t->ipv6.sport = source;
	t->ipv6.dport = destination;
	return sizeof(t->ipv6);
}

/* Tagged packets are ours too: the host shape answers their SYNs. */
const volatile bool own_tags = false;

INLINE enum parsed skb_parse(const struct __sk_buff *skb, struct packet *p)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	p->network = (u16)link_length;
	return packet_network(data, end, (u16)skb->protocol, skb->len > 0xffff ? skb->len : 0, p);
}

/* At TC a tag is beside the data: otherwise a tagged packet belongs to the
 * VLAN device above, where an agent of its own may look at it. */
INLINE enum parsed skb_packet(struct __sk_buff *skb, struct packet *p)
{
	if (skb->vlan_present && !own_tags)
		return PARSED_OTHER;
	enum parsed parsed = skb_parse(skb, p);
	u32 linear = skb->data_end - skb->data;
	if (LIKELY(parsed == PARSED_TCP) || linear >= HEADERS_MAX || linear >= skb->len)
		return parsed;
	/* Headers may lie in pages: drivers leave the first few in place. */
	if (bpf_skb_pull_data(skb, skb->len < HEADERS_MAX ? skb->len : HEADERS_MAX))
		return parsed;
	return skb_parse(skb, p);
}

#endif
