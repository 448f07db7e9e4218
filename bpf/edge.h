/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The walk of a packet through the edge. What comes from the outside is a SYN
 * to answer, a packet of a verified flow, a packet with a valid cookie, or
 * lost; what comes from the inside passes and keeps its flow verified.
 *
 * Fail closed for what is unknown and protected; fail open for everything
 * that is not TCP to a protected service.
 */
#ifndef SMARTCOOKIE_EDGE_H
#define SMARTCOOKIE_EDGE_H

#include "agents.h"
#include "answer.h"
#include "auth.h"
#include "filter.h"
#include "forward.h"
#include "relay.h"

/* Below two tags a host's kernel makes no connection from a cookie. */
INLINE bool tags_prevent_setup(const struct packet *p)
{
	return forward_mode == FORWARD_LOCAL && p->network > ETHERNET_LENGTH + VLAN_LENGTH;
}

/* The service that defends a packet's destination, and how we stand to its
 * agent. NULL: none does, and *passes is the verdict with which the packet
 * goes on. */
INLINE const struct service *edge_service(const struct packet *p, const struct moment *now, u32 *id,
					  u32 *stance, enum verdict *passes)
{
	*stance = service_find(p->flow.destination, p->flow.v6, flow_destination_port(&p->flow),
			       now->version);
	*id = *stance & STANCE_SERVICE;
	const struct service *service = service_get(*id);

	*passes = *id == SERVICE_NONE ? VERDICT_PASS_OTHER : VERDICT_PASS_OFF;
	if (*id == SERVICE_NONE || !service || service->mode == MODE_OFF || tags_prevent_setup(p))
		return NULL;
	if (UNLIKELY(*stance & STANCE_PASSES)) { /* fail open */
		*passes = VERDICT_PASS_UNHEARD;
		return NULL;
	}
	return service;
}

GLOBAL int edge_open(struct xdp_md *ctx, struct packet *p)
{
	if (!p)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	struct moment now = moment_now();
	enum verdict passes;
	u32 id, stance;
	const struct service *service = edge_service(p, &now, &id, &stance, &passes);

	if (!service)
		return pass(ctx, p, id, passes);
	if (UNLIKELY(stance &
		     (STANCE_STOPS | STANCE_CLOSED))) /* no answer: the client asks again */
		return drop(id,
			    stance & STANCE_STOPS ? VERDICT_DROP_SILENT : VERDICT_DROP_CLOSED_PORT);
	switch (strategy_of(service)) {
	case STRATEGY_AUTH_COOKIE:
	case STRATEGY_AUTH_FULL:
	case STRATEGY_AUTH_RST:
		return auth_open(ctx, p, service, id);
	default:
		return answer(ctx, p, service, id, &now);
	}
}

/* Neither a SYN nor, if it has an ACK, in the filter: the cookie decides. */
GLOBAL int edge_doubtful(struct xdp_md *ctx, struct packet *p)
{
	if (!p)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	struct moment now = moment_now();
	enum verdict passes;
	u32 id, stance;
	const struct service *service = edge_service(p, &now, &id, &stance, &passes);

	if (!service)
		return pass(ctx, p, id, passes);
	enum verdict fault = flags_fault(p->flags);
	if (fault != VERDICT_PASS_OTHER)
		return drop(id, fault);
	bool whitelists = strategy_whitelists(strategy_of(service));
	if (whitelists) {
		int action = auth_doubtful(ctx, p, service, id);

		if (action != AUTH_UNKNOWN)
			return action;
	}
	if (!flags_acknowledge(p->flags) && filter_has(&p->flow)) /* RST; SYN-ACK to the inside */
		return pass(ctx, p, id, VERDICT_PASS_VERIFIED);
	if (!whitelists && cookie_admits(p, service, &now)) {
		if (UNLIKELY(admits_on_confirm(service, stance)))
			return setup_due(id, now.monotonic_ns) ? relay(ctx, p, id, CONTROL_SETUP) :
								 drop(id, VERDICT_DROP_BUSY);
		filter_add(&p->flow);
		return pass(ctx, p, id, VERDICT_PASS_COOKIE);
	}
	if (now.learning ||
	    stance & STANCE_LEARNS) /* fail open: it may be a connection older than we are */
		return pass(ctx, p, id, VERDICT_PASS_LEARNING);
	if (keys_end_passes(service, &now))
		return pass(ctx, p, id, VERDICT_PASS_NO_KEY);
	if (forward_mode == FORWARD_LOCAL && socket_exists(ctx, p)) {
		filter_add(&p->flow);
		return pass(ctx, p, id, VERDICT_PASS_SOCKET);
	}
	if (UNLIKELY(service->probe_interval_ns) && flags_acknowledge(p->flags) &&
	    probe_due(id, service->probe_interval_ns, now.monotonic_ns))
		return relay(ctx, p, id, CONTROL_PROBE);
	return drop(id, unverified_verdict(p, service, &now));
}

/* Not a whole TCP segment: lost to a protected prefix, untouched elsewhere. */
GLOBAL int edge_unparsed(struct xdp_md *ctx, struct packet *p, enum parsed parsed)
{
	if (!p)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	if (parsed == PARSED_VLAN_DEPTH)
		return drop(SERVICE_NONE, VERDICT_DROP_VLAN_DEPTH);
	if (parsed != PARSED_OTHER && prefix_find(p->flow.destination, p->flow.v6))
		return drop(SERVICE_NONE, parsed_fault(parsed));
	return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_OTHER);
}

INLINE int from_outside(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	enum parsed parsed = PARSED_TCP;
	struct packet p;

	if (UNLIKELY(!packet_plain(data, end, &p)))
		parsed = packet_frame(data, end, &p);
	if (parsed != PARSED_TCP)
		return edge_unparsed(ctx, &p, parsed);
	if (LIKELY(flags_acknowledge(p.flags)) && filter_has(&p.flow))
		return pass(ctx, &p, SERVICE_NONE, VERDICT_PASS_VERIFIED);
	return flags_open(p.flags) ? edge_open(ctx, &p) : edge_doubtful(ctx, &p);
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
	struct moment now = moment_now();
	if (service_find(p->flow.source, p->flow.v6, (u16)(p->flow.ports >> 16), now.version) !=
	    SERVICE_NONE)
		filter_add(&flow);
}

INLINE int from_inside(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p = {};

	if (LIKELY(packet_plain(data, end, &p)) || packet_frame(data, end, &p) == PARSED_TCP)
		edge_learn(&p);
	return pass_outward(ctx, &p);
}

#endif
