/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which service a flow belongs to, and the count of its verdicts. */
#ifndef SMARTCOOKIE_SERVICE_H
#define SMARTCOOKIE_SERVICE_H

#include "lib/flow.h"
#include "maps.h"

enum { PORT_SEARCH_STEPS = 17 }; /* halves of PORT_RANGES_MAX, and one */

/* The port ranges of the longest protected prefix around an address. */
INLINE const struct port_set *prefix_find(const u32 address[4], bool v6)
{
	if (!v6) {
		struct prefix4 key = { .length = 32, .address_be = BE32(address[0]) };

		return bpf_map_lookup_elem(&prefixes4, &key);
	}
	struct prefix6 key = { .length = 128 };
	for (int i = 0; i < 4; i++)
		key.address_be[i] = BE32(address[i]);
	return bpf_map_lookup_elem(&prefixes6, &key);
}

/* Binary search among ascending, disjoint ranges. */
INLINE u32 port_find(const struct port_set *set, u16 port)
{
	u32 low = set->first, high = set->first + set->count;

	for (int i = 0; i < PORT_SEARCH_STEPS && low < high; i++) {
		u32 middle = (low + high) / 2;
		const struct port_range *range = bpf_map_lookup_elem(&port_ranges, &middle);

		if (!range)
			return SERVICE_NONE;
		if (port < range->low)
			high = middle;
		else if (port > range->high)
			low = middle + 1;
		else
			return range->service;
	}
	return SERVICE_NONE;
}

/* The service at an address and port, SERVICE_NONE if it is not protected. */
INLINE u32 service_search(const u32 address[4], bool v6, u16 port)
{
	const struct port_set *set = prefix_find(address, v6);

	return set ? port_find(set, port) : SERVICE_NONE;
}

INLINE const struct service *service_get(u32 id)
{
	return bpf_map_lookup_elem(&services, &id);
}

/* Whether the edge alone defends it. */
INLINE bool service_needs_no_agent(u32 id)
{
	const struct service *service = service_get(id);

	return service && service->strategy != STRATEGY_SPLIT;
}

/* Whether the edge stands between its clients and servers. */
INLINE bool service_is_proxied(u32 id)
{
	const struct service *service = service_get(id);

	return service && service->strategy == STRATEGY_PROXY;
}

/* Whether its servers are behind tenants' devices. */
INLINE bool service_is_tenants(u32 id)
{
	const struct service *service = service_get(id);

	return service && service->setup == SETUP_TENANT;
}

INLINE void count(u32 service, enum verdict verdict)
{
	u32 key = service * VERDICT_STRIDE + verdict;
	u64 *n = bpf_map_lookup_elem(&counters, &key);

	if (n)
		(*n)++;
}

#endif
