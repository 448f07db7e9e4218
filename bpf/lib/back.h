/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What goes back to a packet's sender, written over the packet: an IP header
 * without options, and a TCP header. `struct back` is a segment of 20 bytes of
 * TCP, a RST or an ACK, which is never longer than what it answers.
 */
#ifndef SMARTCOOKIE_BACK_H
#define SMARTCOOKIE_BACK_H

#include "checksum.h"
#include "packet.h"

enum back_limits { BACK_HOPS = 64 };

struct back {
	u32 seq, ack;
	u16 window;
	u8 flags; /* enum tcp_flag */
};

/* The header before `length` bytes of TCP; the caller knows that there is room
 * for it. Returns the sum of the pseudo-header, to which the addresses' order
 * does not matter. */
INLINE u64 back_ip4(u32 *w, const struct flow *f, u32 length)
{
	u32 from = BE32(f->destination[0]), to = BE32(f->source[0]);
	u64 addresses = (u64)from + to;

	w[0] = BE32(0x45000000U | (IP4_LENGTH + length));
	w[1] = BE32(0x00004000); /* don't fragment: the id may stay 0 (RFC 6864) */
	w[2] = BE32(BACK_HOPS << 24 | PROTOCOL_TCP << 16);
	w[2] |= (u32)checksum_fold(addresses + w[0] + w[1] + w[2]) << 16;
	w[3] = from;
	w[4] = to;
	return addresses + BE32(PROTOCOL_TCP << 16 | length);
}

INLINE u64 back_ip6(u32 *w, const struct flow *f, u32 length)
{
	u64 sum = 0;

	w[0] = BE32(0x60000000U);
	w[1] = BE32(length << 16 | PROTOCOL_TCP << 8 | BACK_HOPS);
	for (int i = 0; i < 4; i++) {
		w[2 + i] = BE32(f->destination[i]);
		w[6 + i] = BE32(f->source[i]);
		sum += (u64)w[2 + i] + w[6 + i];
	}
	return sum + BE32(length) + BE32(PROTOCOL_TCP);
}

INLINE void back_tcp(u32 *t, const struct flow *f, const struct back *b, u64 sum)
{
	t[0] = BE32(f->ports << 16 | f->ports >> 16);
	t[1] = BE32(b->seq);
	t[2] = BE32(b->ack);
	t[3] = BE32((u32)TCP_LENGTH / 4 << 28 | (u32)b->flags << 16 | b->window);
	t[4] = checksum_fold(sum + t[0] + t[1] + t[2] + t[3]); /* and no urgent pointer */
}

/* Bytes of it from the IP header on. */
INLINE u32 back_length(const struct flow *f)
{
	return (f->v6 ? IP6_LENGTH : IP4_LENGTH) + TCP_LENGTH;
}

/* Writes from the IP header on; false: the frame is too short for it. */
INLINE bool back_write(void *network, const void *end, const struct flow *f, const struct back *b)
{
	u32 *w = network;

	if (f->v6) {
		if ((const void *)(w + (IP6_LENGTH + TCP_LENGTH) / 4) > end)
			return false;
		back_tcp(w + IP6_LENGTH / 4, f, b, back_ip6(w, f, TCP_LENGTH));
		return true;
	}
	if ((const void *)(w + (IP4_LENGTH + TCP_LENGTH) / 4) > end)
		return false;
	back_tcp(w + IP4_LENGTH / 4, f, b, back_ip4(w, f, TCP_LENGTH));
	return true;
}

/* The RST that a segment gets whose sender has no connection (RFC 9293
 * 3.10.7.1): it stands where the sender expects the next byte. */
INLINE struct back back_reset(u32 acknowledged)
{
	return (struct back){ .seq = acknowledged, .flags = TCP_RST };
}

/* A source that must not be answered: nobody's, everybody's or the
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
