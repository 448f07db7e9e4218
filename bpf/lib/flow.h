/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef SMARTCOOKIE_FLOW_H
#define SMARTCOOKIE_FLOW_H

#include "types.h"

/*
 * A flow as the cookie's message has it: from the client to the server, words
 * in host order, the most significant one first. IPv4 uses word 0 alone.
 */
struct flow {
	u32 source[4];
	u32 destination[4];
	u32 ports; /* source << 16 | destination */
	bool v6;
};

INLINE u16 flow_destination_port(const struct flow *f)
{
	return (u16)f->ports;
}

/* The same flow seen from the other end. */
INLINE struct flow flow_reverse(const struct flow *f)
{
	struct flow r = { .v6 = f->v6, .ports = f->ports << 16 | f->ports >> 16 };

	r.source[0] = f->destination[0];
	r.destination[0] = f->source[0];
	if (f->v6) {
		for (int i = 1; i < 4; i++) {
			r.source[i] = f->destination[i];
			r.destination[i] = f->source[i];
		}
	}
	return r;
}

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

#endif
