/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The clock, the key of an epoch, and the check of a cookie against both. */
#ifndef SMARTCOOKIE_EPOCH_H
#define SMARTCOOKIE_EPOCH_H

#include "lib/challenge.h"
#include "lib/cookie.h"
#include "maps.h"

struct moment {
	u64 monotonic_ns;
	u64 clock_ns; /* what epochs are made of */
	u64 epoch;
	u64 version; /* of the services' tables */
	bool learning;
};

enum { TSVAL_SHIFT_NS = 20 }; /* TSval ticks every 2^20 ns */

INLINE u32 tsval_clock(const struct moment *now)
{
	return (u32)(now->clock_ns >> TSVAL_SHIFT_NS);
}

/* The epoch that a CPU has last seen, for a division takes as long as a hash. */
struct epoch_cache {
	u64 epoch;
	u64 from_ns; /* when it began */
	u64 length_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct epoch_cache);
} epoch_seen SEC(".maps");

INLINE u64 epoch_of(u64 clock_ns, u64 length_ns)
{
	u32 zero = 0;
	struct epoch_cache *seen = bpf_map_lookup_elem(&epoch_seen, &zero);

	if (!seen)
		return clock_ns / length_ns;
	if (UNLIKELY(clock_ns - seen->from_ns >= length_ns || seen->length_ns != length_ns)) {
		seen->epoch = clock_ns / length_ns;
		seen->from_ns = seen->epoch * length_ns;
		seen->length_ns = length_ns;
	}
	return seen->epoch;
}

INLINE struct moment moment_at(u64 monotonic_ns)
{
	u32 zero = 0;
	struct moment m = { .monotonic_ns = monotonic_ns };
	const struct agent_clock *c = bpf_map_lookup_elem(&clock, &zero);

	if (!c || !c->epoch_ns)
		return m; /* epoch 0 has no key: nothing is answered or accepted */
	m.clock_ns = m.monotonic_ns + c->offset_ns;
	m.epoch = epoch_of(m.clock_ns, c->epoch_ns);
	m.version = c->tables_version;
	m.learning = m.monotonic_ns < c->learn_until_ns;
	return m;
}

/* Coarse: 3 ns instead of 27, and at most one tick of the kernel old. */
INLINE struct moment moment_now(void)
{
	return moment_at(bpf_ktime_get_coarse_ns());
}

INLINE struct key_slot *key_slot_of(u32 domain, u64 epoch)
{
	u32 mask = key_slot_mask;
	u32 index = domain * (mask + 1) + ((u32)epoch & mask);

	return bpf_map_lookup_elem(&keys, &index);
}

/* NULL: there is no key for this epoch. */
INLINE const struct key_slot *key_of(u32 domain, u64 epoch)
{
	const struct key_slot *slot = key_slot_of(domain, epoch);

	if (!slot || slot->epoch != epoch || slot->hash == HASH_NONE)
		return NULL;
	return slot;
}

/*
 * The epochs to try, by parity (cookie.md, Acceptance):
 *
 *   cookie's parity   edge       server
 *   e                 e          e, e-2
 *   e-1, e+1          e-1, e+1   e-1, e+1
 */
struct candidates {
	u64 epoch[2];
	u32 count;
};

INLINE struct candidates candidates_of(u64 epoch, u32 cookie, bool server)
{
	if (((u32)epoch & 1) != cookie_parity(cookie))
		return (struct candidates){ .epoch = { epoch - 1, epoch + 1 }, .count = 2 };
	return (struct candidates){ .epoch = { epoch, epoch - 2 }, .count = server ? 2 : 1 };
}

/* The slot under which the cookie is valid, or NULL; sets *code. */
INLINE const struct key_slot *cookie_find(const struct flow *flow, u32 isn, u32 cookie,
					  const struct moment *now, u32 domain, bool server,
					  u32 *code)
{
	struct candidates try = candidates_of(now->epoch, cookie, server);

	for (u32 i = 0; i < 2; i++) {
		const struct key_slot *slot;

		if (i >= try.count)
			break;
		slot = key_of(domain, try.epoch[i]);
		if (slot && cookie_check(slot, flow, isn, cookie, code))
			return slot;
	}
	return NULL;
}

/* Whether an edge has sent this challenge to the flow's source lately. */
INLINE bool challenge_find(const struct flow *flow, u32 challenge, const struct moment *now,
			   u32 domain)
{
	struct candidates try = candidates_of(now->epoch, challenge, false);

	for (u32 i = 0; i < 2; i++) {
		const struct key_slot *slot;

		if (i >= try.count)
			break;
		slot = key_of(domain, try.epoch[i]);
		if (slot && challenge_check(slot, flow, challenge))
			return true;
	}
	return false;
}

#endif
