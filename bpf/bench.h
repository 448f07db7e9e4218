/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The edge's programs for BPF_PROG_TEST_RUN, which hands a program its own
 * output again: each run first rebuilds the frame from a pattern. The floor
 * does that and swaps the MAC addresses.
 */
#ifndef SMARTCOOKIE_BENCH_H
#define SMARTCOOKIE_BENCH_H

#include "edge.h"

enum { PATTERN_WORDS = 12 }; /* of 8 bytes: the longest frame has 94 */

volatile u64 pattern[PATTERN_WORDS];

/*
 * In words that lie as the headers' fields do: a load that crosses two stores
 * waits until both have left the store buffer, 4 ns that no received frame
 * costs.
 */
INLINE void copy32(void *data, u32 at, u32 words)
{
	for (u32 i = 0; i < words; i++)
		*(u32 *)(data + at + 4 * i) =
			*(const volatile u32 *)((const volatile u8 *)pattern + at + 4 * i);
}

/* `length` is a constant in every caller. */
INLINE bool rebuild(struct xdp_md *ctx, u32 length)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	s32 grow = (s32)length - (s32)(end - data);

	if (grow) {
		if (bpf_xdp_adjust_tail(ctx, grow))
			return false;
		data = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
	}
	if (data + length > end)
		return false;
	copy32(data, 0, 3);
	*(u16 *)(data + 12) = *(const volatile u16 *)((const volatile u8 *)pattern + 12);
	copy32(data, ETHERNET_LENGTH, (length - ETHERNET_LENGTH) / 4);
	return true;
}

INLINE int floor(struct xdp_md *ctx, u32 length)
{
	if (!rebuild(ctx, length))
		return XDP_ABORTED;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + ETHERNET_LENGTH > end)
		return XDP_ABORTED;
	swap_addresses(data);
	return XDP_TX;
}

INLINE int outside(struct xdp_md *ctx, u32 length)
{
	return rebuild(ctx, length) ? from_outside(ctx) : XDP_ABORTED;
}

/* As many sources as the long list has prefixes, in no order that a cache likes. */
enum { SOURCES_MANY = 500000, SOURCES_STEP = 196613 };

volatile u32 source_turn;

/* Turns below SOURCES_MANY are on the long list, which floods.go makes alike; as many
 * from there on lie among them and are not. No two are the same: the factor is odd. */
INLINE void vary_source(void *data, u32 first)
{
	u32 turn = source_turn + SOURCES_STEP, n;

	turn = turn < SOURCES_MANY ? turn : turn - SOURCES_MANY;
	source_turn = turn;
	turn += first;
	n = (turn * 2654435761U | 1U << 31) & ~(1U << 30); /* can be answered */
	if (*(u8 *)(data + ETHERNET_LENGTH) >> 4 == 4) {
		*(u32 *)(data + ETHERNET_LENGTH + 12) = BE32(n);
		return;
	}
	*(u32 *)(data + ETHERNET_LENGTH + 8) = BE32(0x2aU << 24 | n >> 8);
	*(u32 *)(data + ETHERNET_LENGTH + 12) =
		BE32(n << 24 | (turn & 0xff) << 16 | (turn & 0xff00) | turn >> 16);
}

INLINE int outside_many(struct xdp_md *ctx, u32 length, u32 first)
{
	if (!rebuild(ctx, length))
		return XDP_ABORTED;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	if (data + length > end)
		return XDP_ABORTED;
	vary_source(data, first);
	return from_outside(ctx);
}

INLINE int inside(struct xdp_md *ctx, u32 length)
{
	return rebuild(ctx, length) ? from_inside(ctx) : XDP_ABORTED;
}

/*
 * The walk of a SYN, cut off behind a step each. What a step has found goes to
 * nobody, but the compiler must not know.
 */
#define KEEP(x) asm volatile("" : : "r"(x))

enum step { STEP_PARSE, STEP_FIND, STEP_OPTIONS, STEP_HASH };

