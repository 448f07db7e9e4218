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

/* In a section of its own, which is pinned: a command sets it where no daemon
 * runs, and a packet pays one load and one branch for it. */
volatile struct source_state sources SEC(".data.sources") = {};

/* What each CPU has last found of a marked source: who sends many packets is looked up
 * once, however long the lists are. */
enum { SOURCE_MEMO_BITS = 10 };

struct source_memo {
	u32 address[4];
	u16 v6;
	u16 denied;
	u32 version;
	u64 until_ns; /* that it holds, coarse monotonic, or LISTED_FOR_GOOD */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << SOURCE_MEMO_BITS);
	__type(key, u32);
	__type(value, struct source_memo);
} source_memos SEC(".maps");

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

/* See contract.h; mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MARK_WORDS);
	__type(key, u32);
	__type(value, u64);
} deny_marks SEC(".maps");

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

#define LISTED_FOR_GOOD (~0ULL)

/*
 * Until when a prefix around the source holds; 0: none does. One that has
 * expired and is not removed yet hides those around it: look behind it. Should
 * that many be nested, the packet counts as not listed until the daemon has
 * removed some.
 */
INLINE u64 source_listed(void *list4, void *list6, const struct flow *f)
{
	struct prefix6 key = source_key6(f, f->v6 ? 128 : 32); /* begins as a prefix4 does */

	for (int i = 0; i < LISTED_NESTED; i++) {
		const struct listed *l =
			f->v6 ? bpf_map_lookup_elem(list6, &key) : bpf_map_lookup_elem(list4, &key);

		if (!l)
			return 0;
		u64 until_ns = l->until_ns;

		if (!until_ns)
			return LISTED_FOR_GOOD;
		if (until_ns > bpf_ktime_get_coarse_ns())
			return until_ns;
		if (!l->length)
			return 0;
		key.length = l->length - 1U;
	}
	return 0;
}

/* Exempt from deny and from every limit, never from the cookie: until when, 0 if
 * it is not. */
GLOBAL u64 source_allowed(const struct flow *f)
{
	return f ? source_listed(&allow4, &allow6, f) : 0;
}

/* Fail closed: what is not there counts as marked. */
INLINE u64 mark_word(u32 at)
{
	const u64 *word = bpf_map_lookup_elem(&deny_marks, &at);

	return word ? *word : ~0ULL;
}

/* denymarks.go makes it alike. */
INLINE bool mark_hashed(u64 bits, u32 kind)
{
	const u64 odd = 0x9e3779b97f4a7c15ULL;
	u64 h = (bits ^ kind) * odd;

	h = (h ^ h >> 32) * odd;
	u64 three = 1ULL << (h >> 18 & 63) | 1ULL << (h >> 24 & 63) | 1ULL << (h >> 30 & 63);
	return !(~mark_word(MARK_BLOCK_WORDS + (u32)(h >> (64 - MARK_HASH_BITS))) & three);
}

/* Whether something around the source may be denied; false: nothing is. */
INLINE bool source_marked(const struct flow *f)
{
	u64 kinds = mark_word(MARK_KINDS);

	if (!f->v6) {
		u32 a = f->source[0];

		if (kinds & 1 << MARK_BLOCK4 && mark_word(a >> 14) >> (a >> 8 & 63) & 1)
			return true;
		return kinds & 1 << MARK_HOST4 && mark_hashed(a, MARK_HOST4);
	}
	u64 first = (u64)f->source[0] << 32 | f->source[1];

	for (u32 kind = 0; kind < MARK_KINDS6; kind++) {
		u64 fixed = kind ? ~0ULL << (64 - MARK_STEP6 * kind) : 0;

		if (kinds & 1 << kind && mark_hashed(first & fixed, kind))
			return true;
	}
	return false;
}

INLINE struct source_memo *source_memo(const struct flow *f)
{
	u32 sum = f->source[0];

	if (f->v6)
		sum += f->source[1] * 31 + f->source[2] * 961 + f->source[3] * 29791;
	u32 slot = sum * 0x9e3779b9U >> (32 - SOURCE_MEMO_BITS);
	return bpf_map_lookup_elem(&source_memos, &slot);
}

INLINE bool source_memo_is(const struct source_memo *m, const struct flow *f, u32 version)
{
	if (m->address[0] != f->source[0] || m->v6 != f->v6 || m->version != version)
		return false;
	if (f->v6 && (m->address[1] != f->source[1] || m->address[2] != f->source[2] ||
		      m->address[3] != f->source[3]))
		return false;
	return m->until_ns == LISTED_FOR_GOOD || m->until_ns > bpf_ktime_get_coarse_ns();
}

/* While the lists stay as they are, time takes prefixes off them and puts none on:
 * who is denied is so until that prefix expires, or there may be another around it;
 * who is allowed likewise, and who is not on deny never will be. */
NOINLINE void source_look_up(struct source_memo *m, const struct flow *f, u32 version)
{
	if (!m || !f)
		return; /* cannot be: the verifier's doubt */
	u64 denied_ns = source_listed(&deny4, &deny6, f);
	u64 allowed_ns = denied_ns ? source_allowed(f) : LISTED_FOR_GOOD;

	m->version = version;
	m->v6 = f->v6;
	m->address[0] = f->source[0];
	for (int i = 1; i < 4 && f->v6; i++)
		m->address[i] = f->source[i];
	m->denied = !allowed_ns;
	m->until_ns = allowed_ns ? allowed_ns : denied_ns;
}

INLINE bool source_denied(const struct flow *f)
{
	if (LIKELY(!source_marked(f)))
		return false;
	struct source_memo *m = source_memo(f);
	u32 version = sources.version; /* read before the lists are: they may change meanwhile */

	if (!m)
		return false; /* cannot be: there is a slot for each hash */
	if (UNLIKELY(!source_memo_is(m, f, version)))
		source_look_up(m, f, version);
	return m->denied;
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
	if (sources.checks & SOURCES_PLACED) {
		const struct place *place = source_place(f);

		if (place && place->port != port)
			return VERDICT_DROP_SPOOFED_INSIDE;
	}
	if (sources.checks & SOURCES_DENIED && source_denied(f))
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
