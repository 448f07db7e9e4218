/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A SYN becomes the SYN-ACK; an ACK shows whether its sender got one. */
#ifndef SMARTCOOKIE_ANSWER_H
#define SMARTCOOKIE_ANSWER_H

#include "budget.h"
#include "epoch.h"
#include "forward.h"
#include "reply.h"
#include "service.h"
#include "sources.h"

INLINE u32 tsval_make(const struct moment *now, const struct tcp_options *o)
{
	return (tsval_clock(now) & ~(u32)TSVAL_MASK) | options_tsval(o);
}

INLINE void answer_options(struct xdp_md *ctx, const struct packet *p,
			   const struct service *service, struct tcp_options *o)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const u8 *at = packet_at_transport(data, p) + TCP_LENGTH;

	options_read(at, end, p->tcp_length - TCP_LENGTH, o);
	o->ecn = (p->flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR);
	options_limit(o, service->options);
}

/* Out of the port that the packet came in by. */
INLINE int answer_send(const struct xdp_md *ctx, u32 id, enum verdict verdict)
{
	count(id, verdict);
	return answer_by_redirect ? (int)bpf_redirect(ctx->ingress_ifindex, 0) : XDP_TX;
}

/* A segment without data or options. */
INLINE int answer_back(struct xdp_md *ctx, const struct packet *p, const struct back *b, u32 id,
		       enum verdict verdict)
{
	if (!answer_write_back(ctx, p, b))
		return drop(id, VERDICT_DROP_NO_ROOM);
	return answer_send(ctx, id, verdict);
}

/* Whether the network of a SYN's source has had its answers. */
INLINE bool answers_limited(const struct packet *p, const struct moment *now)
{
	return answers_per_window && UNLIKELY(answer_exceeds(p, now->monotonic_ns)) &&
	       !source_allowed(&p->flow);
}

/* What becomes of a SYN; an answer is made with the key in *slot. */
INLINE enum verdict answer_verdict(const struct xdp_md *ctx, const struct packet *p,
				   const struct service *service, const struct moment *now,
				   const struct key_slot **slot)
{
	*slot = key_of(service->domain, now->epoch);
	if (!*slot) /* the service says whether to fail open or closed */
		return service->keys_end == KEYS_END_PASS ? VERDICT_PASS_NO_KEY :
							    VERDICT_DROP_NO_KEY;
	if (source_is_bad(&p->flow) || sent_to_many(ctx))
		return VERDICT_DROP_BAD_SOURCE;
	return VERDICT_ANSWER_SYN;
}

/* The SYN-ACK with the cookie. */
INLINE int answer_make(struct xdp_md *ctx, const struct packet *p, const struct service *service,
		       u32 id, const struct moment *now, const struct key_slot *slot)
{
	struct tcp_options o;

	answer_options(ctx, p, service, &o);
	struct synack s = {
		.cookie = cookie_make(slot, &p->flow, p->seq, options_code(&o, p->flow.v6)),
		.tsval = o.timestamps ? tsval_make(now, &o) : 0,
		.mss = p->flow.v6 ? service->mss6 : service->mss4,
		.window = service->window,
		.scale = slot->window_scale,
	};
	if (!answer_write(ctx, p, &o, &s))
		return drop(id, VERDICT_DROP_NO_ROOM);
	return answer_send(ctx, id, VERDICT_ANSWER_SYN);
}

INLINE int answer(struct xdp_md *ctx, const struct packet *p, const struct service *service, u32 id,
		  const struct moment *now)
{
	const struct key_slot *slot;
	enum verdict verdict = answer_verdict(ctx, p, service, now, &slot);

	if (verdict == VERDICT_PASS_NO_KEY)
		return pass(ctx, p, id, verdict);
	if (verdict != VERDICT_ANSWER_SYN)
		return drop(id, verdict);
	if (answers_limited(p, now))
		return drop(id, VERDICT_DROP_ANSWER_LIMIT);
	return answer_make(ctx, p, service, id, now, slot);
}

/* The keys have run out and the service fails open: handshakes are the
 * server's own, so every packet that the filter does not know must pass. */
INLINE bool keys_end_passes(const struct service *service, const struct moment *now)
{
	if (service->strategy == STRATEGY_AUTH_FULL)
		return false; /* it needs no key */
	return service->keys_end == KEYS_END_PASS && !key_of(service->domain, now->epoch);
}

INLINE bool cookie_admits(const struct packet *p, const struct service *service,
			  const struct moment *now)
{
	u32 code;

	return flags_acknowledge(p->flags) &&
	       cookie_find(&p->flow, p->seq - 1, p->ack - 1, now, service->domain, false, &code);
}

/* Of a proxied service the window is closed at first. Where the client's ACK was lost
 * and he has something to send, his first packet asks for the window, with his ISN
 * for its number. A stranger's guess counts twice. */
INLINE bool window_question_admits(const struct packet *p, const struct service *service,
				   const struct moment *now)
{
	u32 code;

	return service->strategy == STRATEGY_PROXY && flags_acknowledge(p->flags) &&
	       cookie_find(&p->flow, p->seq, p->ack - 1, now, service->domain, false, &code);
}

/* Host shape: what the filter does not know, the kernel may: a connection
 * that is older than we are, idle for long, or opened from here. */
INLINE bool socket_exists(struct xdp_md *ctx, const struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	u32 size = flow_tuple(&p->flow, &tuple);
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, &tuple, size, NETNS_OF_DEVICE, 0);
	bool exists = sk && sk->state != BPF_TCP_LISTEN;

	if (sk)
		bpf_sk_release(sk);
	return exists;
}

/* Why a packet that is neither verified nor valid is lost. */
INLINE enum verdict unverified_verdict(const struct packet *p, const struct service *service,
				       const struct moment *now)
{
	if (p->flags & TCP_RST)
		return VERDICT_DROP_UNVERIFIED_RST;
	if (p->flags & TCP_SYN)
		return VERDICT_DROP_UNVERIFIED_SYNACK;
	if (service->strategy == STRATEGY_AUTH_FULL) /* it needs no key */
		return VERDICT_DROP_BAD_COOKIE;
	return key_of(service->domain, now->epoch) ? VERDICT_DROP_BAD_COOKIE : VERDICT_DROP_NO_KEY;
}

#endif
