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
#include "budget.h"
#include "filter.h"
#include "forward.h"
#include "relay.h"
#include "sources.h"

/* Some service has a min_ttl; set when loading. */
const volatile bool ttl_matters = false;

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

/*
 * No service: the packet goes on, unless it is TCP to another port of a
 * protected address and such is lost. What the inside has opened is in the
 * filter; while that is learnt, fail open.
 */
INLINE int edge_unserved(struct xdp_md *ctx, const struct packet *p, const struct moment *now,
			 u32 id, u32 stance, enum verdict passes)
{
	if (LIKELY(!other_tcp_drops || id != SERVICE_NONE || !(stance & STANCE_OTHER)))
		return pass(ctx, p, id, passes);
	if (flags_open(p->flags))
		return drop(SERVICE_NONE, VERDICT_DROP_OTHER_PORT);
	if (filter_has(&p->flow))
		return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_VERIFIED);
	if (now->learning)
		return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_LEARNING);
	return drop(SERVICE_NONE, VERDICT_DROP_OTHER_PORT);
}

/* Hops that the packet has left; 255 where that cannot be read, which cannot be. */
INLINE u8 packet_hops(const struct xdp_md *ctx, const struct packet *p)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ip4_header *ip4 = packet_at_network(data, p);
	const struct ip6_header *ip6 = packet_at_network(data, p);

	if (p->flow.v6)
		return (const void *)(ip6 + 1) > end ? 255 : ip6->hop_limit;
	return (const void *)(ip4 + 1) > end ? 255 : ip4->ttl;
}

/* Whether the packet could expire between us and the server. The error would
 * tell its sender that it has passed: a way to try cookies and flows. */
INLINE bool expires_behind(const struct xdp_md *ctx, const struct packet *p,
			   const struct service *service)
{
	return ttl_matters && packet_hops(ctx, p) < service->min_ttl;
}

/* Of a flow in the filter. */
INLINE bool overspends(struct packet *p, const struct service *service, const struct moment *now)
{
	return packets_limited && service->packet_interval_ns &&
	       !flow_spends(&p->flow, service->packet_interval_ns, now->monotonic_ns) &&
	       !source_allowed(&p->flow);
}

/* In the filter, and some service is careful with such packets. */
GLOBAL int edge_verified(struct xdp_md *ctx, struct packet *p)
{
	if (!p)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	struct moment now = moment_now();
	enum verdict passes;
	u32 id, stance;
	const struct service *service = edge_service(p, &now, &id, &stance, &passes);

	if (service && expires_behind(ctx, p, service))
		return drop(id, VERDICT_DROP_LOW_TTL);
	if (service && overspends(p, service, &now))
		return drop(id, VERDICT_DROP_FLOW_BUDGET);
	return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_VERIFIED);
}

/* Whether a SYN goes to the server as it is; what its client sends then is of
 * a known flow. */
INLINE bool edge_bypasses(struct packet *p, const struct moment *now)
{
	if (LIKELY(!(source_checks & SOURCES_PLACED)) || !source_bypasses(p, now->monotonic_ns))
		return false;
	filter_add(&p->flow);
	return true;
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
		return edge_unserved(ctx, p, &now, id, stance, passes);
	if (edge_bypasses(p, &now))
		return pass(ctx, p, id, VERDICT_PASS_BYPASS);
	if (UNLIKELY(stance &
		     (STANCE_STOPS | STANCE_CLOSED))) /* no answer: the client asks again */
		return drop(id,
			    stance & STANCE_STOPS ? VERDICT_DROP_SILENT : VERDICT_DROP_CLOSED_PORT);
	if (answers_per_window && UNLIKELY(answer_exceeds(p, now.monotonic_ns)) &&
	    !source_allowed(&p->flow))
		return drop(id, VERDICT_DROP_ANSWER_LIMIT);
	return answer(ctx, p, service, id, &now);
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
		return edge_unserved(ctx, p, &now, id, stance, passes);
	enum verdict fault = flags_fault(p->flags);
	if (fault != VERDICT_PASS_OTHER)
		return drop(id, fault);
	if (expires_behind(ctx, p, service))
		return drop(id, VERDICT_DROP_LOW_TTL);
	if (!flags_acknowledge(p->flags) && filter_has(&p->flow)) /* RST; SYN-ACK to the inside */
		return overspends(p, service, &now) ? drop(id, VERDICT_DROP_FLOW_BUDGET) :
						      pass(ctx, p, id, VERDICT_PASS_VERIFIED);
	if (cookie_admits(p, service, &now)) {
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
	if (UNLIKELY(source_checks)) {
		enum verdict fault = (enum verdict)source_fault(ctx, &p);

		if (fault != VERDICT_PASS_OTHER)
			return drop(SERVICE_NONE, fault);
	}
	if (parsed != PARSED_TCP)
		return edge_unparsed(ctx, &p, parsed);
	if (LIKELY(flags_acknowledge(p.flags)) && filter_has(&p.flow))
		return ttl_matters || packets_limited ?
			       edge_verified(ctx, &p) :
			       pass(ctx, &p, SERVICE_NONE, VERDICT_PASS_VERIFIED);
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
