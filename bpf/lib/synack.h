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

#include "back.h"
#include "options.h"

enum synack_limits {
	SYNACK_TCP_PLAIN = 24,
	SYNACK_TCP_OPTIONS = 32,
	SYNACK_TCP_TIMESTAMPS = 40,
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
	if ((const void *)(w + IP4_LENGTH / 4) > end)
		return false;
	u64 sum = back_ip4(w, &p->flow, synack_tcp_length(o));
	return synack_tcp(w + IP4_LENGTH / 4, end, p, o, s, sum);
}

INLINE bool synack_ip6(u32 *w, const void *end, const struct packet *p, const struct tcp_options *o,
		       const struct synack *s)
{
	if ((const void *)(w + IP6_LENGTH / 4) > end)
		return false;
	u64 sum = back_ip6(w, &p->flow, synack_tcp_length(o));
	return synack_tcp(w + IP6_LENGTH / 4, end, p, o, s, sum);
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

#endif
