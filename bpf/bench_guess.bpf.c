// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For benchmarks: somebody who has seen no cookie and guesses, put to the edge's
 * check itself. On a wire there are too few packets to tell 2^-26 from anything
 * else.
 */
#include "epoch.h"

enum {
	GUESSES = 1 << 15,         /* of a run: about a millisecond */
	GUESS_SERVER = 0xc6336402, /* 198.51.100.2 and */
	GUESS_PORT = 443,          /* its port: any will do */
};

u64 guess_random; /* the generator's state, never zero */
u64 guess_macs;   /* made: a guess can be compared with two epochs' */
u64 guesses_right;

struct guesser {
	struct moment now;
	u64 random;
	u64 macs;
	u64 right;
};

/* xorshift64 (Marsaglia 2003). */
INLINE u64 guess_next(struct guesser *g)
{
	g->random ^= g->random << 13;
	g->random ^= g->random >> 7;
	g->random ^= g->random << 17;
	return g->random;
}

static long guess_once(u64 index, void *context)
{
	struct guesser *g = context;
	u64 ends = guess_next(g), numbers = guess_next(g);
	struct flow flow = {
		.source = { (u32)ends },
		.destination = { GUESS_SERVER },
		.ports = (u32)(ends >> 32) << 16 | GUESS_PORT,
	};
	u32 cookie = (u32)numbers, code;

	(void)index;
	g->macs += candidates_of(g->now.epoch, cookie, false).count;
	g->right += !!cookie_find(&flow, (u32)(numbers >> 32), cookie, &g->now, 0, false, &code);
	return 0;
}

SEC("xdp") int guess(struct xdp_md *ctx)
{
	struct guesser g = { .now = moment_now(), .random = guess_random };

	(void)ctx;
	bpf_loop(GUESSES, guess_once, &g, 0);
	guess_random = g.random;
	guess_macs += g.macs;
	guesses_right += g.right;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
