/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A token bucket in one word, the time until which its tokens are spent (the
 * generic cell rate algorithm, ITU-T I.371 Annex A). In any time T it gives at
 * most T / interval tokens, and those of a burst.
 */
#ifndef SMARTCOOKIE_BUCKET_H
#define SMARTCOOKIE_BUCKET_H

#include "types.h"

enum { BUCKET_BURST_NS = 100 * 1000 * 1000 }; /* what may be spent at once */

/* The word after a token was taken; 0: there is none. `most_ns`: what may be
 * spent ahead of time, this token included. */
INLINE u64 bucket_within(u64 spent_until_ns, u64 interval_ns, u64 most_ns, u64 now_ns)
{
	u64 after = (spent_until_ns > now_ns ? spent_until_ns : now_ns) + interval_ns;

	return after - now_ns > most_ns ? 0 : after;
}

INLINE u64 bucket_next(u64 spent_until_ns, u64 interval_ns, u64 now_ns)
{
	return bucket_within(spent_until_ns, interval_ns, BUCKET_BURST_NS + interval_ns - 1,
			     now_ns);
}

#endif
