/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Connections that the kernel makes by a handshake of its own. A proven
 * client's first packet becomes a SYN, the kernel's SYN-ACK goes no further, and
 * from then on numbers are translated: the client knows the edge's, the kernel
 * its own.
 *
 *   in    acknowledgement, SACK blocks, TSecr    plus the delta
 *   out   sequence number, TSval                 less the delta
 *         window                                 in the scale that the edge announced
 */
#ifndef SMARTCOOKIE_TRANSLATE_H
#define SMARTCOOKIE_TRANSLATE_H

#include "flows.h"
#include "setup.h"

#include "lib/header.h"
#include "lib/synack.h"

/* Handshakes under way; the size is set when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct endpoints);
	__type(value, struct translation);
} half_open SEC(".maps");

/* Whether there has been a translated connection at all: without one, packets
 * of native connections are spared two look-ups. */
volatile bool translating = false;

enum translate_limits {
	REQUEUES_MAX = 8,    /* of packets that overtake the SYN-ACK, in each round */
	NOT_TRANSLATED = -2, /* beside TC's verdicts */
	SYN_AGAIN = -3,
};

/* The longest that a kernel keeps TIME_WAIT or a handshake, and a margin. */
#define LINGER_NS (64ULL * 1000 * 1000 * 1000)
/* Half the time after which a kernel sends a SYN-ACK again (RFC 6298 2.1). */
#define STALE_NS (500ULL * 1000 * 1000)
/* What follows the end of a socket that leaves no TIME_WAIT: its RST. */
#define LINGER_RESET_NS (1000ULL * 1000 * 1000)

/* Named so that Go is generated from them. */
struct generated_server {
	enum translation_state *state;
	enum translation_options *options;
} *generated_server __attribute__((unused));

/* ---- the tables --------------------------------------------------------- */

INLINE struct translation *translation_find(const struct endpoints *e)
{
	struct translation *t = bpf_map_lookup_elem(&flows, e);

	if (t && translation_lives(t))
		return t;
	t = bpf_map_lookup_elem(&half_open, e);
	return t && translation_lives(t) ? t : NULL;
}

/* Its ends have another connection now. */
INLINE void translation_void(struct translation *t)
{
	t->expires_ns = 1;
}

/* A native connection has taken their place. */
NOINLINE int translation_forget(const struct packet *p)
{
	struct endpoints e;

	endpoints_of(&p->flow, false, &e);
	bpf_map_delete_elem(&half_open, &e);
	return (int)bpf_map_delete_elem(&flows, &e);
}

INLINE bool deltas_are_known(const struct translation *t)
{
	return t->state >= TRANSLATION_SYN_RECEIVED;
}

/* ---- the SYN ------------------------------------------------------------ */

/* A SYN that bears ECN in its IP header is taken for a broken network's. */
INLINE bool syn_network(struct __sk_buff *skb, const struct packet *p, u32 tcp_length)
{
	u16 was, is;

	if (bpf_skb_load_bytes(skb, p->network, &was, sizeof(was)))
		return false;
	is = was & (p->flow.v6 ? BE16(0xffcf) : BE16(0xfffc));
	if (was != is &&
	    bpf_skb_store_bytes(skb, p->network, &is, sizeof(is), BPF_F_RECOMPUTE_CSUM))
		return false;
	if (was != is && !p->flow.v6 &&
	    bpf_l3_csum_replace(skb, p->network + 10, was, is, sizeof(is)))
		return false;
	return network_resize(skb, p, tcp_length);
}

/*
 * The packet becomes the SYN that the client has sent: its sequence number, and
 * of its options what the cookie kept. Its checksum is computed anew: nothing but
 * what the cookie proves has gone into it, and the copy keeps the old one.
 */
GLOBAL bool syn_write(struct __sk_buff *skb, const struct packet *p, const struct tcp_options *o)
{
	if (!p || !o)
		return false;
	u32 length = synack_tcp_length(o);
	u32 flags = TCP_SYN | (o->ecn ? TCP_ECE | TCP_CWR : 0);
	u32 tcp[SYNACK_TCP_TIMESTAMPS / 4] = {
		BE32(p->flow.ports),
		BE32(p->seq - 1),
		0,
		BE32(length / 4 << 28 | flags << 16 | 0xffff),
		0,
		BE32(TCP_OPTION_MSS << 24 | 4 << 16 | o->mss),
	};
	u32 scale = o->scale == SCALE_NONE ? BE32(0x01010101) : BE32(0x01030300U | o->scale);
	u64 sum = pseudo_sum(&p->flow, length);

	if (o->timestamps) {
		tcp[6] = o->sack ? BE32(0x0402080a) : BE32(0x0101080a);
		tcp[7] = o->tsval_be;
		tcp[9] = scale;
	} else if (length == SYNACK_TCP_OPTIONS) {
		tcp[6] = o->sack ? BE32(0x01010402) : BE32(0x01010101);
		tcp[7] = scale;
	}
	for (u32 i = 0; i < SYNACK_TCP_TIMESTAMPS / 4; i++)
		sum += tcp[i];
	tcp[4] = checksum_fold(sum);
	if (skb->len < p->transport + sizeof(tcp) &&
	    bpf_skb_change_tail(skb, p->transport + sizeof(tcp), 0))
		return false;
	return syn_network(skb, p, length) &&
	       !bpf_skb_store_bytes(skb, p->transport, tcp, sizeof(tcp), BPF_F_RECOMPUTE_CSUM);
}

