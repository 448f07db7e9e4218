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
#include "flows.h"
#include "forward.h"
#include "modes.h"
#include "relay.h"

/* Below two tags a host's kernel makes no connection from a cookie, and the
 * translator of what is proxied finds none. */
INLINE bool tags_prevent_setup(const struct packet *p, const struct service *service)
{
	return p->network > ETHERNET_LENGTH + VLAN_LENGTH &&
	       (forward_mode == FORWARD_LOCAL || (proxies && service->strategy == STRATEGY_PROXY));
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
	if (*id == SERVICE_NONE || !service || service->mode == MODE_OFF ||
	    tags_prevent_setup(p, service))
		return NULL;
	if (UNLIKELY(*stance & STANCE_PASSES)) { /* fail open */
		*passes = VERDICT_PASS_UNHEARD;
		return NULL;
	}
	return service;
}

/* What would become of a SYN. A monitored service's packets come here and never
 * to what answers, challenges or drops: nothing but a count can come of it. */
NOINLINE u32 open_foretold(const struct xdp_md *ctx, const struct packet *p,
			   const struct service *service, u32 stance)
{
	struct moment now = moment_now();
	const struct key_slot *slot;

	if (!ctx || !p || !service)
		return VERDICT_PASS_OTHER; /* cannot be: the verifier's doubt */
	if (stance & STANCE_STOPS)
		return VERDICT_DROP_SILENT;
	if (stance & STANCE_CLOSED)
		return VERDICT_DROP_CLOSED_PORT;
	if (strategy_whitelists(strategy_of(service)))
		return auth_verdict(ctx, p, service, &now, &slot);
	return answer_verdict(ctx, p, service, &now, &slot);
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
	if (UNLIKELY(service->mode != MODE_ALWAYS)) {
		enum conduct conduct = service_conduct(service, id, &now);

		tally_syn(id, &p->flow);
		if (conduct == CONDUCT_MONITORS)
			return pass(ctx, p, id,
				    (enum verdict)open_foretold(ctx, p, service, stance));
		if (conduct > CONDUCT_MONITORS) /* fail open: there is no flood */
			return pass(ctx, p, id, VERDICT_PASS_PASSIVE);
	}
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

/* What is decided of a packet, before anything is done to it. */
enum action { ACTION_PASS, ACTION_DROP, ACTION_RELAY };

struct decision {
	enum verdict verdict;
	enum action action;
};

INLINE struct decision decided(enum action action, enum verdict verdict)
{
	return (struct decision){ .verdict = verdict, .action = action };
}

/* Of a valid cookie. */
INLINE struct decision decide_admitted(const struct packet *p, const struct service *service,
				       u32 id, u32 stance, const struct moment *now)
{
	if (UNLIKELY(service->mode != MODE_ALWAYS) && !filter_has(&p->flow))
		tally_finished(id);
	if (UNLIKELY(admits_on_confirm(service, stance)))
		return setup_due(id, now->monotonic_ns) ?
			       decided(ACTION_RELAY, VERDICT_SENT_SETUP) :
			       decided(ACTION_DROP, VERDICT_DROP_BUSY);
	filter_add(&p->flow);
	return decided(ACTION_PASS, VERDICT_PASS_COOKIE);
}

/* An idle connection that the filter has forgotten: who translates it has not. */
NOINLINE bool flow_is_proxied(const struct packet *p, const struct service *service)
{
	struct endpoints e;

	if (service->strategy != STRATEGY_PROXY)
		return false;
	endpoints_of(&p->flow, false, &e);
	const struct translation *t = bpf_map_lookup_elem(&flows, &e);
	return t && translation_lives(t);
}

INLINE struct decision decide_doubtful(struct xdp_md *ctx, const struct packet *p,
				       const struct service *service, u32 id, u32 stance,
				       const struct moment *now, enum conduct conduct)
{
	enum verdict fault = flags_fault(p->flags);

	if (fault != VERDICT_PASS_OTHER)
		return decided(ACTION_DROP, fault);
	if (!flags_acknowledge(p->flags) && filter_has(&p->flow)) /* RST; SYN-ACK to the inside */
		return decided(ACTION_PASS, VERDICT_PASS_VERIFIED);
	if (!strategy_whitelists(strategy_of(service)) &&
	    (cookie_admits(p, service, now) ||
	     (proxies && window_question_admits(p, service, now))))
		return decide_admitted(p, service, id, stance, now);
	if (now->learning || stance & STANCE_LEARNS ||
	    conduct == CONDUCT_LEARNS) /* fail open: it may be a connection older than we are */
		return decided(ACTION_PASS, VERDICT_PASS_LEARNING);
	if (proxies && flow_is_proxied(p, service)) {
		filter_add(&p->flow);
		return decided(ACTION_PASS, VERDICT_PASS_PROXIED);
	}
	if (keys_end_passes(service, now))
		return decided(ACTION_PASS, VERDICT_PASS_NO_KEY);
	if (forward_mode == FORWARD_LOCAL && socket_exists(ctx, p)) {
		filter_add(&p->flow);
		return decided(ACTION_PASS, VERDICT_PASS_SOCKET);
	}
	if (UNLIKELY(service->probe_interval_ns) && flags_acknowledge(p->flags) &&
	    probe_due(id, service->probe_interval_ns, now->monotonic_ns))
		return decided(ACTION_RELAY, VERDICT_SENT_PROBE);
	return decided(ACTION_DROP, unverified_verdict(p, service, now));
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
	enum conduct conduct = service_conduct(service, id, &now);
	if (UNLIKELY(conduct == CONDUCT_PASSES)) /* fail open: there is no flood */
		return pass(ctx, p, id, VERDICT_PASS_PASSIVE);
	if (strategy_whitelists(strategy_of(service)) && conduct != CONDUCT_MONITORS) {
		int action = auth_doubtful(ctx, p, service, id);

		if (action != AUTH_UNKNOWN)
			return action;
	}
	struct decision d = decide_doubtful(ctx, p, service, id, stance, &now, conduct);
	if (d.action == ACTION_PASS || conduct == CONDUCT_MONITORS)
		return pass(ctx, p, id, d.verdict);
	if (d.action == ACTION_RELAY)
		return relay(ctx, p, id,
			     d.verdict == VERDICT_SENT_SETUP ? CONTROL_SETUP : CONTROL_PROBE);
	if (UNLIKELY(conduct == CONDUCT_DRAINS))
		return pass(ctx, p, id, VERDICT_PASS_PASSIVE);
	return drop(id, d.verdict);
}

INLINE bool is_icmp(const struct xdp_md *ctx, const struct packet *p)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ip4_header *ip4 = packet_at_network(data, p);
	const struct ip6_header *ip6 = packet_at_network(data, p);

	if (!p->addressed || (const void *)(ip4 + 1) > end)
		return false;
	if (!p->flow.v6)
		return ip4->protocol == PROTOCOL_ICMP;
	return (const void *)(ip6 + 1) <= end && ip6->next == PROTOCOL_ICMP6;
}

