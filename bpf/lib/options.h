/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* TCP options of a SYN, and what of them a cookie carries (cookie.md, Options). */
#ifndef SMARTCOOKIE_OPTIONS_H
#define SMARTCOOKIE_OPTIONS_H

#include "types.h"

enum tcp_option {
	TCP_OPTION_END = 0,
	TCP_OPTION_NOP = 1,
	TCP_OPTION_MSS = 2,        /* RFC 9293 3.2 */
	TCP_OPTION_SCALE = 3,      /* RFC 7323 2.2 */
	TCP_OPTION_SACK = 4,       /* RFC 2018 2 */
	TCP_OPTION_TIMESTAMPS = 8, /* RFC 7323 3.2 */
	TCP_OPTIONS_MAX = 40,
	TCP_SCALE_MAX = 14, /* RFC 7323 2.3 */
	SCALE_NONE = 15,
};

struct tcp_options {
	u32 tsval_be;
	u32 tsecr_be;
	u16 mss;  /* 0: no such option */
	u8 scale; /* SCALE_NONE: no such option */
	bool sack;
	bool timestamps;
	bool ecn; /* from the flags; here because the cookie keeps it */
};

struct options_cursor {
	const u8 *at; /* first byte of the options */
	const void *end;
	u32 offset;
	u32 length;
	struct tcp_options found;
};

/* One option, whose length is known to lie within the options. */
INLINE void options_take(struct options_cursor *c, const u8 *p, u8 kind, u8 length)
{
	struct tcp_options *o = &c->found;

	if (kind == TCP_OPTION_MSS && length == 4) {
		if ((const void *)(p + 4) <= c->end)
			o->mss = load16(p + 2);
	} else if (kind == TCP_OPTION_SCALE && length == 3) {
		if ((const void *)(p + 3) <= c->end)
			o->scale = p[2] > TCP_SCALE_MAX ? TCP_SCALE_MAX : p[2];
	} else if (kind == TCP_OPTION_SACK && length == 2) {
		o->sack = true;
	} else if (kind == TCP_OPTION_TIMESTAMPS && length == 10) {
		if ((const void *)(p + 10) > c->end)
			return;
		__builtin_memcpy(&o->tsval_be, p + 2, 4);
		__builtin_memcpy(&o->tsecr_be, p + 6, 4);
		o->timestamps = true;
	}
}

/*
 * Called by bpf_loop: an open-coded walk makes the verifier follow every
 * sequence of option lengths ("BPF program is too large. Processed 1000001
 * insn"). Returns 1 to stop. Malformed options end the walk, what came before
 * them counts, as in Linux.
 */
static long options_step(u32 i, struct options_cursor *c)
{
	u32 offset = c->offset;

	(void)i;
	if (offset >= c->length || offset >= TCP_OPTIONS_MAX)
		return 1;
	const u8 *p = c->at + offset;
	if ((const void *)(p + 1) > c->end || p[0] == TCP_OPTION_END)
		return 1;
	if (p[0] == TCP_OPTION_NOP) {
		c->offset = offset + 1;
		return 0;
	}
	if ((const void *)(p + 2) > c->end || p[1] < 2 || offset + p[1] > c->length)
		return 1;
	options_take(c, p, p[0], p[1]);
	c->offset = offset + p[1];
	return 0;
}

/* The order in which Linux writes a SYN: MSS, SACK, timestamps, NOP, scale.
 * Worth a shortcut: it saves 15 ns of the walk for most clients. */
INLINE bool options_linux(const u8 *p, const void *end, u32 length, struct tcp_options *o)
{
	const u32 *w = (const void *)p; /* memcpy would load it byte by byte */

	if (length != 20 || (const void *)(p + 20) > end)
		return false;
	if ((w[0] & BE32(0xffff0000)) != BE32(0x02040000) || w[1] != BE32(0x0402080a) ||
	    (w[4] & BE32(0xffffff00)) != BE32(0x01030300))
		return false;
	*o = (struct tcp_options){
		.mss = (u16)BE32(w[0]),
		.sack = true,
		.timestamps = true,
		.tsval_be = w[2],
		.tsecr_be = w[3],
		.scale = p[19] > TCP_SCALE_MAX ? TCP_SCALE_MAX : p[19],
	};
	return true;
}

INLINE void options_read(const u8 *p, const void *end, u32 length, struct tcp_options *o)
{
	*o = (struct tcp_options){ .scale = SCALE_NONE };
	if (!length || options_linux(p, end, length, o))
		return;
	struct options_cursor c = {
		.at = p,
		.end = end,
		.length = length,
		.found.scale = SCALE_NONE,
	};
	bpf_loop(TCP_OPTIONS_MAX, options_step, &c, 0);
	*o = c.found;
}