INLINE struct translation translation_begun(const struct packet *p, const struct tcp_options *o,
					    const struct proof *proof)
{
	return (struct translation){
		.expires_ns = bpf_ktime_get_coarse_ns() + LINGER_NS,
		.client_isn = p->seq - 1,
		.cookie = p->ack - 1,
		.stamp_delta = BE32(o->tsecr_be),
		.state = TRANSLATION_SYN_SENT,
		.options = translation_options(o->scale, proof->window_scale, SCALE_NONE,
					       o->timestamps),
	};
}

/*
 * A copy of the first packet goes to the back of the queue, the packet itself
 * becomes the SYN. The kernel answers it at once, through the egress hook, so
 * that the copy finds the deltas known and completes the handshake with its data.
 */
GLOBAL int translate_begin(struct __sk_buff *skb, const struct packet *p, u32 id,
			   const struct proof *proof)
{
	struct endpoints e;
	struct tcp_options o;

	if (!p || !proof)
		return TC_DROP;
	setup_options(skb, p, proof, &o);
	endpoints_of(&p->flow, false, &e);
	struct translation t = translation_begun(p, &o, proof);
	translating = true;
	bpf_map_delete_elem(&flows, &e); /* an older connection's */
	if (bpf_map_update_elem(&half_open, &e, &t, BPF_ANY))
		return refuse(id, VERDICT_DROP_FLOWS_FULL);
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS) || !syn_write(skb, p, &o)) {
		bpf_map_delete_elem(&half_open, &e); /* the client's next copy may try */
		return refuse(id, VERDICT_DROP_EARLY);
	}
	return next(id, VERDICT_SETUP_TRANSLATED);
}

/* ---- the SYN-ACK -------------------------------------------------------- */

INLINE void synack_learn(struct __sk_buff *skb, const struct packet *p, struct translation *t)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcp_options o;

	options_read(packet_at_transport(data, p) + TCP_LENGTH, end, p->tcp_length - TCP_LENGTH,
		     &o);
	t->delta = p->seq - t->cookie;
	t->stamp_delta = BE32(o.tsval_be) - t->stamp_delta;
	t->options = translation_options(client_scale(t), announced_scale(t), o.scale,
					 stamps_are_shifted(t) && o.timestamps);
	__sync_fetch_and_add(&t->delta, 0); /* full barrier: whole, then known */
	t->state = TRANSLATION_SYN_RECEIVED;
}

/* The client has the edge's SYN-ACK; the kernel's, also when it comes again,
 * only tells the deltas. */
GLOBAL int translate_synack(struct __sk_buff *skb, const struct packet *p, u32 id,
			    struct translation *t)
{
	if (!p || !t)
		return TC_DROP;
	if (p->ack - 1 != t->client_isn) { /* another handshake, which is the kernel's alone */
		translation_void(t);
		return next(id, VERDICT_PASS_INSIDE);
	}
	if (!deltas_are_known(t))
		synack_learn(skb, p, t);
	else if (t->state == TRANSLATION_SYN_RECEIVED && p->seq - t->cookie != t->delta)
		translation_void(t); /* of an earlier attempt: the client's next copy begins anew */
	return refuse(id, VERDICT_DROP_OWN_SYNACK);
}

/* ---- every packet ------------------------------------------------------- */

/* Of a field in the kernel's scale, what it is in the one that was announced:
 * rounded down, but not to a closed window, and clamped. */
INLINE u32 window_out(u32 window, const struct translation *t)
{
	if (client_scale(t) == SCALE_NONE)
		return window;
	u32 kernel = kernel_scale(t) == SCALE_NONE ? 0 : kernel_scale(t);
	u32 bytes = window << kernel, scaled = bytes >> announced_scale(t);

	if (!scaled && window)
		return 1;
	return scaled > 0xffff ? 0xffff : scaled;
}

/* A kernel that does not scale windows takes the client's as they stand. */
INLINE u32 window_in(u32 window, const struct translation *t)
{
	if (kernel_scale(t) != SCALE_NONE || client_scale(t) == SCALE_NONE)
		return window;
	u32 bytes = window << client_scale(t);
	return bytes > 0xffff ? 0xffff : bytes;
}

INLINE bool header_load(struct __sk_buff *skb, const struct packet *p, struct header *h)
{
	u32 length = p->tcp_length;

	*h = (struct header){};
	if (length < TCP_LENGTH || length > TCP_LENGTH_MAX)
		return false;
	h->length = length;
	return !bpf_skb_load_bytes(skb, p->transport, h->byte, length);
}