INLINE int walk_until(struct xdp_md *ctx, u32 length, enum step last)
{
	if (!rebuild(ctx, length))
		return XDP_ABORTED;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct key_slot *slot;
	enum verdict passes;
	struct tcp_options o;
	struct packet parsed, *p = &parsed;
	u32 id, stance;

	if (!packet_plain(data, end, p) || sources.checks || flags_acknowledge(p->flags) ||
	    !flags_open(p->flags))
		return XDP_ABORTED;
	KEEP(p->flow.source[0]);
	KEEP(p->flow.destination[0]);
	KEEP(p->flow.ports);
	KEEP(p->seq);
	KEEP(p->ack);
	if (last == STEP_PARSE)
		return XDP_TX;
	struct moment now = moment_now();
	const struct service *service = edge_service(p, &now, &id, &stance, &passes);
	if (!service || service->mode != MODE_ALWAYS ||
	    answer_verdict(ctx, p, service, &now, &slot) != VERDICT_ANSWER_SYN)
		return XDP_ABORTED;
	if (last == STEP_FIND)
		return XDP_TX;
	answer_options(ctx, p, service, &o);
	KEEP(options_code(&o, p->flow.v6));
	if (last == STEP_OPTIONS)
		return XDP_TX;
	KEEP(cookie_make(slot, &p->flow, p->seq, options_code(&o, p->flow.v6)));
	return XDP_TX;
}

SEC("xdp") int parse_54(struct xdp_md *ctx)
{
	return walk_until(ctx, 54, STEP_PARSE);
}
SEC("xdp") int find_54(struct xdp_md *ctx)
{
	return walk_until(ctx, 54, STEP_FIND);
}
SEC("xdp") int options_54(struct xdp_md *ctx)
{
	return walk_until(ctx, 54, STEP_OPTIONS);
}
SEC("xdp") int hash_54(struct xdp_md *ctx)
{
	return walk_until(ctx, 54, STEP_HASH);
}
SEC("xdp") int floor_54(struct xdp_md *ctx)
{
	return floor(ctx, 54);
}
SEC("xdp") int floor_74(struct xdp_md *ctx)
{
	return floor(ctx, 74);
}
SEC("xdp") int floor_94(struct xdp_md *ctx)
{
	return floor(ctx, 94);
}
SEC("xdp") int outside_54(struct xdp_md *ctx)
{
	return outside(ctx, 54);
}
SEC("xdp") int outside_74(struct xdp_md *ctx)
{
	return outside(ctx, 74);
}
SEC("xdp") int outside_94(struct xdp_md *ctx)
{
	return outside(ctx, 94);
}
SEC("xdp") int outside_many_54(struct xdp_md *ctx)
{
	return outside_many(ctx, 54, 0);
}
SEC("xdp") int outside_unlisted_54(struct xdp_md *ctx)
{
	return outside_many(ctx, 54, SOURCES_MANY);
}
SEC("xdp") int outside_many_74(struct xdp_md *ctx)
{
	return outside_many(ctx, 74, 0);
}
SEC("xdp") int outside_unlisted_74(struct xdp_md *ctx)
{
	return outside_many(ctx, 74, SOURCES_MANY);
}
SEC("xdp") int inside_54(struct xdp_md *ctx)
{
	return inside(ctx, 54);
}
SEC("xdp") int inside_74(struct xdp_md *ctx)
{
	return inside(ctx, 74);
}

/* ---- on a device ----------------------------------------------------------- */

/* The least that an answer can cost. */
SEC("xdp")
int swap(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + ETHERNET_LENGTH > end)
		return XDP_DROP;
	swap_addresses(data);
	return XDP_TX;
}

/* The least that an answer of IPv4 can cost which reaches the flood's source by
 * the way that the edge takes on a veth (answer_by_redirect). */
SEC("xdp")
int reflect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ip4_header *ip = data + ETHERNET_LENGTH;

	if ((void *)(ip + 1) > end)
		return XDP_DROP;
	swap_addresses(data);
	u32 source_be = ip->source_be;
	ip->source_be = ip->destination_be;
	ip->destination_be = source_be;
	return (int)bpf_redirect(ctx->ingress_ifindex, 0);
}

/* The edge with the cookie of this file's includer. */
SEC("xdp")
int edge(struct xdp_md *ctx)
{
	return from_outside(ctx);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#endif
