/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The SYN cookie of contract/cookie.md:
 *
 *  bit  31 | 30 ........... 26 | 25 ............................. 0
 *        P |  (code + H) mod 32 |  M
 */
#ifndef SMARTCOOKIE_COOKIE_H
#define SMARTCOOKIE_COOKIE_H

#include "flow.h"
#include "siphash.h"

/* The message's last word: its length, and what of the ISN it has. */
INLINE u32 cookie_last_word(const struct flow *f, u32 isn)
{
	return (u32)(f->v6 ? COOKIE_LENGTH6 : COOKIE_LENGTH4) << 24 | (isn & COOKIE_ISN_MASK);
}

INLINE u64 join(u32 low, u32 high)
{
	return (u64)high << 32 | low;
}

INLINE u32 cookie_mac_siphash(const u64 key[2], const struct flow *f, u32 last)
{
	struct siphash s = siphash_start(key);

	if (f->v6) {
		siphash_word(&s, join(f->source[0], f->source[1]));
		siphash_word(&s, join(f->source[2], f->source[3]));
		siphash_word(&s, join(f->destination[0], f->destination[1]));
		siphash_word(&s, join(f->destination[2], f->destination[3]));
		siphash_word(&s, join(f->ports, last));
	} else {
		siphash_word(&s, join(f->source[0], f->destination[0]));
		siphash_word(&s, join(f->ports, last));
	}
	return (u32)siphash_end(&s);
}

INLINE u32 cookie_mac_halfsiphash(u64 key, const struct flow *f, u32 last)
{
	struct halfsiphash s = halfsiphash_start(key);

	halfsiphash_word(&s, f->source[0]);
	if (f->v6) {
		for (int i = 1; i < 4; i++)
			halfsiphash_word(&s, f->source[i]);
	}
	halfsiphash_word(&s, f->destination[0]);
	if (f->v6) {
		for (int i = 1; i < 4; i++)
			halfsiphash_word(&s, f->destination[i]);
	}
	halfsiphash_word(&s, f->ports);
	halfsiphash_word(&s, last);
	return halfsiphash_end(&s);
}

NOINLINE u32 cookie_mac_slow(const struct key_slot *slot, const struct flow *f, u32 last)
{
	return cookie_mac_halfsiphash(slot->key[0], f, last);
}

/* SipHash is in place: its long chain of dependent steps then overlaps with
 * what else there is to do, 10 ns of a SYN's 80. */
INLINE u32 message_mac(const struct key_slot *slot, const struct flow *f, u32 last)
{
	if (UNLIKELY(slot->hash == HASH_HALFSIPHASH))
		return cookie_mac_slow(slot, f, last);
	return cookie_mac_siphash(slot->key, f, last);
}

INLINE u32 cookie_mac(const struct key_slot *slot, const struct flow *f, u32 isn)
{
	return message_mac(slot, f, cookie_last_word(f, isn));
}

/* The layout of a cookie, of its parts. */
INLINE u32 cookie_join(u64 epoch, u32 mac, u32 code)
{
	u32 field = (code + (mac >> COOKIE_MAC_BITS)) & COOKIE_CODE_MASK;

	return (u32)(epoch & 1) << COOKIE_PARITY_SHIFT | field << COOKIE_MAC_BITS |
	       (mac & COOKIE_MAC_MASK);
}

/* Whether a cookie has this MAC; sets *code if so. */
INLINE bool cookie_split(u32 cookie, u32 mac, u32 *code)
{
	if ((mac ^ cookie) & COOKIE_MAC_MASK)
		return false;
	*code = ((cookie >> COOKIE_MAC_BITS) - (mac >> COOKIE_MAC_BITS)) & COOKIE_CODE_MASK;
	return true;
}

INLINE u32 cookie_make(const struct key_slot *slot, const struct flow *f, u32 isn, u32 code)
{
	return cookie_join(slot->epoch, cookie_mac(slot, f, isn), code);
}

/* The parity must have selected the slot already. Sets *code if valid. */
NOINLINE bool cookie_check(const struct key_slot *slot, const struct flow *f, u32 isn, u32 cookie,
			   u32 *code)
{
	return cookie_split(cookie, cookie_mac(slot, f, isn), code);
}

INLINE u32 cookie_parity(u32 cookie)
{
	return cookie >> COOKIE_PARITY_SHIFT;
}

#endif