/* The checksum is changed by the difference: a corrupt packet stays corrupt. */
INLINE bool header_store(struct __sk_buff *skb, const struct packet *p, const struct header *h)
{
	u32 length = h->length;

	if (length < TCP_LENGTH || length > TCP_LENGTH_MAX)
		return false;
	return !bpf_skb_store_bytes(skb, p->transport, h->byte, length, 0) &&
	       !bpf_l4_csum_replace(skb, p->transport + 16, 0, header_difference(h), 0);
}

GLOBAL bool translate_in(struct __sk_buff *skb, const struct packet *p, const struct translation *t)
{
	struct header h;

	if (!p || !t || !header_load(skb, p, &h))
		return false;
	if (!(p->flags & TCP_ACK))
		return true;
	header_put(&h, 2, BE32(p->ack + t->delta));
	u32 word = BE32(h.word[3]);
	header_put(&h, 3, BE32((word & 0xffff0000) | window_in(word & 0xffff, t)));
	h.shift.sack = t->delta;
	h.shift.tsecr = stamps_are_shifted(t) ? t->stamp_delta : 0;
	header_options(&h);
	return header_store(skb, p, &h);
}

GLOBAL bool translate_out(struct __sk_buff *skb, const struct packet *p,
			  const struct translation *t)
{
	struct header h;

	if (!p || !t || !header_load(skb, p, &h))
		return false;
	header_put(&h, 1, BE32(p->seq - t->delta));
	u32 word = BE32(h.word[3]);
	header_put(&h, 3, BE32((word & 0xffff0000) | window_out(word & 0xffff, t)));
	h.shift.tsval = stamps_are_shifted(t) ? 0 - t->stamp_delta : 0;
	header_options(&h);
	return header_store(skb, p, &h);
}

/* Nobody listens any more: the RST that answers the SYN becomes one to the
 * client, who takes it at exactly the number that he waits for. */
INLINE bool reset_out(struct __sk_buff *skb, const struct packet *p, const struct translation *t)
{
	struct header h;

	if (!header_load(skb, p, &h))
		return false;
	header_put(&h, 1, BE32(t->cookie + 1));
	return header_store(skb, p, &h);
}

/* ---- before the SYN-ACK ------------------------------------------------- */

/* The kernel forgets a handshake when it cannot send the SYN-ACK again, as it
 * seems to it. (No socket at all may also mean that it uses cookies.) */
INLINE bool handshake_is_stale(const struct translation *t)
{
	u64 begun_ns = t->expires_ns - LINGER_NS;

	return t->state == TRANSLATION_SYN_RECEIVED &&
	       bpf_ktime_get_coarse_ns() - begun_ns > STALE_NS;
}

/* Another CPU may be busy with the SYN, or its answer wait for a neighbour. */
INLINE int translate_wait(struct __sk_buff *skb, u32 id, struct translation *t)
{
	if (t->state == TRANSLATION_UNANSWERED || t->requeues >= REQUEUES_MAX) {
		t->state = TRANSLATION_UNANSWERED; /* the client's next copy is a SYN again */
		return refuse(id, VERDICT_DROP_EARLY);
	}
	t->requeues++;
	return come_again(skb, id);
}

/* ---- from half open to established -------------------------------------- */

/* The client has proven itself twice. False: there is no room. */
NOINLINE bool translation_promote(const struct endpoints *e, const struct translation *t)
{
	struct translation now = *t;

	now.state = TRANSLATION_ESTABLISHED;
	now.expires_ns = bpf_ktime_get_coarse_ns() + LINGER_NS; /* until the kernel agrees */
	if (bpf_map_update_elem(&flows, e, &now, BPF_ANY))
		return false;
	bpf_map_delete_elem(&half_open, e);
	return true;
}

/* A packet of the connection; the first one since the SYN-ACK takes its place. */
INLINE int translate_accepted(struct __sk_buff *skb, const struct packet *p, u32 id,
			      struct translation *t, const struct endpoints *e,
			      enum verdict verdict)
{
	if (t->state == TRANSLATION_SYN_RECEIVED && flags_acknowledge(p->flags) &&
	    !translation_promote(e, t))
		return refuse(id, VERDICT_DROP_FLOWS_FULL);
	return translate_in(skb, p, t) ? next(id, verdict) :
					 refuse(id, VERDICT_DROP_UNTRANSLATABLE);
}

/* The kernel's word on a socket: it lives, or is over. */
INLINE void translation_follow(const struct endpoints *e, u32 client_isn, int old_state,
			       int new_state)
{
	struct translation *t = bpf_map_lookup_elem(&flows, e);

	if (!t || !within_fin(client_isn, t->client_isn))
		return;
	if (new_state != BPF_TCP_CLOSE) {
		t->expires_ns = 0;
		return;
	}
	/* After these a TIME_WAIT follows. */
	bool waits = old_state == BPF_TCP_FIN_WAIT2 || old_state == BPF_TCP_CLOSING;
	t->expires_ns = bpf_ktime_get_ns() + (waits ? LINGER_NS : LINGER_RESET_NS);
	t->state = TRANSLATION_CLOSED;
}

#endif
