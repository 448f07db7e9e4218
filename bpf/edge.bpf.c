// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The edge agent's programs. The walk itself is in edge.h. */
#include "edge.h"
#include "learn.h"
#include "tick.h"
#include "transmit.h"

/* On the ports that face clients and attackers. */
SEC("xdp")
int edge_outside(struct xdp_md *ctx)
{
	return from_outside(ctx);
}

/* On the ports that face servers. */
SEC("xdp")
int edge_inside(struct xdp_md *ctx)
{
	return from_inside(ctx);
}

/* In the host shape, on what leaves the host. */
SEC("tc")
int edge_egress(struct __sk_buff *skb)
{
	struct packet p = {};

	if (skb_packet(skb, &p) == PARSED_TCP)
		edge_learn(&p);
	count(SERVICE_NONE, VERDICT_PASS_INSIDE);
	return TC_NEXT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
