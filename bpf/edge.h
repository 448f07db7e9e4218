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
#include "budget.h"
#include "filter.h"
#include "flows.h"
#include "forward.h"
#include "modes.h"
#include "relay.h"
#include "sources.h"

/* Some service has a min_ttl; set when loading. */
const volatile bool ttl_matters = false;
/* Or a budget, or is proxied. One switch: each is a load for every packet. */
const volatile bool verified_is_judged = false;

/* Beside what programs return. */
enum { EDGE_GOES_ON = -1, EDGE_CHALLENGES = -2 };

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

/* Where nothing acts, what is monitored counts the packet. */
INLINE int drop_other_port(struct xdp_md *ctx, const struct packet *p, u32 stance)
{
	u32 monitored = SERVICE_NONE;

	if (stance & STANCE_OTHER)
		return drop(SERVICE_NONE, VERDICT_DROP_OTHER_PORT);
	const struct port_set *set = prefix_find(p->flow.destination, p->flow.v6);
	if (set)
		acting_at(set, &monitored);
	return pass(ctx, p, monitored,
		    monitored == SERVICE_NONE ? VERDICT_PASS_OTHER : VERDICT_DROP_OTHER_PORT);
}

/*
 * No service: the packet goes on, unless it is TCP to another port of a
 * protected address and such is lost. What the inside has opened is in the
 * filter; while that is learnt, fail open.
 */
INLINE int edge_unserved(struct xdp_md *ctx, const struct packet *p, const struct moment *now,
			 u32 id, u32 stance, enum verdict passes)
{
	if (LIKELY(!other_tcp_drops || id != SERVICE_NONE || !stance))
		return pass(ctx, p, id, passes);
	if (flags_open(p->flags))
		return drop_other_port(ctx, p, stance);
	if (filter_has(&p->flow))
		return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_VERIFIED);
	if (now->learning)
		return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_LEARNING);
	return drop_other_port(ctx, p, stance);
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
INLINE bool overspends(const struct packet *p, const struct service *service,
		       const struct moment *now)
{
	return packets_limited && service->packet_interval_ns &&
	       !flow_spends(&p->flow, service->packet_interval_ns, now->monotonic_ns) &&
	       !source_allowed(&p->flow);
}

INLINE int pass_verified(struct xdp_md *ctx, const struct packet *p, u32 id)
{
	if (proxies && service_is_proxied(id))
		return pass_up(SERVICE_NONE, VERDICT_PASS_VERIFIED);
	return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_VERIFIED);
}

/* In the filter, and some service is proxied or limits such packets. */
GLOBAL int edge_verified(struct xdp_md *ctx, struct packet *p)
{
	if (!p)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	struct moment now = moment_now();
	enum verdict passes;
	u32 id, stance;
	const struct service *service = edge_service(p, &now, &id, &stance, &passes);
	enum verdict fault = VERDICT_PASS_VERIFIED;

	if (!service)
		return pass_verified(ctx, p, id);
	enum conduct conduct = service_conduct(service, id, &now);
	if (expires_behind(ctx, p, service))
		fault = VERDICT_DROP_LOW_TTL;
	else if (overspends(p, service, &now))
		fault = VERDICT_DROP_FLOW_BUDGET;
	if (LIKELY(fault == VERDICT_PASS_VERIFIED || conduct > CONDUCT_MONITORS))
		return pass_verified(ctx, p, id);
	return conduct == CONDUCT_MONITORS ? pass(ctx, p, id, fault) : drop(id, fault);
}

/* Whether a SYN goes to the server as it is; what its client sends then is of
 * a known flow. */
INLINE bool edge_bypasses(struct packet *p, const struct moment *now)
{
	if (LIKELY(!(sources.checks & SOURCES_PLACED)) || !source_bypasses(p, now->monotonic_ns))
		return false;
	filter_add(&p->flow);
	return true;
}

/* A monitored service loses nothing, whoever sends it; neither does an edge that
 * has none but such. */
INLINE bool source_is_monitored(const struct packet *p, enum parsed parsed, u32 *monitored)
{
	if (parsed == PARSED_TCP) {
		struct moment now = moment_now();
		u32 id = service_find(p->flow.destination, p->flow.v6,
				      flow_destination_port(&p->flow), now.version) &
			 STANCE_SERVICE;
		const struct service *service = service_get(id);

		*monitored = id;
		if (id != SERVICE_NONE)
			return service && service->mode == MODE_MONITOR;
	}
	*monitored = SERVICE_NONE;
	return !acting_at(NULL, monitored) && *monitored != SERVICE_NONE;
}

