// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The edge agent. `edge_outside` faces clients and attackers, `edge_inside`
 * faces servers; in the host shape `edge_egress` sees what leaves the host.
 *
 * Fail closed for what is unknown and protected; fail open for everything
 * that is not TCP to a protected service.
 */
#include "forward.h"
#include "answer.h"
#include "tick.h"
#include "transmit.h"

/* Everything that needs the moment and the service: SYNs, and what is not in
 * the filter. */
NOINLINE int edge_unverified(struct xdp_md *ctx, struct packet *p)
{
	u32 id = service_find(p->flow.destination, p->flow.v6, flow_destination_port(&p->flow));
	const struct service *service = service_get(id);

	if (id == SERVICE_NONE || !service)
		return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_OTHER);
	if (service->mode == MODE_OFF)
		return pass(ctx, p, id, VERDICT_PASS_OFF);

	enum verdict fault = flags_fault(p->flags);
	if (fault != VERDICT_PASS_OTHER)
		return drop(id, fault);

	struct moment now = moment_now();
	if (flags_open(p->flags))
		return answer(ctx, p, service, id, &now);
	if (!flags_acknowledge(p->flags) && filter_has(&p->flow)) /* RST; SYN-ACK to the inside */
		return pass(ctx, p, id, VERDICT_PASS_VERIFIED);
	if (cookie_admits(p, service, &now)) {
		filter_add(&p->flow);
		return pass(ctx, p, id, VERDICT_PASS_COOKIE);
	}
	if (now.learning) /* fail open: it may be a connection older than we are */
		return pass(ctx, p, id, VERDICT_PASS_LEARNING);
	if (forward_mode == FORWARD_LOCAL && socket_exists(ctx, p)) {
		filter_add(&p->flow);
		return pass(ctx, p, id, VERDICT_PASS_SOCKET);
	}
	return drop(id, unverified_verdict(p, service, &now));
}

/* Not a whole TCP segment: lost to a protected prefix, untouched elsewhere. */
NOINLINE int edge_unparsed(struct xdp_md *ctx, struct packet *p,
						   enum parsed parsed)
{
	if (parsed == PARSED_VLAN_DEPTH)
		return drop(SERVICE_NONE, VERDICT_DROP_VLAN_DEPTH);
	if (parsed != PARSED_OTHER && prefix_find(p->flow.destination, p->flow.v6))
		return drop(SERVICE_NONE, parsed_fault(parsed));
	return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_OTHER);
}

SEC("xdp.frags")
int edge_outside(struct xdp_md *ctx)
{
	struct packet p;
	enum parsed parsed = packet_frame((void *)(long)ctx->data, (void *)(long)ctx->data_end, &p);

	if (parsed != PARSED_TCP)
		return edge_unparsed(ctx, &p, parsed);
	if (LIKELY(flags_acknowledge(p.flags)) && filter_has(&p.flow))
		return pass(ctx, &p, SERVICE_NONE, VERDICT_PASS_VERIFIED);
	return edge_unverified(ctx, &p);
}

/*
 * From the servers: an ACK proves a connection and keeps its flow in the
 * filter, a SYN opens one from the inside, whose answers must come in. RSTs
 * and SYN-ACKs prove nothing: a spoofed packet provokes them.
 */
INLINE void edge_learn(const struct packet *p)
{
	struct flow flow = flow_reverse(&p->flow);

	if (!flags_acknowledge(p->flags) && !flags_open(p->flags))
		return;
	if (filter_fresh(&flow))
		return;
	if (service_find(p->flow.source, p->flow.v6, (u16)(p->flow.ports >> 16)) != SERVICE_NONE)
		filter_add(&flow);
}

SEC("xdp.frags")
int edge_inside(struct xdp_md *ctx)
{
	struct packet p;

	if (packet_frame((void *)(long)ctx->data, (void *)(long)ctx->data_end, &p) == PARSED_TCP)
		edge_learn(&p);
	return pass_outward(ctx, &p);
}

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
