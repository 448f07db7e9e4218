/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The two modes of a port (Penkov, Dumazet, Fomichev: Issuing SYN Cookies in
 * XDP, Netdev 2020, "Bimodal Operation").
 *
 *   passive --- pressure --------------------> flood
 *   flood   --- no pressure for T2 ----------> passive
 *
 * Pressure is so many SYNs within T1, or a SYN that met a full queue. T2 doubles,
 * within a bound, with each flood that begins within T2 of the last one's end.
 *
 * CPUs share the state without a lock: counts may be off by one for each CPU,
 * a change of mode has one author.
 */
#ifndef SMARTCOOKIE_BIMODAL_H
#define SMARTCOOKIE_BIMODAL_H

#include "types.h"

enum bimodal_mode { BIMODAL_PASSIVE = 0, BIMODAL_FLOOD = 1 };

struct bimodal {
	u64 began_ns;   /* the window of T1 */
	u64 pressed_ns; /* the last pressure */
	u64 changed_ns; /* the last change of mode; 0: there was none */
	u64 calm_ns;    /* T2 of this flood, or of the last */
	u32 syns;       /* in the window, up to the limit */
	u32 mode;       /* enum bimodal_mode */
	u32 changes;
	u32 pad;
};

struct bimodal_limits {
	u64 window_ns; /* T1 */
	u64 calm_ns;   /* T2, and what it may double to */
	u64 calm_most_ns;
	u32 syns; /* within T1 that are pressure */
};

enum bimodal_syn {
	SYN_COUNTED,
	SYN_OPENS,   /* the first of a window: the one that may sample the queue */
	SYN_PRESSES, /* the window is full */
};

/* Whether so much time has passed; another CPU may have read a later clock. */
INLINE bool bimodal_passed(u64 from_ns, u64 now_ns, u64 time_ns)
{
	return (s64)(now_ns - from_ns) >= (s64)time_ns;
}

/* Once the window is full its line is only read, by however many CPUs. */
INLINE enum bimodal_syn bimodal_count(struct bimodal *b, const struct bimodal_limits *l, u64 now_ns)
{
	u64 began = b->began_ns;

	if (UNLIKELY(!began || bimodal_passed(began, now_ns, l->window_ns)) &&
	    __sync_val_compare_and_swap(&b->began_ns, began, now_ns) == began) {
		b->syns = 1;
		return l->syns > 1 ? SYN_OPENS : SYN_PRESSES;
	}
	if (b->syns >= l->syns)
		return SYN_PRESSES;
	return __sync_fetch_and_add(&b->syns, 1) + 1 >= l->syns ? SYN_PRESSES : SYN_COUNTED;
}

/* T2 of a flood that begins now. */
INLINE u64 bimodal_calm(const struct bimodal *b, const struct bimodal_limits *l, u64 now_ns)
{
	if (!b->changed_ns || bimodal_passed(b->changed_ns, now_ns, b->calm_ns))
		return l->calm_ns;
	u64 twice = 2 * b->calm_ns > l->calm_ns ? 2 * b->calm_ns : l->calm_ns;
	return twice < l->calm_most_ns ? twice : l->calm_most_ns;
}

/* Pressure; true: it has ended the passive mode. */
INLINE bool bimodal_press(struct bimodal *b, const struct bimodal_limits *l, u64 now_ns)
{
	if (b->pressed_ns != now_ns) /* a coarse clock: rarely */
		b->pressed_ns = now_ns;
	if (LIKELY(b->mode == BIMODAL_FLOOD) ||
	    __sync_val_compare_and_swap(&b->mode, BIMODAL_PASSIVE, BIMODAL_FLOOD) !=
		    BIMODAL_PASSIVE)
		return false;
	b->calm_ns = bimodal_calm(b, l, now_ns);
	b->changed_ns = now_ns;
	b->changes++;
	return true;
}

/* Ends a flood after T2 without pressure; true: it has. */
INLINE bool bimodal_rest(struct bimodal *b, u64 now_ns)
{
	if (LIKELY(b->mode != BIMODAL_FLOOD || !bimodal_passed(b->pressed_ns, now_ns, b->calm_ns)))
		return false;
	if (__sync_val_compare_and_swap(&b->mode, BIMODAL_FLOOD, BIMODAL_PASSIVE) != BIMODAL_FLOOD)
		return false;
	b->changed_ns = now_ns;
	b->changes++;
	return true;
}

#endif
