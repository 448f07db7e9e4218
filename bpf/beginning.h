/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Connections that are about to begin. The kernel takes packets from a device in
 * batches, and TC sees the whole of one (8 packets, net.core.gro_normal_batch)
 * before TCP sees its first. So what comes right behind the packet that makes its
 * connection, or that displaces an old socket, meets no connection yet: it comes
 * again, behind the batch.
 */
#ifndef SMARTCOOKIE_BEGINNING_H
#define SMARTCOOKIE_BEGINNING_H

#include "lib/packet.h"
#include "maps.h"

enum {
	BEGINNINGS = 4096,           /* a power of two */
	BEGINNING_NS = 20 * 1000000, /* coarse: more than any tick */
	BEGINNING_REQUEUES_MAX = 16, /* of all packets of one connection */
};

enum beginning_event {
	BEGINS_HERE = 1, /* the kernel will make it of this packet */
	BEGINS_AGAIN,    /* a copy, on its way, is to make it */
};

struct beginning {
	u64 at_ns; /* coarse monotonic */
	struct flow flow;
	u32 ack; /* the cookie and 1: of all that a client sends before he is answered */
	u16 what;
	u16 requeues;
};

/* By the cookie's lowest bits, which nobody can choose. For all CPUs, as a client's
 * packets may come by two; who loses a race, or its slot, is lost as on the wire. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BEGINNINGS);
	__type(key, u32);
	__type(value, struct beginning);
} beginnings SEC(".maps");

INLINE struct beginning *beginning_slot(const struct packet *p)
{
	u32 slot = (p->ack - 1) & (BEGINNINGS - 1);

	return bpf_map_lookup_elem(&beginnings, &slot);
}

INLINE bool flow_is(const struct flow *a, const struct flow *b)
{
	bool same = a->source[0] == b->source[0] && a->destination[0] == b->destination[0] &&
		    a->ports == b->ports && a->v6 == b->v6;

	for (int i = 1; i < 4 && same && a->v6; i++)
		same = a->source[i] == b->source[i] && a->destination[i] == b->destination[i];
	return same;
}

GLOBAL int beginning_keep(const struct packet *p, u32 what)
{
	struct beginning *b = p ? beginning_slot(p) : NULL;

	if (b)
		*b = (struct beginning){ .at_ns = bpf_ktime_get_coarse_ns(),
					 .flow = p->flow,
					 .ack = p->ack,
					 .what = (u16)what };
	return 0;
}

INLINE void beginning_forget(const struct packet *p)
{
	struct beginning *b = beginning_slot(p);

	if (b)
		b->at_ns = 0;
}

/* Whether the packet has to wait for its connection. `first`: it could make it
 * itself, as the copy does. */
GLOBAL bool beginning_is_near(const struct packet *p, bool first)
{
	struct beginning *b = p ? beginning_slot(p) : NULL;

	if (!b || b->ack != p->ack || !flow_is(&b->flow, &p->flow) ||
	    bpf_ktime_get_coarse_ns() - b->at_ns > BEGINNING_NS)
		return false;
	if (first && b->what == BEGINS_AGAIN)
		return false;
	if (b->requeues >= BEGINNING_REQUEUES_MAX) /* the kernel did not make it */
		return false;
	b->requeues++;
	return true;
}

#endif
