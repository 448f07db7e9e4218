/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The translated connections that are established, and how they are found. */
#ifndef SMARTCOOKIE_FLOWS_H
#define SMARTCOOKIE_FLOWS_H

#include "lib/flow.h"
#include "maps.h"

/* Nothing evicts what is established: when this is full, newcomers wait. The
 * size is set when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct endpoints);
	__type(value, struct translation);
} flows SEC(".maps");

/* `reply`: the flow runs from the server to the client. */
INLINE void endpoints_of(const struct flow *f, bool reply, struct endpoints *e)
{
	const u32 *client = reply ? f->destination : f->source;
	const u32 *server = reply ? f->source : f->destination;
	u32 ports = reply ? f->ports << 16 | f->ports >> 16 : f->ports;
	u32 mapped = f->v6 ? 0 : BE32(0xffff);

	*e = (struct endpoints){
		.client_be = { 0, 0, mapped, BE32(client[0]) },
		.server_be = { 0, 0, mapped, BE32(server[0]) },
		.client_port_be = BE16((u16)(ports >> 16)),
		.server_port_be = BE16((u16)ports),
	};
	if (!f->v6)
		return;
	for (int i = 0; i < 4; i++) {
		e->client_be[i] = BE32(client[i]);
		e->server_be[i] = BE32(server[i]);
	}
}

INLINE bool translation_lives(const struct translation *t)
{
	return !t->expires_ns || (s64)(t->expires_ns - bpf_ktime_get_coarse_ns()) > 0;
}

#endif
