/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What must go on when no daemon runs: the sweep of the filter, the detectors
 * and, in the host shape, the keys of the coming epochs. One kernel timer does
 * it all.
 */
#ifndef SMARTCOOKIE_TICK_H
#define SMARTCOOKIE_TICK_H

#include "epoch.h"
#include "filter.h"
#include "modes.h"

enum {
	TICK_NS = 10 * 1000 * 1000,
	COARSE_NS = 10 * 1000 * 1000, /* a tick of the kernel, where it is longest: HZ=100 */
	SWEEP_MAX = 1 << 15,          /* lines per tick */
	EPOCHS_PREPARED = 3,          /* the host shape: this one and two more */
	CLOCK_MONOTONIC = 1,
};

struct ticking {
	struct bpf_timer timer;
	u64 from_ns; /* when the sweep began, and the lines that it has passed since */
	u64 passed;
	u32 looked; /* services, by the detectors */
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct ticking);
} ticker SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct master_key);
} master SEC(".maps");

const volatile u64 sweep_line_ns = 1; /* generation / lines */

struct sweep {
	struct filter_state *state;
	u64 due; /* lines */
};

/* Empties the older generation of the next line, then makes it the current. */
static long sweep_step(u32 i, struct sweep *s)
{
	u32 round = (u32)(s->state->position >> 32), index = (u32)s->state->position;
	struct filter_line *line = bpf_map_lookup_elem(&filter_lines, &index);

	if (!line || i >= s->due)
		return 1;
	u64 *word = line->word[(round + 1) & 1];
	for (u32 w = 0; w < FILTER_WORDS; w++)
		word[w] = 0;
	u64 step = index + 1 < filter_size ? 1 : (1ULL << 32) - index; /* or the next round */
	__sync_fetch_and_add(&s->state->position, step); /* a full barrier before it */
	return 0;
}

INLINE void sweep(struct ticking *t, u64 now_ns)
{
	u32 zero = 0;
	struct sweep s = { .state = bpf_map_lookup_elem(&filter, &zero) };

	if (!s.state)
		return;
	s.due = (now_ns - t->from_ns) / sweep_line_ns - t->passed;
	if (s.due > SWEEP_MAX)
		s.due = SWEEP_MAX;
	bpf_loop(SWEEP_MAX, sweep_step, &s, 0);
	t->passed += s.due;
}

/* K_e of the host shape: two SipHash-2-4 of the epoch under the master key. */
INLINE u64 host_key_half(const u64 master[2], u64 epoch, u64 half)
{
	struct siphash s = siphash_start(master);

	siphash_word(&s, epoch);
	siphash_word(&s, half);
	return siphash_end(&s);
}

INLINE void host_key_prepare(const struct master_key *master, u64 epoch)
{
	struct key_slot *slot = key_slot_of(0, epoch);

	if (!slot || (slot->epoch == epoch && slot->hash != HASH_NONE))
		return;
	slot->hash = HASH_NONE;
	slot->key[0] = host_key_half(master->key, epoch, 0);
	slot->key[1] = host_key_half(master->key, epoch, 1);
	slot->window_scale = master->window_scale;
	slot->epoch = epoch;
	__sync_fetch_and_add(&slot->epoch, 0); /* full barrier: whole, then valid */
	slot->hash = HASH_SIPHASH;
}

INLINE void host_keys(u64 now_ns)
{
	u32 zero = 0;
	const struct master_key *m = bpf_map_lookup_elem(&master, &zero);

	if (!m || !m->armed)
		return;
	u64 epoch = moment_at(now_ns).epoch;
	for (u32 i = 0; i < EPOCHS_PREPARED; i++)
		host_key_prepare(m, epoch + i);
}

static int tick(void *map, u32 *key, struct ticking *t)
{
	u64 now_ns = bpf_ktime_get_ns();

	(void)map;
	(void)key;
	sweep(t, now_ns);
	host_keys(now_ns);
	detect(&t->looked, now_ns);
	bpf_timer_start(&t->timer, TICK_NS, 0);
	return 0;
}

/* Run once by the loader. -EBUSY: the timer of an earlier daemon still runs
 * an older program's tick and is given ours. */
SEC("syscall")
int tick_start(void *ctx)
{
	u32 zero = 0;
	struct ticking *t = bpf_map_lookup_elem(&ticker, &zero);

	(void)ctx;
	if (!t)
		return -1;
	t->from_ns = bpf_ktime_get_ns();
	t->passed = 0;
	bpf_timer_init(&t->timer, &ticker, CLOCK_MONOTONIC);
	if (bpf_timer_set_callback(&t->timer, tick))
		return -2;
	host_keys(t->from_ns - COARSE_NS); /* packets are judged by a clock that is behind */
	return (int)bpf_timer_start(&t->timer, 0, 0);
}

#endif