/* What the service does not offer counts as not asked for. */
INLINE void options_limit(struct tcp_options *o, u8 offered)
{
	if (!(offered & OPTION_TIMESTAMPS))
		o->timestamps = false;
	if (!(offered & OPTION_SACK))
		o->sack = false;
	if (!(offered & OPTION_SCALE))
		o->scale = SCALE_NONE;
	if (!(offered & OPTION_ECN) || !o->timestamps)
		o->ecn = false;
	/* What could only be recorded far too small is worse than no scale: the
	 * server would see a window of a few bytes (cookie.md, Options). */
	if (!o->timestamps && o->scale > (o->sack ? CLASS_SCALE_MOST : 0))
		o->scale = SCALE_NONE;
}

static const u16 mss4_long[MSS_LONG] = { MSS4_LONG_VALUES };
static const u16 mss6_long[MSS_LONG] = { MSS6_LONG_VALUES };
static const u16 mss4_short[MSS_SHORT] = { MSS4_SHORT_VALUES };
static const u16 mss6_short[MSS_SHORT] = { MSS6_SHORT_VALUES };

/* Index of the largest listed value not above mss, 0 below the first. Most
 * clients have Ethernet's, which is found without a search. */
INLINE u32 mss_index_long(u16 mss, bool v6)
{
	const u16 *table = v6 ? mss6_long : mss4_long;
	u32 ethernet = v6 ? MSS6_LONG_ETHERNET : MSS4_LONG_ETHERNET;
	u32 i = 0;

	if (LIKELY(mss == table[ethernet]))
		return ethernet;
	for (u32 step = MSS_LONG / 2; step; step /= 2)
		if (mss >= table[i + step])
			i += step;
	return i;
}

INLINE u32 mss_index_short(u16 mss, bool v6)
{
	const u16 *table = v6 ? mss6_short : mss4_short;
	u32 i = 0;

	for (u32 n = 1; n < MSS_SHORT; n++)
		i += mss >= table[n];
	return i;
}

/* Class 2 to 6: the largest listed scale not above the client's. */
INLINE u32 option_class(const struct tcp_options *o)
{
	if (o->scale == SCALE_NONE)
		return o->sack ? CLASS_SACK : CLASS_PLAIN;
	if (!o->sack)
		return CLASS_SCALE_0_NO_SACK;
	if (o->scale >= 8)
		return CLASS_SCALE_8;
	if (o->scale >= 7)
		return CLASS_SCALE_7;
	if (o->scale >= 4)
		return CLASS_SCALE_4;
	return o->scale >= 2 ? CLASS_SCALE_2 : CLASS_SCALE_0;
}

INLINE u32 options_code(const struct tcp_options *o, bool v6)
{
	u16 mss = o->mss ? o->mss : v6 ? MSS_DEFAULT6 : MSS_DEFAULT4;

	if (o->timestamps)
		return mss_index_long(mss, v6);
	return option_class(o) << CLASS_SHIFT | mss_index_short(mss, v6);
}

/* The low six bits of the TSval that carries the other options. */
INLINE u32 options_tsval(const struct tcp_options *o)
{
	return (o->scale & TSVAL_SCALE_MASK) | (o->sack ? TSVAL_SACK : 0) |
	       (o->ecn ? TSVAL_ECN : 0);
}

/* What the cookie's code and the setting-up packet's TSecr say of the client. */
INLINE void options_decode(struct tcp_options *o, u32 code, bool v6)
{
	static const u8 class_scale[] = {
		SCALE_NONE, SCALE_NONE, 0, 2, 4, 7, 8, 0,
	};

	if (o->timestamps) {
		u32 tsecr = BE32(o->tsecr_be);

		o->mss = (v6 ? mss6_long : mss4_long)[code & (MSS_LONG - 1)];
		o->scale = tsecr & TSVAL_SCALE_MASK;
		o->sack = tsecr & TSVAL_SACK;
		o->ecn = tsecr & TSVAL_ECN;
		return;
	}
	u32 class = code >> CLASS_SHIFT & 7;
	o->mss = (v6 ? mss6_short : mss4_short)[code & CLASS_MSS_MASK];
	o->scale = class_scale[class];
	o->sack = class != CLASS_PLAIN && class != CLASS_SCALE_0_NO_SACK;
	o->ecn = false;
}

#endif
