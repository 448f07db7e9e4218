/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The verified filter: a keyed, blocked Bloom filter in two generations.
 *
 * A flow's block is one line of 64 bytes, four words for each generation, and
 * it has one bit in every half of a word. A sweep goes over the lines once per
 * generation: at each line it empties the older generation, which becomes the
 * current one. So a flow stays for one to two generations after it was last
 * added, nothing happens all at once, and no daemon is needed.
 */
#ifndef SMARTCOOKIE_FILTER_H
#define SMARTCOOKIE_FILTER_H

#include "lib/flow.h"
#include "maps.h"

/* The size is set when loading. Mapped, hence aligned to cache lines. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct filter_line);
} filter_lines SEC(".maps");

const volatile u32 filter_size = 1; /* lines */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct filter_state);
} filter SEC(".maps");

/* Where a flow's bits are. */
struct filter_spot {
	struct filter_line *line;
	u64 hash;
	u32 current; /* the line's current generation */
};

/*
 * Multilinear hashing with half the multiplications (Lemire, Kaser: "Strongly
 * universal string hashing is fast"): whatever two flows somebody chooses,
 * they share a sum for one key in 2^32 at most. The key is random per agent
 * and the hash is never seen, so that is all that is asked of it; a SipHash
 * would cost 12 ns more on every packet.
 */
INLINE u64 filter_sum(const u64 *key, const struct flow *f)
{
	u64 sum = key[0] + (key[1] + f->source[0]) * (key[2] + f->destination[0]) +
		  (key[3] + f->ports) * key[4];

	if (f->v6) {
		for (int i = 1; i < 4; i++)
			sum += (key[3 + 2 * i] + f->source[i]) *
			       (key[4 + 2 * i] + f->destination[i]);
	}
	return sum;
}

/*
 * The sum is linear in a word: the ports of one client or the addresses of one
 * network would get lines and bits at equal steps, and for some keys the filter
 * would let in up to half of all strangers among them. This bijection breaks
 * the steps; two flows share a hash as rarely as they share a sum.
 */
INLINE u64 filter_mix(u64 x)
{
	x ^= x >> 32;
	x *= 0x9e3779b97f4a7c15ULL; /* odd, 2^64 / the golden ratio */
	x ^= x >> 29;
	x *= 0xd6e8feb86659fd93ULL; /* odd, as many ones as zeros */
	return x ^ x >> 32;
}

/* The generation that is current in a line: the sweep has passed it once more
 * than the lines that it has still before it. */
INLINE u32 filter_generation(u64 position, u32 line)
{
	return ((u32)(position >> 32) + (line < (u32)position)) & 1;
}

/* Eight indices of five bits in the low 40 bits of the hash: one bit in each
 * half of each word. The line's index is made of the high ones. */
INLINE u64 filter_word(u64 hash, u32 i)
{
	u64 pair = hash >> (10 * i);

	return 1ULL << (pair & 31) | (1ULL << 32) << (pair >> 5 & 31);
}

INLINE bool filter_spot(const struct flow *f, struct filter_spot *spot)
{
	u32 zero = 0;
	const struct filter_state *state = bpf_map_lookup_elem(&filter, &zero);

	if (!state)
		return false;
	spot->hash = filter_mix(filter_sum(state->key, f));
	u32 index = (u32)((spot->hash >> 32) * filter_size >> 32);
	spot->line = bpf_map_lookup_elem(&filter_lines, &index);
	spot->current = filter_generation(state->position, index);
	return spot->line;
}

/* word >> n mod 32, what the machine does anyway: in C the mask would be an
 * instruction of its own, eight times per packet. */
INLINE u32 filter_bit(u32 word, u32 n)
{
	asm("%0 >>= %1" : "+w"(word) : "w"(n));
	return word;
}

/* One index for each half of a word, see filter_word; no branch until the end. */
INLINE bool filter_in(const struct filter_spot *spot, u32 generation)
{
	const u32 *half = (const u32 *)spot->line->word[generation & 1];
	u64 hash = spot->hash;
	u32 all = 1;

	asm("" : "+r"(hash)); /* else the other generation's shifts are saved, in memory */
	for (u32 i = 0; i < FILTER_BITS; i++) {
		all &= filter_bit(half[i], (u32)hash);
		hash >>= 5;
	}
	return all;
}

INLINE bool filter_has(const struct flow *f)
{
	struct filter_spot spot;

	if (!filter_spot(f, &spot))
		return false;
	return filter_in(&spot, spot.current) || filter_in(&spot, spot.current ^ 1);
}

/* True: the flow is in the current generation, there is nothing to refresh. */
INLINE bool filter_fresh(const struct flow *f)
{
	struct filter_spot spot;

	return filter_spot(f, &spot) && filter_in(&spot, spot.current);
}

/* Several CPUs add at once: hence atomic. What another CPU sweeps meanwhile
 * was cleared before it became current, so nothing added is lost. */
INLINE void filter_add(const struct flow *f)
{
	struct filter_spot spot;

	if (!filter_spot(f, &spot))
		return;
	u64 *word = spot.line->word[spot.current & 1];
	for (u32 i = 0; i < FILTER_WORDS; i++)
		__sync_fetch_and_or(&word[i], filter_word(spot.hash, i));
}

#endif
