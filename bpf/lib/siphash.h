/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SipHash-2-4 and HalfSipHash-2-4 (Aumasson, Bernstein) over whole words.
 * The caller's last word carries the tail bytes and, in its top byte, the
 * message length: the padding that both functions define.
 */
#ifndef SMARTCOOKIE_SIPHASH_H
#define SMARTCOOKIE_SIPHASH_H

#include "types.h"

struct siphash {
	u64 v0, v1, v2, v3;
};

INLINE u64 rotate64(u64 x, u32 n)
{
	return x << n | x >> (64 - n);
}

INLINE void siphash_round(struct siphash *s)
{
	s->v0 += s->v1;
	s->v1 = rotate64(s->v1, 13) ^ s->v0;
	s->v0 = rotate64(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotate64(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotate64(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotate64(s->v1, 17) ^ s->v2;
	s->v2 = rotate64(s->v2, 32);
}

INLINE struct siphash siphash_start(const u64 key[2])
{
	return (struct siphash){
		.v0 = key[0] ^ 0x736f6d6570736575ULL,
		.v1 = key[1] ^ 0x646f72616e646f6dULL,
		.v2 = key[0] ^ 0x6c7967656e657261ULL,
		.v3 = key[1] ^ 0x7465646279746573ULL,
	};
}

INLINE void siphash_word(struct siphash *s, u64 m)
{
	s->v3 ^= m;
	siphash_round(s);
	siphash_round(s);
	s->v0 ^= m;
}

INLINE u64 siphash_end(struct siphash *s)
{
	s->v2 ^= 0xff;
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

struct halfsiphash {
	u32 v0, v1, v2, v3;
};

INLINE u32 rotate32(u32 x, u32 n)
{
	return x << n | x >> (32 - n);
}

INLINE void halfsiphash_round(struct halfsiphash *s)
{
	s->v0 += s->v1;
	s->v1 = rotate32(s->v1, 5) ^ s->v0;
	s->v0 = rotate32(s->v0, 16);
	s->v2 += s->v3;
	s->v3 = rotate32(s->v3, 8) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotate32(s->v3, 7) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotate32(s->v1, 13) ^ s->v2;
	s->v2 = rotate32(s->v2, 16);
}

INLINE struct halfsiphash halfsiphash_start(u64 key)
{
	u32 k0 = (u32)key, k1 = (u32)(key >> 32);

	return (struct halfsiphash){
		.v0 = k0,
		.v1 = k1,
		.v2 = k0 ^ 0x6c796765,
		.v3 = k1 ^ 0x74656462,
	};
}

INLINE void halfsiphash_word(struct halfsiphash *s, u32 m)
{
	s->v3 ^= m;
	halfsiphash_round(s);
	halfsiphash_round(s);
	s->v0 ^= m;
}

INLINE u32 halfsiphash_end(struct halfsiphash *s)
{
	s->v2 ^= 0xff;
	halfsiphash_round(s);
	halfsiphash_round(s);
	halfsiphash_round(s);
	halfsiphash_round(s);
	return s->v1 ^ s->v3;
}

#endif
