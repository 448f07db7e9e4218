/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether some edge in front of this server says that it enforces. */
#ifndef SMARTCOOKIE_ENFORCED_H
#define SMARTCOOKIE_ENFORCED_H

#include "epoch.h"

/* The daemon hears edges; without, the agent is as strict as it is told. */
const volatile bool hears_edges = false;

/* Until when an edge's word holds, coarse monotonic; mapped. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} enforced_until SEC(".maps");

/* Fail open: where no edge answers SYNs, handshakes are the kernel's own. With
 * `auto` that is most of the time, and without edges nobody says when. */
INLINE bool unenforced(const struct service *service, const struct moment *now)
{
	u32 zero = 0;

	if (!hears_edges)
		return service->mode == MODE_AUTO;
	const u64 *until = bpf_map_lookup_elem(&enforced_until, &zero);
	return !until || now->monotonic_ns >= *until;
}

/* What the daemon knows of the edges, for `status`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct control_peer);
} edges SEC(".maps");

#endif
