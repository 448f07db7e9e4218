/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is said of a packet's source: the lists deny and allow, and by which
 * port it comes in. Lists change while the programs run, by a daemon or a
 * command, and expire by themselves.
 */
#ifndef SMARTCOOKIE_SOURCES_H
#define SMARTCOOKIE_SOURCES_H

#include "filter.h"
#include "relay.h"

/* enum source_check. In a section of its own, which is pinned: a command sets
 * it where no daemon runs, and a packet pays one load and one branch for it. */
volatile u32 source_checks SEC(".data.sources") = 0;

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LISTED_MAX);
	__type(key, struct prefix4);
	__type(value, struct listed);
} deny4 SEC(".maps"), allow4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LISTED_MAX);
	__type(key, struct prefix6);
	__type(value, struct listed);
} deny6 SEC(".maps"), allow6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PLACES_MAX);
	__type(key, struct prefix4);
	__type(value, struct place);
} places4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PLACES_MAX);
	__type(key, struct prefix6);
	__type(value, struct place);
} places6 SEC(".maps");

/* Until when the SYNs of a bypass are spent, coarse monotonic. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BYPASSES_MAX);
	__type(key, u32);
	__type(value, u64);
} bypasses_spent SEC(".maps");

INLINE struct prefix4 source_key4(const struct flow *f, u32 length)
{
	return (struct prefix4){ .length = length, .address_be = BE32(f->source[0]) };
}

INLINE struct prefix6 source_key6(const struct flow *f, u32 length)
{
	struct prefix6 key = { .length = length };

	for (int i = 0; i < 4; i++)
		key.address_be[i] = BE32(f->source[i]);
	return key;
}

/*
 * Whether a prefix around the source holds. One that has expired and is not
 * removed yet hides those around it: look behind it. Should that many be
 * nested, the packet counts as not listed until the daemon has removed some.
 */
INLINE bool source_listed(void *list4, void *list6, const struct flow *f)
{
	struct prefix6 key = source_key6(f, f->v6 ? 128 : 32); /* begins as a prefix4 does */

	for (int i = 0; i < LISTED_NESTED; i++) {
		const struct listed *l =
			f->v6 ? bpf_map_lookup_elem(list6, &key) : bpf_map_lookup_elem(list4, &key);

		if (!l)
			return false;
		if (!l->until_ns || l->until_ns > bpf_ktime_get_coarse_ns())
			return true;
		if (!l->length)
			return false;
		key.length = l->length - 1U;
	}
	return false;
}

/* Exempt from deny and from every limit, never from the cookie. */
GLOBAL int source_allowed(const struct flow *f)
{
	return f && source_listed(&allow4, &allow6, f);
}

INLINE const struct place *source_place(const struct flow *f)
{
	if (!f->v6) {
		struct prefix4 key = source_key4(f, 32);

		return bpf_map_lookup_elem(&places4, &key);
	}
	struct prefix6 key = source_key6(f, 128);
	return bpf_map_lookup_elem(&places6, &key);
}

/* What a source alone is lost for; VERDICT_PASS_OTHER: nothing. */
INLINE enum verdict source_fault(const struct flow *f, u32 port)
{
	if (source_checks & SOURCES_PLACED) {
		const struct place *place = source_place(f);

		if (place && place->port != port)
			return VERDICT_DROP_SPOOFED_INSIDE;
	}
	if (source_checks & SOURCES_DENIED && source_listed(&deny4, &deny6, f) &&
	    !source_allowed(f))
		return VERDICT_DROP_DENIED;
	return VERDICT_PASS_OTHER;
}

/* A SYN that goes to the server as it is. Beyond its rate, or by another CPU's
 * luck, it is answered like any other. */
GLOBAL int source_bypasses(const struct packet *p, u64 now_ns)
{
	if (!p)
		return false; /* cannot be: the verifier's doubt */
	const struct place *place = source_place(&p->flow);

	if (!place || !place->interval_ns)
		return false;
	u32 bypass = place->bypass;
	u64 *spent = bpf_map_lookup_elem(&bypasses_spent, &bypass);

	return spent && token_take(spent, place->interval_ns, now_ns);
}

#endif