/* There are lists: whether the packet is lost for its source. */
GLOBAL int edge_source(struct xdp_md *ctx, struct packet *p, enum parsed parsed)
{
	u32 monitored;

	if (!p || !p->addressed)
		return EDGE_GOES_ON; /* ARP and the like */
	enum verdict fault = source_fault(&p->flow, ctx->ingress_ifindex);
	if (fault == VERDICT_PASS_OTHER)
		return EDGE_GOES_ON;
	if (UNLIKELY(source_is_monitored(p, parsed, &monitored)))
		return pass(ctx, p, monitored, fault);
	return drop(SERVICE_NONE, fault);
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
	enum verdict verdict = strategy_whitelists(strategy_of(service)) ?
				       auth_verdict(ctx, p, service, &now, &slot) :
				       answer_verdict(ctx, p, service, &now, &slot);
	if ((verdict == VERDICT_ANSWER_SYN || verdict == VERDICT_ANSWER_CHALLENGE) &&
	    answers_limited(p, &now))
		return VERDICT_DROP_ANSWER_LIMIT;
	return verdict;
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
	if (UNLIKELY(service->mode != MODE_ALWAYS)) {
		enum conduct conduct = service_conduct(service, id, &now);

		tally_syn(id, &p->flow);
		if (conduct == CONDUCT_MONITORS)
			return pass(ctx, p, id,
				    (enum verdict)open_foretold(ctx, p, service, stance));
		if (conduct > CONDUCT_MONITORS) /* fail open: there is no flood */
			return pass(ctx, p, id, VERDICT_PASS_PASSIVE);
	}
	if (edge_bypasses(p, &now))
		return pass(ctx, p, id, VERDICT_PASS_BYPASS);
	if (UNLIKELY(stance &
		     (STANCE_STOPS | STANCE_CLOSED))) /* no answer: the client asks again */
		return drop(id,
			    stance & STANCE_STOPS ? VERDICT_DROP_SILENT : VERDICT_DROP_CLOSED_PORT);
	switch (strategy_of(service)) {
	case STRATEGY_AUTH_COOKIE:
	case STRATEGY_AUTH_FULL:
	case STRATEGY_AUTH_RST:
		return EDGE_CHALLENGES;
	default:
		return answer(ctx, p, service, id, &now);
	}
}

/* A SYN to a service whose sources are challenged. It is not called by edge_open:
 * "combined stack size of 4 calls is 544. Too large". */
