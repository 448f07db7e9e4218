/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * For benchmarks: the filter that the SmartCookie paper describes (6.3, 8.1),
 * made from its text: three arrays of 2^20 bits, a flow has one bit in each.
 * The hash functions are those of our filter: keyed, which the text asks of
 * none.
 */
#ifndef SMARTCOOKIE_BENCH_PAPER_H
#define SMARTCOOKIE_BENCH_PAPER_H

#include "filter.h"

enum paper_layout {
	PAPER_ARRAYS = 3,
	PAPER_ARRAY_BITS = 1 << 20,
	PAPER_ARRAY_WORDS = PAPER_ARRAY_BITS / 64,
};

/* The arrays, one behind the other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PAPER_ARRAYS *PAPER_ARRAY_WORDS);
	__type(key, u32);
	__type(value, u64);
} paper_arrays SEC(".maps");

const volatile u64 paper_key[FILTER_KEYS];

INLINE bool paper_has(const struct flow *f)
{
	const u64 *key = (const u64 *)paper_key;

	asm("" : "+r"(key)); /* else it is taken for what it is here: zeros */
	u64 sum = filter_sum(key, f);

	for (u32 i = 0; i < PAPER_ARRAYS; i++) {
		u64 hash = filter_mix(sum + ((u64)i << 56));
		u32 bit = (u32)((hash >> 32) * PAPER_ARRAY_BITS >> 32);
		u32 at = i * PAPER_ARRAY_WORDS + bit / 64;
		const u64 *word = bpf_map_lookup_elem(&paper_arrays, &at);
		if (!word || !(*word >> (bit % 64) & 1))
			return false;
	}
	return true;
}

#endif
