/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets whose service cannot be told, fragments among them: whether anything
 * at their address is defended now. Whoever includes this says when a service is.
 */
#ifndef SMARTCOOKIE_DEFENDED_H
#define SMARTCOOKIE_DEFENDED_H

#include "service.h"

enum { RANGES_LOOKED_AT = 1024 };

INLINE bool service_acts(u32 id, const struct service *service);

/* Set when loading. */
const volatile u32 service_count = 0;

struct defended {
	u32 first; /* range */
	u32 monitored;
	bool acts;
};

INLINE long defended_by(struct defended *f, u32 id)
{
	const struct service *service = service_get(id);

	f->acts = service && service_acts(id, service);
	if (service && service->mode == MODE_MONITOR)
		f->monitored = id;
	return f->acts;
}

static long defended_range(u32 i, struct defended *f)
{
	u32 index = f->first + i;
	const struct port_range *range = bpf_map_lookup_elem(&port_ranges, &index);

	return range ? defended_by(f, range->service) : 1;
}

static long defended_service(u32 i, struct defended *f)
{
	return defended_by(f, 1 + i);
}

/* Whether one of a prefix's services acts, or of all, where no prefix is given.
 * If none does, *monitored is one that counts what it would do. Who has more
 * ranges than we look at is defended: fail closed. */
NOINLINE u32 defended_at(const struct port_set *set, u32 *monitored)
{
	struct defended f = {};

	if (!monitored || (set && set->count > RANGES_LOOKED_AT))
		return 1;
	f.first = set ? set->first : 0;
	if (set)
		bpf_loop(set->count, defended_range, &f, 0);
	else
		bpf_loop(service_count, defended_service, &f, 0);
	*monitored = f.monitored;
	return f.acts;
}

#endif
