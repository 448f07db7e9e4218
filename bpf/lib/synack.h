/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The SYN-ACK, written over the SYN that it answers. At most 60 bytes of IPv4
 * or 80 of IPv6: a whole header without IP options and up to 20 bytes of TCP
 * options, in one of three lengths:
 *
 *   24  MSS
 *   32  MSS | NOP NOP SACK | NOP scale
 *   40  MSS | SACK timestamps | TSval | TSecr | NOP scale
 *
 * with NOPs in the place of what was not agreed.
 */
#ifndef SMARTCOOKIE_SYNACK_H
#define SMARTCOOKIE_SYNACK_H

#include "checksum.h"
#include "options.h"
#include "packet.h"

enum synack_limits {
	SYNACK_TCP_PLAIN = 24,
	SYNACK_TCP_OPTIONS = 32,
	SYNACK_TCP_TIMESTAMPS = 40,
	SYNACK_HOPS = 64,
};

struct synack {
	u32 cookie;
	u32 tsval;
	u16 mss;
	u16 window;
	u8 scale; /* of the server */
};

INLINE u32 synack_tcp_length(const struct tcp_options *o)
{
	if (o->timestamps)
		return SYNACK_TCP_TIMESTAMPS;
	return o->sack || o->scale != SCALE_NONE ? SYNACK_TCP_OPTIONS : SYNACK_TCP_PLAIN;
}

INLINE u32 synack_scale_word(const struct synack *s, const struct tcp_options *o)
{
	return o->scale == SCALE_NONE ? BE32(0x01010101) : BE32(0x01030300U | s->scale);
}

/* `sum` is the pseudo-header's. The addresses' order does not matter to it. */
INLINE bool synack_tcp(u32 *t, const void *end, const struct packet *p, const struct tcp_options *o,
		       const struct synack *s, u64 sum)
{
	u32 length = synack_tcp_length(o);

	if ((const void *)(t + SYNACK_TCP_PLAIN / 4) > end)
		return false;
	t[0] = BE32(p->flow.ports << 16 | p->flow.ports >> 16);
	t[1] = BE32(s->cookie);
	t[2] = BE32(p->seq + 1);
	t[3] = BE32(length / 4 << 28 | (u32)(TCP_SYN | TCP_ACK | (o->ecn ? TCP_ECE : 0)) << 16 |
		    s->window);
	t[5] = BE32(TCP_OPTION_MSS << 24 | 4 << 16 | s->mss);
	sum += (u64)t[0] + t[1] + t[2] + t[3] + t[5];
	if (o->timestamps) {
		if ((const void *)(t + SYNACK_TCP_TIMESTAMPS / 4) > end)
			return false;
		t[6] = o->sack ? BE32(0x0402080a) : BE32(0x0101080a);
		t[7] = BE32(s->tsval);
		t[8] = o->tsval_be;
		t[9] = synack_scale_word(s, o);
		sum += (u64)t[6] + t[7] + t[8] + t[9];
	} else if (length == SYNACK_TCP_OPTIONS) {
		if ((const void *)(t + SYNACK_TCP_OPTIONS / 4) > end)
			return false;
		t[6] = o->sack ? BE32(0x01010402) : BE32(0x01010101);
		t[7] = synack_scale_word(s, o);
		sum += (u64)t[6] + t[7];
	}
	t[4] = checksum_fold(sum); /* and no urgent pointer */
	return true;
}

INLINE bool synack_ip4(u32 *w, const void *end, const struct packet *p, const struct tcp_options *o,
		       const struct synack *s)
{
	u32 length = synack_tcp_length(o);
	u32 from = BE32(p->flow.destination[0]), to = BE32(p->flow.source[0]);

	if ((const void *)(w + IP4_LENGTH / 4) > end)
		return false;
	u64 addresses = (u64)from + to;
	w[0] = BE32(0x45000000U | (IP4_LENGTH + length));
	w[1] = BE32(0x00004000); /* don't fragment: the id may stay 0 (RFC 6864) */
	w[2] = BE32(SYNACK_HOPS << 24 | PROTOCOL_TCP << 16);
	w[2] |= (u32)checksum_fold(addresses + w[0] + w[1] + w[2]) << 16;
	w[3] = from;
	w[4] = to;
	return synack_tcp(w + IP4_LENGTH / 4, end, p, o, s,
			  addresses + BE32(PROTOCOL_TCP << 16 | length));
}

INLINE bool synack_ip6(u32 *w, const void *end, const struct packet *p, const struct tcp_options *o,
		       const struct synack *s)
{
	u32 length = synack_tcp_length(o);
	u64 sum = 0;

	if ((const void *)(w + IP6_LENGTH / 4) > end)
		return false;
	w[0] = BE32(0x60000000U);
	w[1] = BE32(length << 16 | PROTOCOL_TCP << 8 | SYNACK_HOPS);
	for (int i = 0; i < 4; i++) {
		w[2 + i] = BE32(p->flow.destination[i]);
		w[6 + i] = BE32(p->flow.source[i]);
		sum += (u64)w[2 + i] + w[6 + i];
	}
	return synack_tcp(w + IP6_LENGTH / 4, end, p, o, s,
			  sum + BE32(length) + BE32(PROTOCOL_TCP));
}

/* Bytes of the SYN-ACK from the IP header on. */
INLINE u32 synack_length(const struct packet *p, const struct tcp_options *o)
{
	return (p->flow.v6 ? IP6_LENGTH : IP4_LENGTH) + synack_tcp_length(o);
}

/* Writes from the IP header on; false: the frame is too short for it. */
INLINE bool synack_write(void *network, const void *end, const struct packet *p,
			 const struct tcp_options *o, const struct synack *s)
{
	return p->flow.v6 ? synack_ip6(network, end, p, o, s) : synack_ip4(network, end, p, o, s);
}

/* A source that a SYN-ACK must not be sent to: nobody's, everybody's or the
 * server's own address (a SYN from itself to itself, the LAND attack). */
INLINE bool source_is_bad(const struct flow *f)
{
	u32 first = f->source[0];

	if (!f->v6) {
		u32 net = first >> 24;

		return net == 0 || net == 127 || net >= 224 || first == f->destination[0];
	}
	if (first >> 24 == 0xff) /* multicast */
		return true;
	if (!first && !f->source[1] && !f->source[2] && f->source[3] <= 1) /* :: and ::1 */
		return true;
	return first == f->destination[0] && f->source[1] == f->destination[1] &&
	       f->source[2] == f->destination[2] && f->source[3] == f->destination[3];
}

#endif
