/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What each CPU remembers of an address and port. */
#ifndef SMARTCOOKIE_MEMO_H
#define SMARTCOOKIE_MEMO_H

#include "service.h"

enum { MEMO_SLOTS = 256 };

/* What a search has last found for an address and port; a flood's target is
 * found here in 3 ns instead of 20. */
struct service_memo {
	u64 version;
	u32 address[4];
	u16 port;
	u16 found; /* the service's id; at the edge also enum stance */
	u32 v6;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MEMO_SLOTS);
	__type(key, u32);
	__type(value, struct service_memo);
} service_memos SEC(".maps");

INLINE bool memo_is(const struct service_memo *m, const u32 address[4], bool v6, u16 port,
		    u64 version)
{
	if (m->address[0] != address[0] || m->port != port || m->v6 != v6 || m->version != version)
		return false;
	return !v6 || (m->address[1] == address[1] && m->address[2] == address[2] &&
		       m->address[3] == address[3]);
}

/* What a search says of an address and port, remembered until the tables change. */
INLINE u32 memo_find(const u32 address[4], bool v6, u16 port, u64 version,
		     u32 (*search)(const u32 *address, bool v6, u16 port))
{
	u32 slot = ((v6 ? address[3] : address[0]) * 31 + port) & (MEMO_SLOTS - 1);
	struct service_memo *m = bpf_map_lookup_elem(&service_memos, &slot);

	if (!m)
		return SERVICE_NONE; /* fail open: cannot happen, the slot is within the map */
	if (LIKELY(memo_is(m, address, v6, port, version)))
		return m->found;
	m->version = version;
	m->found = (u16)search(address, v6, port);
	m->port = port;
	m->v6 = v6;
	m->address[0] = address[0];
	for (int i = 1; i < 4 && v6; i++)
		m->address[i] = address[i];
	return m->found;
}

/* ---- at a server, which stands to nobody -------------------------------- */

enum { UNPROTECTED = -1 };

NOINLINE u32 port_search(const u32 *address, bool v6, u16 port)
{
	return address ? service_search(address, v6, port) : SERVICE_NONE;
}

/* The service at an address and port, SERVICE_NONE: another port of a protected
 * address. */
NOINLINE int service_at(const u32 *address, bool v6, u16 port)
{
	u32 zero = 0;
	const struct agent_clock *c = bpf_map_lookup_elem(&clock, &zero);
	u32 id = c ? memo_find(address, v6, port, c->tables_version, port_search) : SERVICE_NONE;

	if (LIKELY(id != SERVICE_NONE))
		return (int)id;
	return prefix_find(address, v6) ? SERVICE_NONE : UNPROTECTED;
}

#endif
