/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Budgets in tables of a fixed size, found by a keyed hash: of packets for a
 * verified flow, and of answers for a network. Nobody sweeps them, time does.
 */
#ifndef SMARTCOOKIE_BUDGET_H
#define SMARTCOOKIE_BUDGET_H

#include "lib/bucket.h"
#include "filter.h"
#include "lib/packet.h"

enum {
	FLOW_BURST_NS = 1000 * 1000 * 1000, /* a flow may spend a second's packets at once */
	ANSWER_WINDOW_SHIFT = 30,           /* a window is 2^30 ns: 1.07 s */
	ANSWER_WINDOW_MASK = (1 << ANSWER_WINDOW_SHIFT) - 1,
	ANSWER_SHARE_SHIFT = 14, /* of a window's rest, so that 16 bits are left */
};

/* Set when loading. */
const volatile bool packets_limited = false; /* some service has packets_per_flow */
const volatile u32 flow_budget_mask = 0;     /* buckets of a row, less one */
const volatile u32 answers_per_window = 0;   /* 0: no limit */
const volatile u32 answer_budget_mask = 0;   /* networks, less one */
const volatile u32 answer_network_mask4 = 0; /* of addresses */
const volatile u64 answer_network_mask6 = 0; /* of their first half */

/* Two rows, one after another; sizes are set when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} flow_budgets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct answer_budget);
} answer_budgets SEC(".maps");

/* Random per load, and not the filter's: who counts what is dropped must learn
 * nothing of that one. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64[FILTER_KEYS]);
} budget_key SEC(".maps");

INLINE u64 budget_hash(const struct flow *f)
{
	u32 zero = 0;
	const u64 *key = bpf_map_lookup_elem(&budget_key, &zero);

	return key ? filter_mix(filter_sum(key, f)) : 0;
}

/*
 * Whether the flow has a packet left. A bucket is shared by flows whose hashes
 * meet; a flow has one in each of two rows, and is over its budget only if both
 * say so. Two CPUs that take at the same time may take one packet for two: a
 * flow comes in by one queue.
 */
INLINE bool flow_spends(const struct flow *f, u32 interval_ns, u64 now_ns)
{
	u64 hash = budget_hash(f);
	u32 first = (u32)hash & flow_budget_mask;
	u32 second = ((u32)(hash >> 32) & flow_budget_mask) + flow_budget_mask + 1;
	u64 *a = bpf_map_lookup_elem(&flow_budgets, &first);
	u64 *b = bpf_map_lookup_elem(&flow_budgets, &second);

	if (!a || !b)
		return true; /* fail open: cannot happen, both are within the map */
	u64 ahead_ns =
		FLOW_BURST_NS + 1 - interval_ns; /* so that this packet is within the burst, too */
	u64 after_a = bucket_after(*a, interval_ns, ahead_ns, now_ns);
	u64 after_b = bucket_after(*b, interval_ns, ahead_ns, now_ns);
	if (after_a)
		*a = after_a;
	if (after_b)
		*b = after_b;
	return after_a || after_b;
}

/* The network of a source, as a flow of its own. */
INLINE struct flow answer_network(const struct flow *f)
{
	struct flow n = { .v6 = f->v6, .source = { f->source[0] & answer_network_mask4 } };

	if (f->v6) {
		n.source[0] = f->source[0] & (u32)(answer_network_mask6 >> 32);
		n.source[1] = f->source[1] & (u32)answer_network_mask6;
	}
	return n;
}

/* The tries within the last window, this one included: the part of the window
 * before that is not over yet counts as if it had been even. */
INLINE u64 answer_tries(struct answer_budget *b, u64 now_ns)
{
	u32 window = (u32)(now_ns >> ANSWER_WINDOW_SHIFT), seen = b->window;
	u64 rest = (ANSWER_WINDOW_MASK - (now_ns & ANSWER_WINDOW_MASK)) >> ANSWER_SHARE_SHIFT;

	if (UNLIKELY(seen != window) &&
	    __sync_val_compare_and_swap(&b->window, seen, window) == seen) {
		b->before = window - seen == 1 ? b->tries : 0;
		b->tries = 0;
	}
	u64 tries = (u64)__sync_fetch_and_add(&b->tries, 1) + 1;
	return tries + (b->before * rest >> 16);
}

/*
 * Whether a SYN shall be left without an answer. Above the limit chance decides,
 * so that as many are answered as the limit says, and a client that repeats its
 * SYN has its chance each time, whatever the flood's rhythm.
 */
GLOBAL int answer_exceeds(const struct packet *p, u64 now_ns)
{
	if (!p)
		return false; /* cannot be: the verifier's doubt */
	struct flow network = answer_network(&p->flow);
	u32 index = (u32)budget_hash(&network) & answer_budget_mask;
	struct answer_budget *b = bpf_map_lookup_elem(&answer_budgets, &index);

	if (!b)
		return false; /* fail open: cannot happen, it is within the map */
	u64 tries = answer_tries(b, now_ns);
	if (LIKELY(tries <= answers_per_window))
		return false;
	return (tries * bpf_get_prandom_u32()) >> 32 >= answers_per_window;
}

#endif
