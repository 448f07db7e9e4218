/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The strategies auth-*: a client is challenged once, then its address connects
 * to the server directly, which needs no agent and has no part in it.
 *
 *   auth-cookie   SYN ──▶ ◀── SYN-ACK, cookie    ACK ──▶ ◀── RST    SYN ──▶ server
 *   auth-full     SYN ──▶ ◀── SYN-ACK, its ISN   ACK ──▶ ◀── RST    SYN ──▶ server
 *   auth-rst      SYN ──▶ ◀── ACK, challenge     RST ──▶            SYN ──▶ server
 */
#ifndef SMARTCOOKIE_AUTH_H
#define SMARTCOOKIE_AUTH_H

#include "answer.h"
#include "modes.h"
#include "whitelist.h"

/* Whether any service has one of these strategies; set when loading. */
const volatile bool strategies = false;

/* What a service's strategy is, without a look where all are the usual one. */
INLINE enum strategy strategy_of(const struct service *service)
{
	return strategies ? service->strategy : STRATEGY_SPLIT;
}

INLINE bool strategy_whitelists(enum strategy strategy)
{
	return strategy >= STRATEGY_AUTH_COOKIE && strategy <= STRATEGY_AUTH_RST;
}

/* No cookie, no key: the client's own number comes back. It says only that
 * somebody has answered, or knows how; what an older connection sends does not
 * look like that, and is not reset. */
INLINE int auth_answer_full(struct xdp_md *ctx, const struct packet *p,
			    const struct service *service, u32 id)
{
	struct tcp_options o = { .scale = SCALE_NONE };
	struct synack s = {
		.cookie = p->seq,
		.mss = p->flow.v6 ? service->mss6 : service->mss4,
		.window = service->window,
	};

	if (!answer_write(ctx, p, &o, &s))
		return drop(id, VERDICT_DROP_NO_ROOM);
	return answer_send(ctx, id, VERDICT_ANSWER_SYN);
}

/* An earlier connection of the flow may be in the filter. Then the ACK of a
 * handshake with us would go on to the server, but a RST does not. */
INLINE bool auth_uses_rst(const struct packet *p, const struct service *service,
			  const struct key_slot *slot)
{
	return service->strategy == STRATEGY_AUTH_RST || (slot && filter_has(&p->flow));
}

/* What becomes of a SYN whose source is not whitelisted; a challenge is made
 * with the key in *slot. */
INLINE enum verdict auth_verdict(const struct xdp_md *ctx, const struct packet *p,
				 const struct service *service, const struct moment *now,
				 const struct key_slot **slot)
{
	enum verdict verdict = answer_verdict(ctx, p, service, now, slot);

	if (!*slot && service->strategy == STRATEGY_AUTH_FULL) /* it needs none */
		verdict = source_is_bad(&p->flow) || sent_to_many(ctx) ? VERDICT_DROP_BAD_SOURCE :
									 VERDICT_ANSWER_SYN;
	if (verdict == VERDICT_ANSWER_SYN && auth_uses_rst(p, service, *slot))
		return VERDICT_ANSWER_CHALLENGE;
	return verdict;
}

/* A SYN whose source is not whitelisted. */
INLINE int auth_challenge(struct xdp_md *ctx, const struct packet *p, const struct service *service,
			  u32 id, const struct moment *now)
{
	const struct key_slot *slot;
	enum verdict verdict = auth_verdict(ctx, p, service, now, &slot);

	if (verdict == VERDICT_PASS_NO_KEY)
		return pass(ctx, p, id, verdict);
	if (verdict != VERDICT_ANSWER_SYN && verdict != VERDICT_ANSWER_CHALLENGE)
		return drop(id, verdict);
	if (answers_limited(p, now))
		return drop(id, VERDICT_DROP_ANSWER_LIMIT);
	if (verdict == VERDICT_ANSWER_CHALLENGE && slot) {
		struct back b = { .ack = challenge_make(slot, &p->flow, p->seq), .flags = TCP_ACK };

		return answer_back(ctx, p, &b, id, verdict);
	}
	if (service->strategy == STRATEGY_AUTH_FULL || !slot)
		return auth_answer_full(ctx, p, service, id);
	return answer_make(ctx, p, service, id, now, slot);
}

/* A SYN: of a whitelisted source to the server, of another one challenged. */
GLOBAL int auth_open(struct xdp_md *ctx, struct packet *p, const struct service *service, u32 id)
{
	if (!p || !service)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	struct moment now = moment_now();
	enum verdict verdict =
		(enum verdict)whitelist_opens(&p->flow, service, id, now.monotonic_ns);

	if (verdict == VERDICT_PASS_WHITELISTED)
		return pass(ctx, p, id, verdict);
	if (verdict == VERDICT_DROP_SYN_RATE)
		return drop(id, verdict);
	return auth_challenge(ctx, p, service, id, &now);
}

/* Whether a packet shows that its sender has received the challenge. */
INLINE bool auth_proves(const struct packet *p, const struct service *service,
			const struct moment *now)
{
	if ((p->flags & (TCP_SYN | TCP_RST | TCP_ACK)) == TCP_RST)
		return challenge_find(&p->flow, p->seq, now, service->domain);
	if (service->strategy == STRATEGY_AUTH_RST)
		return false;
	if (service->strategy == STRATEGY_AUTH_FULL)
		return flags_acknowledge(p->flags) && p->ack == p->seq;
	return cookie_admits(p, service, now);
}

enum { AUTH_UNKNOWN = -1 };

/*
 * Neither a SYN nor, if it has an ACK, of a verified flow. AUTH_UNKNOWN: it meets
 * no challenge and ends no handshake, and is judged as any other packet.
 */
GLOBAL int auth_doubtful(struct xdp_md *ctx, struct packet *p, const struct service *service,
			 u32 id)
{
	if (!p || !service)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	struct moment now = moment_now();

	if (flags_fault(p->flags) != VERDICT_PASS_OTHER)
		return AUTH_UNKNOWN;
	if (auth_proves(p, service, &now)) {
		if (source_is_bad(&p->flow) || sent_to_many(ctx))
			return drop(id, VERDICT_DROP_BAD_SOURCE);
		if (!whitelist_add(&p->flow, service, id, now.monotonic_ns))
			return drop(id, VERDICT_DROP_WHITELIST_FULL); /* the client tries again */
		tally_finished(id);
		if (p->flags & TCP_RST)
			return drop(id, VERDICT_DROP_CHALLENGED);
		struct back reset = back_reset(p->ack);
		return answer_back(ctx, p, &reset, id, VERDICT_ANSWER_RESET);
	}
	if (!flags_acknowledge(p->flags) && filter_has(&p->flow))
		return AUTH_UNKNOWN;
	if (!(p->flags & TCP_SYN) && whitelist_finishes(p, service, id)) {
		if (!(p->flags & TCP_RST)) {
			tally_finished(id);
			filter_add(&p->flow);
		}
		return pass(ctx, p, id, VERDICT_PASS_FINISHED);
	}
	return AUTH_UNKNOWN;
}

#endif
