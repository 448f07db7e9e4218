/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sources that have met their service's challenge. Only such a source gets an
 * entry, so no spoofed flood can fill the map; the one that was not used for
 * longest makes room for a new one, and is challenged again when it comes.
 *
 * That a SYN was let through is remembered in the verified filter, by its flow
 * seen from the other end, which no packet from the outside to a service has.
 * So the packet that ends its handshake is known by its flow, whatever has
 * become of the entry since, and nobody can use it up.
 */
#ifndef SMARTCOOKIE_WHITELIST_H
#define SMARTCOOKIE_WHITELIST_H

#include "epoch.h"
#include "filter.h"
#include "lib/bucket.h"
#include "sources.h"

enum {
	WHITELIST_BURST_NS = 1000 * 1000 * 1000, /* SYNs of a second may come at once */
	WHITELIST_WORD_BITS = 32,
	WHITELIST_TRIES = 3,
};

/* The size is set when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct whitelist_key);
	__type(value, struct whitelisted);
} whitelist SEC(".maps");

/* The bits of a word that belong to a prefix, `from`: the bits before it. */
INLINE u32 prefix_mask(u32 length, u32 from)
{
	if (length <= from)
		return 0;
	u32 bits = length - from;
	return bits >= WHITELIST_WORD_BITS ? ~0U : ~0U << (WHITELIST_WORD_BITS - bits);
}

INLINE struct whitelist_key whitelist_key(const struct flow *f, const struct service *service,
					  u32 id)
{
	struct whitelist_key key = { .service = (u16)id, .v6 = f->v6 };

	key.source[0] = f->source[0] &
			prefix_mask(f->v6 ? service->auth_prefix6 : service->auth_prefix4, 0);
	for (u32 i = 1; i < 4 && f->v6; i++)
		key.source[i] =
			f->source[i] & prefix_mask(service->auth_prefix6, i * WHITELIST_WORD_BITS);
	return key;
}

/* A source that comes back keeps what it has spent. False: there is no room. */
INLINE bool whitelist_add(const struct flow *f, const struct service *service, u32 id, u64 now_ns)
{
	struct whitelist_key key = whitelist_key(f, service, id);
	struct whitelisted *known = bpf_map_lookup_elem(&whitelist, &key);
	u64 until_ns = now_ns + service->auth_seconds * 1000000000ULL;

	if (known) {
		known->unfinished = 0;
		known->until_ns = until_ns;
		return true;
	}
	struct whitelisted entry = { .until_ns = until_ns };
	return !bpf_map_update_elem(&whitelist, &key, &entry, BPF_ANY);
}

/* Many clients may share an entry, and come in on several CPUs: who loses the race
 * for a token three times has none. */
INLINE bool whitelist_spends(struct whitelisted *known, u32 interval_ns, u64 now_ns)
{
	for (int i = 0; i < WHITELIST_TRIES; i++) {
		u64 before = known->spent_ns;
		u64 after = bucket_after(before, interval_ns, WHITELIST_BURST_NS, now_ns);

		if (!after)
			return false;
		if (__sync_val_compare_and_swap(&known->spent_ns, before, after) == before)
			return true;
	}
	return false;
}

/* What becomes of a SYN, a verdict; VERDICT_ANSWER_CHALLENGE: its source is not
 * listed. Global, so that what follows it is not verified for each of its ways. */
GLOBAL int whitelist_opens(const struct flow *f, const struct service *service, u32 id, u64 now_ns)
{
	if (!f || !service)
		return VERDICT_DROP_SYN_RATE; /* cannot be: the verifier's doubt */
	struct whitelist_key key = whitelist_key(f, service, id);
	struct whitelisted *known = bpf_map_lookup_elem(&whitelist, &key);

	if (!known || now_ns >= known->until_ns)
		return VERDICT_ANSWER_CHALLENGE;
	if (known->unfinished >= service->auth_unfinished) { /* somebody floods in its name */
		known->until_ns = now_ns;
		return VERDICT_ANSWER_CHALLENGE;
	}
	/* Fail closed: the client sends its SYN again. */
	if (!whitelist_spends(known, service->auth_interval_ns, now_ns) && !source_allowed(f))
		return VERDICT_DROP_SYN_RATE;
	__sync_fetch_and_add(&known->unfinished, 1);
	struct flow begun = flow_reverse(f);
	filter_add(&begun);
	return VERDICT_PASS_WHITELISTED;
}

/* Whether the flow's SYN was let through, so that a packet may end its
 * handshake. A RST ends one, too, but finishes none. */
INLINE bool whitelist_finishes(const struct packet *p, const struct service *service, u32 id)
{
	struct flow begun = flow_reverse(&p->flow);

	if (!filter_has(&begun))
		return false;
	struct whitelist_key key = whitelist_key(&p->flow, service, id);
	struct whitelisted *known = bpf_map_lookup_elem(&whitelist, &key);
	if (known && !(p->flags & TCP_RST))
		known->unfinished = 0;
	return true;
}

#endif
