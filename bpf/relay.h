/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that the daemon carries to an agent: those with a valid cookie where
 * a service admits on confirmation, and probes. Neither is on the way of a
 * packet whose flow is known.
 */
#ifndef SMARTCOOKIE_RELAY_H
#define SMARTCOOKIE_RELAY_H

#include "agents.h"
#include "forward.h"
#include "lib/bucket.h"

enum {
	RELAY_RING_BYTES = 1 << 20, /* some 760 packets */
	SETUP_INTERVAL_NS =
		100 * 1000, /* 10,000 a second: the daemons keep up, and heartbeats come through */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, RELAY_RING_BYTES);
} relays SEC(".maps");

/* Until when a service's tokens are spent, coarse monotonic. */
struct relay_buckets {
	u64 setups;
	u64 probes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICES_MAX + 1);
	__type(key, u32);
	__type(value, struct relay_buckets);
} relays_spent SEC(".maps");

/* An agent that is silent cannot confirm, though its programs go on: then the
 * cookie is enough, as it is by default. */
INLINE bool admits_on_confirm(const struct service *service, u32 stance)
{
	return service->admission == ADMISSION_CONFIRM && !(stance & STANCE_SILENT);
}

/* Who loses the race for a token has none: at most as many as allowed. */
INLINE bool token_take(u64 *spent, u32 interval_ns, u64 now_ns)
{
	u64 before = *spent, after = bucket_next(before, interval_ns, now_ns);

	return after && __sync_val_compare_and_swap(spent, before, after) == before;
}

INLINE bool setup_due(u32 id, u64 now_ns)
{
	struct relay_buckets *b = bpf_map_lookup_elem(&relays_spent, &id);

	return b && token_take(&b->setups, SETUP_INTERVAL_NS, now_ns);
}

INLINE bool probe_due(u32 id, u32 interval_ns, u64 now_ns)
{
	struct relay_buckets *b = bpf_map_lookup_elem(&relays_spent, &id);

	return b && token_take(&b->probes, interval_ns, now_ns);
}

/* The bytes of the packet from its IP header on, without the frame's padding;
 * 0: the frame is shorter than it says. */
INLINE u32 packet_length(const struct xdp_md *ctx, const struct packet *p)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct ip4_header *ip4 = packet_at_network(data, p);
	const struct ip6_header *ip6 = packet_at_network(data, p);

	if (p->flow.v6)
		return (const void *)(ip6 + 1) > end ? 0 :
						       BE16(ip6->payload_length_be) + IP6_LENGTH;
	return (const void *)(ip4 + 1) > end ? 0 : BE16(ip4->total_length_be);
}

/* The packet to the daemon; fail closed: the client sends it again. */
NOINLINE int relay(struct xdp_md *ctx, const struct packet *p, u32 id, enum control_kind kind)
{
	if (!p)
		return XDP_DROP; /* cannot be: "R2 invalid mem access 'mem_or_null'" */
	u32 length = packet_length(ctx, p);
	if (length > CONTROL_PACKET_BYTES)
		return drop(id, VERDICT_DROP_TOO_LONG);
	struct relayed *r = bpf_ringbuf_reserve(&relays, sizeof(*r), 0);
	if (!r)
		return drop(id, VERDICT_DROP_BUSY);
	r->length = (u16)length;
	r->kind = (u8)kind;
	if (!length || bpf_xdp_load_bytes(ctx, p->network, r->packet, length)) {
		bpf_ringbuf_discard(r, 0);
		return drop(id, VERDICT_DROP_UNPARSABLE);
	}
	bpf_ringbuf_submit(r, 0);
	return drop(id, kind == CONTROL_SETUP ? VERDICT_SENT_SETUP : VERDICT_SENT_PROBE);
}

#endif
