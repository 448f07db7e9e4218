/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A table of the established connections of protected services, kept where
 * edges hear of them: reading it costs a fraction of a walk over the sockets,
 * which the kernel locks one by one. A walk now and then adds what a missed
 * event left out, and the daemon removes what it has not seen.
 */
#ifndef SMARTCOOKIE_ESTABLISHED_H
#define SMARTCOOKIE_ESTABLISHED_H

#include "enforced.h"
#include "maps.h"

/* By its ends; the client's ISN is 0. The value is a round. The size is set
 * when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct connection);
	__type(value, u32);
} established SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct established_state);
} established_round SEC(".maps");

INLINE void established_add(const struct connection *c)
{
	u32 zero = 0;
	struct established_state *state = bpf_map_lookup_elem(&established_round, &zero);

	if (state && bpf_map_update_elem(&established, c, &state->round, BPF_ANY))
		state->lost = 1;
}

/* A connection begins or ends. */
INLINE void established_event(const struct connection *ends, bool begins)
{
	struct connection c = *ends;

	if (!hears_edges)
		return;
	c.client_isn = 0;
	if (begins)
		established_add(&c);
	else
		bpf_map_delete_elem(&established, &c);
}

#endif