GLOBAL int edge_challenge(struct xdp_md *ctx, struct packet *p)
{
	if (!p)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	struct moment now = moment_now();
	enum verdict passes;
	u32 id, stance;
	const struct service *service = edge_service(p, &now, &id, &stance, &passes);

	return service ? auth_open(ctx, p, service, id) : pass(ctx, p, id, passes);
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

/* An idle connection that the filter has forgotten: who translates it has not. Only
 * an ACK is taken for one of its packets: a forged RST would be, too often. */
NOINLINE bool flow_is_proxied(const struct packet *p, const struct service *service)
{
	struct endpoints e;

	if (service->strategy != STRATEGY_PROXY || !flags_acknowledge(p->flags))
		return false;
	endpoints_of(&p->flow, false, &e);
	const struct translation *t = bpf_map_lookup_elem(&flows, &e);
	return t && translation_lives(t);
}

INLINE struct decision decide_doubtful(struct xdp_md *ctx, const struct packet *p,
				       const struct service *service, u32 id, u32 stance,
				       const struct moment *now)
{
	enum verdict fault = flags_fault(p->flags);

	if (fault != VERDICT_PASS_OTHER)
		return decided(ACTION_DROP, fault);
	if (expires_behind(ctx, p, service))
		return decided(ACTION_DROP, VERDICT_DROP_LOW_TTL);
	if (!flags_acknowledge(p->flags) && filter_has(&p->flow)) /* RST; SYN-ACK to the inside */
		return overspends(p, service, now) ?
			       decided(ACTION_DROP, VERDICT_DROP_FLOW_BUDGET) :
			       decided(ACTION_PASS, VERDICT_PASS_VERIFIED);
	if (!strategy_whitelists(strategy_of(service)) &&
	    (cookie_admits(p, service, now) ||
	     (proxies && window_question_admits(p, service, now))))
		return decide_admitted(p, service, id, stance, now);
	if (now->learning || stance & STANCE_LEARNS ||
	    service_conduct(service, id, now) ==
		    CONDUCT_LEARNS) /* fail open: it may be a connection older than we are */
		return decided(ACTION_PASS, VERDICT_PASS_LEARNING);
	if (proxies && flow_is_proxied(p, service)) {
		filter_add(&p->flow);
		return decided(ACTION_PASS, VERDICT_PASS_PROXIED);
	}
	if (keys_end_passes(service, now))
		return decided(ACTION_PASS, VERDICT_PASS_NO_KEY);
	if (forward_mode == FORWARD_LOCAL && socket_exists(ctx, p)) {
		/* else nothing tells: the server's answer finds the flow in the filter */
		if (UNLIKELY(service->mode != MODE_ALWAYS) && flags_acknowledge(p->flags))
			tally_finished(id);
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
		return edge_unserved(ctx, p, &now, id, stance, passes);
	if (UNLIKELY(service_conduct(service, id, &now) ==
		     CONDUCT_PASSES)) /* fail open: there is no flood */
		return pass(ctx, p, id, VERDICT_PASS_PASSIVE);
	if (strategy_whitelists(strategy_of(service)) &&
	    service_conduct(service, id, &now) != CONDUCT_MONITORS &&
	    !expires_behind(ctx, p, service)) {
		int action = auth_doubtful(ctx, p, service, id);

		if (action != AUTH_UNKNOWN)
			return action;
	}
	struct decision d = decide_doubtful(ctx, p, service, id, stance, &now);
	/* Asked again, and not kept: else the verifier walks the cookies once for each. */
	enum conduct conduct = service_conduct(service, id, &now);
	if (d.action == ACTION_PASS || conduct == CONDUCT_MONITORS)
		return pass(ctx, p, id, d.verdict);
	if (d.action == ACTION_RELAY && /* what drains is the server's, whoever asks about it */
	    !(conduct == CONDUCT_DRAINS && d.verdict == VERDICT_SENT_PROBE))
		return relay(ctx, p, id,
			     d.verdict == VERDICT_SENT_SETUP ? CONTROL_SETUP : CONTROL_PROBE);
	if (UNLIKELY(conduct == CONDUCT_DRAINS))
		return pass(ctx, p, id, VERDICT_PASS_PASSIVE);
	return drop(id, d.verdict);
}

/* What may quote a packet of a proxied connection. */
INLINE bool is_icmp_error(const struct xdp_md *ctx, const struct packet *p)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ip4_header *ip4 = packet_at_network(data, p);
	const struct ip6_header *ip6 = packet_at_network(data, p);
	const u8 *type = (const void *)(ip6 + 1);

	if (!p->addressed || (const void *)(ip4 + 1) > end)
		return false;
	if (!p->flow.v6) {
		type = (const u8 *)ip4 + (ip4->version_length & 0x0f) * 4U;
		return ip4->protocol == PROTOCOL_ICMP && (const void *)(type + 1) <= end &&
		       (*type == ICMP_UNREACHABLE || *type == ICMP_TIME_EXCEEDED ||
			*type == ICMP_PARAMETER);
	}
	return (const void *)(type + 1) <= end && ip6->next == PROTOCOL_ICMP6 &&
	       *type <= ICMP6_PARAMETER;
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
	if (proxies && parsed == PARSED_OTHER && is_icmp_error(ctx, p) &&
	    prefix_find(p->flow.destination, p->flow.v6))
		return pass_up(SERVICE_NONE, VERDICT_PASS_OTHER); /* an error may quote */
	if (parsed != PARSED_VLAN_DEPTH && !set)
		return pass(ctx, p, SERVICE_NONE, VERDICT_PASS_OTHER);
	if (acting_at(set, &monitored))
		return drop(SERVICE_NONE, fault);
	return pass(ctx, p, monitored, monitored == SERVICE_NONE ? VERDICT_PASS_OTHER : fault);
}

/* ---- what is proxied ----------------------------------------------------- */

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
	if (UNLIKELY(sources.checks)) {
		int action = edge_source(ctx, &p, parsed);

		if (action != EDGE_GOES_ON)
			return action;
	}
	if (parsed != PARSED_TCP)
		return edge_unparsed(ctx, &p, parsed);
	if (LIKELY(flags_acknowledge(p.flags)) && filter_has(&p.flow))
		return verified_is_judged ? edge_verified(ctx, &p) :
					    pass(ctx, &p, SERVICE_NONE, VERDICT_PASS_VERIFIED);
	if (!flags_open(p.flags))
		return edge_doubtful(ctx, &p);
	int action = edge_open(ctx, &p);
	return strategies && action == EDGE_CHALLENGES ? edge_challenge(ctx, &p) : action;
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
	u32 stance =
		service_find(p->flow.source, p->flow.v6, (u16)(p->flow.ports >> 16), now.version);
	u32 id = stance & STANCE_SERVICE;
	if (!stance) /* answers to other ports of protected addresses must come in */
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
