// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For benchmarks: the same edge, but its MAC is AES-128 (FIPS 197), as in the
 * variant that SmartCookie is compared with: one block for a flow of IPv4, and
 * for one of IPv6 three in a chain (CBC-MAC, of one length only).
 *
 * Looked up in tables, as any program without the CPU's instructions for AES
 * does it: their addresses depend on the key, which a cache may tell.
 */
#include "lib/cookie.h"

enum { AES_ROUNDS = 10 };

/* Filled in when loading. T: what a byte of each row adds to a column after
 * SubBytes, ShiftRows and MixColumns; columns are little-endian words. */
const volatile u32 aes_table[4][256] = {};
const volatile u8 aes_box[256] = {};

/* A benchmark's own, expanded by the loader: no key of a service. */
u32 aes_key[4 * (AES_ROUNDS + 1)];

struct aes_block {
	u32 c0, c1, c2, c3; /* columns */
};

INLINE u32 aes_column(u32 a, u32 b, u32 c, u32 d, u32 key)
{
	return aes_table[0][a & 0xff] ^ aes_table[1][b >> 8 & 0xff] ^ aes_table[2][c >> 16 & 0xff] ^
	       aes_table[3][d >> 24] ^ key;
}

INLINE u32 aes_last_column(u32 a, u32 b, u32 c, u32 d, u32 key)
{
	return ((u32)aes_box[a & 0xff] | (u32)aes_box[b >> 8 & 0xff] << 8 |
		(u32)aes_box[c >> 16 & 0xff] << 16 | (u32)aes_box[d >> 24] << 24) ^
	       key;
}

/* A function of its own: ten rounds in a row are long. */
NOINLINE void aes_encrypt(struct aes_block *b)
{
	u32 c0 = b->c0 ^ aes_key[0], c1 = b->c1 ^ aes_key[1];
	u32 c2 = b->c2 ^ aes_key[2], c3 = b->c3 ^ aes_key[3];

	for (int i = 1; i < AES_ROUNDS; i++) {
		u32 d0 = aes_column(c0, c1, c2, c3, aes_key[4 * i]);
		u32 d1 = aes_column(c1, c2, c3, c0, aes_key[4 * i + 1]);
		u32 d2 = aes_column(c2, c3, c0, c1, aes_key[4 * i + 2]);

		c3 = aes_column(c3, c0, c1, c2, aes_key[4 * i + 3]);
		c0 = d0;
		c1 = d1;
		c2 = d2;
	}
	b->c0 = aes_last_column(c0, c1, c2, c3, aes_key[40]);
	b->c1 = aes_last_column(c1, c2, c3, c0, aes_key[41]);
	b->c2 = aes_last_column(c2, c3, c0, c1, aes_key[42]);
	b->c3 = aes_last_column(c3, c0, c1, c2, aes_key[43]);
}

INLINE void aes_absorb(struct aes_block *b, u32 c0, u32 c1, u32 c2, u32 c3)
{
	b->c0 ^= c0;
	b->c1 ^= c1;
	b->c2 ^= c2;
	b->c3 ^= c3;
	aes_encrypt(b);
}

INLINE u32 aes_mac(const struct flow *f, u32 last)
{
	struct aes_block b = {};

	if (f->v6) {
		aes_absorb(&b, f->source[0], f->source[1], f->source[2], f->source[3]);
		aes_absorb(&b, f->destination[0], f->destination[1], f->destination[2],
			   f->destination[3]);
		aes_absorb(&b, f->ports, last, 0, 0);
	} else {
		aes_absorb(&b, f->source[0], f->destination[0], f->ports, last);
	}
	return b.c0;
}

#define cookie_make(slot, flow, isn, code) \
	cookie_join((slot)->epoch, aes_mac(flow, cookie_last_word(flow, isn)), code)
#define cookie_check(slot, flow, isn, cookie, code) \
	cookie_split(cookie, aes_mac(flow, cookie_last_word(flow, isn)), code)
#include "bench.h"
