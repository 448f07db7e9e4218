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
	FORWARD_ROUTE  = 1, /* by the kernel's routes and neighbours */
	FORWARD_LOCAL  = 2, /* this host is the server */
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
INLINE u8 fib_question(struct xdp_md *ctx, const struct packet *p, struct bpf_fib_lookup *f)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	f->ifindex = ctx->ingress_ifindex;
	if (!p->flow.v6) {
		const struct ip4_header *ip = packet_at_network(data, p);

		f->family = AF_INET;
		f->ipv4_src = BE32(p->flow.source[0]);
		f->ipv4_dst = BE32(p->flow.destination[0]);
		if ((const void *)(ip + 1) > end)
			return 0;
		f->l4_protocol = ip->protocol;
		f->tos = ip->tos;
		f->tot_len = BE16(ip->total_length_be);
		return ip->ttl;
	}
	const struct ip6_header *ip = packet_at_network(data, p);

	f->family = AF_INET6;
	for (int i = 0; i < 4; i++) {
		f->ipv6_src[i] = BE32(p->flow.source[i]);
		f->ipv6_dst[i] = BE32(p->flow.destination[i]);
	}
	if ((const void *)(ip + 1) > end)
		return 0;
	f->l4_protocol = ip->next;
	f->flowinfo = ip->version_class_label_be & BE32(0x0fffffff);
	f->tot_len = (u16)(BE16(ip->payload_length_be) + IP6_LENGTH);
	return ip->hop_limit;
}

/* One hop less, and the checksum with it, incrementally (RFC 1624). */
INLINE bool route_hop(struct xdp_md *ctx, const struct packet *p, const struct bpf_fib_lookup *f)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + ETHERNET_LENGTH > end)
		return false;
	if (p->flow.v6) {
		struct ip6_header *ip = packet_at_network(data, p);

		if ((void *)(ip + 1) > end)
			return false;
		ip->hop_limit--;
	} else {
		struct ip4_header *ip = packet_at_network(data, p);

		if ((void *)(ip + 1) > end)
			return false;
		u32 sum = ip->checksum + BE16(0x0100);
		ip->checksum = (u16)(sum + (sum >= 0xffff));
		ip->ttl--;
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
NOINLINE int route(struct xdp_md *ctx, const struct packet *p)
{
	struct bpf_fib_lookup f = {};

	if (!p->addressed || p->network != ETHERNET_LENGTH || fib_question(ctx, p, &f) <= 1)
		return XDP_PASS;
	long rc = bpf_fib_lookup(ctx, &f, sizeof(f), 0);
	if (rc == BPF_FIB_LKUP_RET_BLACKHOLE || rc == BPF_FIB_LKUP_RET_UNREACHABLE ||
	    rc == BPF_FIB_LKUP_RET_PROHIBIT)
		return XDP_DROP;
	if (rc != BPF_FIB_LKUP_RET_SUCCESS || !bpf_map_lookup_elem(&route_ports, &f.ifindex))
		return XDP_PASS;
	if (!route_hop(ctx, p, &f))
		return XDP_PASS;
	return (int)bpf_redirect_map(&route_ports, f.ifindex, 0);
}

INLINE int forward(struct xdp_md *ctx, const struct packet *p, u32 port)
{
	if (forward_mode == FORWARD_BRIDGE)
		return (int)bpf_redirect_map(&bridge_ports, port, 0);
	if (forward_mode == FORWARD_ROUTE)
		return route(ctx, p);
	return XDP_PASS;
}

INLINE int forward_counted(struct xdp_md *ctx, const struct packet *p, u32 service,
			   enum verdict verdict, u32 port)
{
	int action = forward(ctx, p, port);

	count(service, action == XDP_DROP ? VERDICT_DROP_UNROUTABLE : verdict);
	return action;
}

INLINE int pass(struct xdp_md *ctx, const struct packet *p, u32 service, enum verdict verdict)
{
	return forward_counted(ctx, p, service, verdict, PORT_INSIDE);
}

INLINE int pass_outward(struct xdp_md *ctx, const struct packet *p)
{
	return forward_counted(ctx, p, SERVICE_NONE, VERDICT_PASS_INSIDE, PORT_OUTSIDE);
}

#endif
