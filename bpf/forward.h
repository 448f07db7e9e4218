/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How a packet leaves a program: passed on, or dropped, and counted. */
#ifndef SMARTCOOKIE_FORWARD_H
#define SMARTCOOKIE_FORWARD_H

#include "lib/checksum.h"
#include "lib/packet.h"
#include "service.h"
#include "socket.h"

enum forwarding {
	FORWARD_BRIDGE = 0, /* two ports, whatever comes in by one leaves by the other */
	FORWARD_ROUTE = 1,  /* by the kernel's routes and neighbours */
	FORWARD_LOCAL = 2,  /* this host is the server */
};

const volatile enum forwarding forward_mode = FORWARD_BRIDGE;

enum bridge_port { PORT_INSIDE = 0, PORT_OUTSIDE = 1, PORTS = 2 };

/* bridge: by enum bridge_port. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, PORTS);
	__type(key, u32);
	__type(value, u32);
} bridge_ports SEC(".maps");

/* route: our own ports by interface index. A route that leaves elsewhere is
 * the kernel's to follow. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u32);
} route_ports SEC(".maps");

INLINE int drop(u32 service, enum verdict verdict)
{
	count(service, verdict);
	return XDP_DROP;
}

/* Fills in the question; returns the packet's TTL or hop limit. */
INLINE u8 fib_question4(const struct ip4_header *ip, const void *end, struct bpf_fib_lookup *f)
{
	if ((const void *)(ip + 1) > end)
		return 0;
	f->family = AF_INET;
	f->ipv4_src = ip->source_be;
	f->ipv4_dst = ip->destination_be;
	f->l4_protocol = ip->protocol;
	f->tos = ip->tos;
	f->tot_len = BE16(ip->total_length_be);
	return ip->ttl;
}

INLINE u8 fib_question6(const struct ip6_header *ip, const void *end, struct bpf_fib_lookup *f)
{
	if ((const void *)(ip + 1) > end)
		return 0;
	f->family = AF_INET6;
	for (int i = 0; i < 4; i++) {
		f->ipv6_src[i] = ip->source_be[i];
		f->ipv6_dst[i] = ip->destination_be[i];
	}
	f->l4_protocol = ip->next;
	f->flowinfo = ip->version_class_label_be & BE32(0x0fffffff);
	f->tot_len = (u16)(BE16(ip->payload_length_be) + IP6_LENGTH);
	return ip->hop_limit;
}

/* One hop less, and the checksum with it, incrementally (RFC 1624). */
INLINE bool route_hop(void *data, void *end, bool v6, const struct bpf_fib_lookup *f)
{
	struct ip4_header *ip4 = data + ETHERNET_LENGTH;
	struct ip6_header *ip6 = data + ETHERNET_LENGTH;

	if ((void *)(ip4 + 1) > end || (v6 && (void *)(ip6 + 1) > end))
		return false;
	if (v6) {
		ip6->hop_limit--;
	} else {
		u32 sum = ip4->checksum + BE16(0x0100);

		ip4->checksum = (u16)(sum + (sum >= 0xffff));
		ip4->ttl--;
	}
	__builtin_memcpy(data, f->dmac, 6);
	__builtin_memcpy(data + 6, f->smac, 6);
	return true;
}

/*
 * XDP_PASS gives the packet to the kernel: what it must resolve, fragment,
 * answer with an ICMP error or deliver itself, and tagged frames, whose tag
 * is the kernel's to exchange.
 */
NOINLINE int route(struct xdp_md *ctx, bool v6)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct bpf_fib_lookup f = { .ifindex = ctx->ingress_ifindex };
	u8 hops = v6 ? fib_question6(data + ETHERNET_LENGTH, end, &f) :
		       fib_question4(data + ETHERNET_LENGTH, end, &f);

	if (hops <= 1)
		return XDP_PASS;
	long rc = bpf_fib_lookup(ctx, &f, sizeof(f), 0);
	if (rc == BPF_FIB_LKUP_RET_BLACKHOLE || rc == BPF_FIB_LKUP_RET_UNREACHABLE ||
	    rc == BPF_FIB_LKUP_RET_PROHIBIT)
		return XDP_DROP;
	if (rc != BPF_FIB_LKUP_RET_SUCCESS || !bpf_map_lookup_elem(&route_ports, &f.ifindex))
		return XDP_PASS;
	if (!route_hop(data, end, v6, &f))
		return XDP_PASS;
	return (int)bpf_redirect_map(&route_ports, f.ifindex, 0);
}

INLINE int forward(struct xdp_md *ctx, const struct packet *p, u32 service, enum verdict verdict,
		   u32 port)
{
	int action = XDP_PASS;

	if (forward_mode == FORWARD_BRIDGE) /* or dropped, if the port is gone */
		action = (int)bpf_redirect_map(&bridge_ports, port, XDP_DROP);
	else if (forward_mode == FORWARD_ROUTE && p->addressed && p->network == ETHERNET_LENGTH)
		action = route(ctx, p->flow.v6);
	count(service, action == XDP_DROP ? VERDICT_DROP_UNROUTABLE : verdict);
	return action;
}

/* Whether any service is proxied; set when loading. Elsewhere none of this is
 * there. */
const volatile bool proxies = false;

/* To the kernel's path, where the translator is. */
INLINE int pass_up(u32 service, enum verdict verdict)
{
	count(service, verdict);
	return XDP_PASS;
}

/* Whatever becomes of it and in whichever mode its service is: a connection that is
 * translated stays so. */
INLINE int pass(struct xdp_md *ctx, const struct packet *p, u32 service, enum verdict verdict)
{
	if (service != SERVICE_NONE && proxies && service_is_proxied(service))
		return pass_up(service, verdict);
	return forward(ctx, p, service, verdict, PORT_INSIDE);
}

INLINE int pass_outward(struct xdp_md *ctx, const struct packet *p)
{
	return forward(ctx, p, SERVICE_NONE, VERDICT_PASS_INSIDE, PORT_OUTSIDE);
}

#endif
