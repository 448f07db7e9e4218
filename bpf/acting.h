/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whether anything at an address, or at the edge, acts now, and what each CPU
 * remembers of that: else a packet would ask each of a thousand services. What
 * has to be asked changes with the tables and modes, which raises their version,
 * and with a detector's phase.
 */
#ifndef SMARTCOOKIE_ACTING_H
#define SMARTCOOKIE_ACTING_H

#include "defended.h"

enum { ACTING_MEMO_BITS = 8 };

struct acting_memo {
	u64 version;
	struct port_set set; /* of which it is; of all services: acting_all */
	u32 monitored;
	u32 acts;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << ACTING_MEMO_BITS);
	__type(key, u32);
	__type(value, struct acting_memo);
} acting_memos SEC(".maps");

/* No prefix has as many ranges. */
static const struct port_set acting_all = { .count = ~0U };

/* How often a detector has made a service act, or no longer. The timer alone
 * writes it: user space raises the tables' version and cannot do so atomically. */
volatile u64 acting_changes;

INLINE u64 acting_version(void)
{
	u32 zero = 0;
	const struct agent_clock *c = bpf_map_lookup_elem(&clock, &zero);

	return c ? c->tables_version + acting_changes : acting_changes;
}

/* As defended_at says it; *monitored only where nothing acts. */
NOINLINE u32 acting_at(const struct port_set *set, u32 *monitored)
{
	struct port_set of = set ? *set : acting_all;
	u32 slot = (of.first + of.count) * 0x9e3779b9U >> (32 - ACTING_MEMO_BITS);
	struct acting_memo *m = bpf_map_lookup_elem(&acting_memos, &slot);
	u64 version = acting_version(); /* read before what is asked: it may change meanwhile */

	if (!m || !monitored)
		return 1; /* cannot be: there is a slot for each hash */
	if (UNLIKELY(m->version != version || m->set.first != of.first ||
		     m->set.count != of.count)) {
		m->acts = defended_at(set, &m->monitored);
		m->set = of;
		m->version = version;
	}
	*monitored = m->monitored;
	return m->acts;
}

#endif