/* Not a whole TCP segment: lost to a protected prefix, untouched elsewhere.
 * Which service it is for cannot be told: it is lost if one there is defended. */
GLOBAL int edge_unparsed(struct xdp_md *ctx, struct packet *p, enum parsed parsed)
{
	if (!p)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	const struct port_set *set = NULL;
	enum verdict fault =
		parsed == PARSED_VLAN_DEPTH ? VERDICT_DROP_VLAN_DEPTH : parsed_fault(parsed);
	u32 monitored = SERVICE_NONE;

	if (parsed != PARSED_VLAN_DEPTH && parsed != PARSED_OTHER)
		set = prefix_find(p->flow.destination, p->flow.v6);
	if (proxies && parsed == PARSED_OTHER && is_icmp(ctx, p) &&
	    prefix_find(p->flow.destination, p->flow.v6))
		return pass_up(SERVICE_NONE, VERDICT_PASS_OTHER); /* an error may quote */
	if (parsed != PARSED_VLAN_DEPTH && !set)
		return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_OTHER);
	if (defended_at(set, &monitored))
		return drop(SERVICE_NONE, fault);
	return pass(ctx, p, monitored, monitored == SERVICE_NONE ? VERDICT_PASS_OTHER : fault);
}

/* ---- what is proxied ----------------------------------------------------- */

NOINLINE int edge_verified(struct xdp_md *ctx, const struct packet *p)
{
	struct moment now = moment_now();
	u32 id = service_find(p->flow.destination, p->flow.v6, flow_destination_port(&p->flow),
			      now.version) &
		 STANCE_SERVICE;

	if (service_is_proxied(id))
		return pass_up(SERVICE_NONE, VERDICT_PASS_VERIFIED);
	return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_VERIFIED);
}

NOINLINE bool edge_proxies_source(const struct packet *p)
{
	struct moment now = moment_now();

	return service_is_proxied(
		service_find(p->flow.source, p->flow.v6, (u16)(p->flow.ports >> 16), now.version) &
		STANCE_SERVICE);
}

/* ---- the walk ------------------------------------------------------------ */

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
		return proxies ? edge_verified(ctx, &p) :
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
	u32 id = service_find(p->flow.source, p->flow.v6, (u16)(p->flow.ports >> 16), now.version) &
		 STANCE_SERVICE;
	if (id == SERVICE_NONE)
		return;
	if (flags_acknowledge(p->flags) && !filter_has(&flow))
		tally_finished(id);
	filter_add(&flow);
}

INLINE int from_inside(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p = {};

	if (LIKELY(packet_plain(data, end, &p)) || packet_frame(data, end, &p) == PARSED_TCP) {
		edge_learn(&p);
		if (proxies && edge_proxies_source(&p))
			return pass_up(SERVICE_NONE, VERDICT_PASS_INSIDE);
	}
	return pass_outward(ctx, &p);
}

#endif
