// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For benchmarks, and never for use: the same edge, but its MAC is a CRC of the
 * flow behind a secret, as in switches that have nothing better (Jaqen). It is
 * linear: who has seen a few cookies can make others.
 */
#include "lib/cookie.h"

/* By byte, for the four bytes of a word at once; the reflected polynomial of
 * Ethernet. Filled in when loading. */
const volatile u32 crc_table[4][256] = {};

INLINE u32 crc_word(u32 crc, u32 word)
{
	u32 x = crc ^ word;

	return crc_table[3][x & 0xff] ^ crc_table[2][x >> 8 & 0xff] ^ crc_table[1][x >> 16 & 0xff] ^
	       crc_table[0][x >> 24];
}

INLINE u32 crc_mac(const struct key_slot *slot, const struct flow *f, u32 last)
{
	u32 crc = crc_word(~0U, (u32)slot->key[0]);

	for (int i = 0; i < (f->v6 ? 4 : 1); i++)
		crc = crc_word(crc, f->source[i]);
	for (int i = 0; i < (f->v6 ? 4 : 1); i++)
		crc = crc_word(crc, f->destination[i]);
	crc = crc_word(crc, f->ports);
	return ~crc_word(crc, last);
}

#define cookie_make(slot, flow, isn, code) \
	cookie_join((slot)->epoch, crc_mac(slot, flow, cookie_last_word(flow, isn)), code)
#define cookie_check(slot, flow, isn, cookie, code) \
	cookie_split(cookie, crc_mac(slot, flow, cookie_last_word(flow, isn)), code)
#include "bench.h"
