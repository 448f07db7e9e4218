/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The challenge of contract/challenge.md: an acknowledgement number that no
 * client has waited for, and that its RST brings back (RFC 9293 3.10.7.3). It
 * is a cookie without an ISN, which a RST does not tell.
 */
#ifndef SMARTCOOKIE_CHALLENGE_H
#define SMARTCOOKIE_CHALLENGE_H

#include "cookie.h"

INLINE u32 challenge_mac(const struct key_slot *slot, const struct flow *f)
{
	return message_mac(slot, f, (u32)(f->v6 ? CHALLENGE_LENGTH6 : CHALLENGE_LENGTH4) << 24);
}

/* Whether it would acknowledge a SYN with this number, or data that it carries. */
INLINE bool challenge_is_near(u32 challenge, u32 isn)
{
	return challenge - isn < CHALLENGE_SPAN;
}

INLINE u32 challenge_make(const struct key_slot *slot, const struct flow *f, u32 isn)
{
	u32 mac = challenge_mac(slot, f), challenge = cookie_join(slot->epoch, mac, 0);

	return challenge_is_near(challenge, isn) ?
		       cookie_join(slot->epoch, mac, CHALLENGE_CODE_FAR) :
		       challenge;
}

/* The parity must have selected the slot already. */
NOINLINE bool challenge_check(const struct key_slot *slot, const struct flow *f, u32 challenge)
{
	u32 code;

	return cookie_split(challenge, challenge_mac(slot, f), &code) &&
	       !(code & ~(u32)CHALLENGE_CODE_FAR);
}

#endif
