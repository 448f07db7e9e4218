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

/* The word after a token was taken; 0: there is none. */
INLINE u64 bucket_after(u64 spent_until_ns, u64 interval_ns, u64 burst_ns, u64 now_ns)
{
	u64 from = spent_until_ns > now_ns ? spent_until_ns : now_ns;

	if (from - now_ns >= burst_ns)
		return 0;
	return from + interval_ns;
}

INLINE u64 bucket_next(u64 spent_until_ns, u64 interval_ns, u64 now_ns)
{
	return bucket_after(spent_until_ns, interval_ns, BUCKET_BURST_NS, now_ns);
}

#endif
