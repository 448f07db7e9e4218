/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * When a flood has begun, and when it is over: pure, with the clock and the
 * counts given. Netdev 2020's T_1 is the timer that looks, T_2 is calm_ms.
 *
 * What legitimate clients do must not switch it, so a figure that comes near
 * its limit and goes away is neither a flood nor an end of one: it begins at
 * the limit and ends below half of it.
 */
#ifndef SMARTCOOKIE_DETECT_H
#define SMARTCOOKIE_DETECT_H

#include "types.h"

enum { DETECTOR_SLOT_NS = 1000 * 1000 * 1000 / DETECTOR_SLOTS, NS_PER_MS = 1000 * 1000 };

/* The limits that the figures cross, taken `times` as large. */
INLINE u32 detect_cause(const struct detect_figures *f, const struct detect_limits *l, u32 times)
{
	u64 syns = (u64)f->syns * times;
	u32 cause = syns >= l->syns ? CAUSE_SYNS : 0;

	if (l->unfinished && syns * DETECTOR_UNFINISHED_FROM >= l->syns &&
	    (u64)f->unfinished * times >= l->unfinished)
		cause |= CAUSE_UNFINISHED;
	if (l->half_open && (u64)f->half_open * times >= l->half_open)
		cause |= CAUSE_HALF_OPEN;
	return cause;
}

INLINE u32 slot_index(u64 slot)
{
	return (u32)slot & (DETECTOR_SLOTS - 1);
}

/* Empties the slots that have passed since the last look. */
INLINE void detect_turn(struct detector *d, u64 slot)
{
	u64 passed = slot - d->slot;

	for (u32 i = 1; i <= DETECTOR_SLOTS; i++) {
		u32 at = slot_index(d->slot + i);

		if (i > passed)
			break;
		d->slot_syns[at] = 0;
		d->slot_finished[at] = 0;
		d->half_open -=
			(d->half_open + (1U << DETECTOR_DECAY_SHIFT) - 1) >> DETECTOR_DECAY_SHIFT;
	}
	d->slot = slot;
}

/* As many as a flood may leave behind: else its end would be seen late. */
INLINE u32 half_open_most(const struct detect_limits *l)
{
	u32 most = DETECTOR_HALF_OPEN_MOST;

	return l->half_open && l->half_open < most / 2 ? 2 * l->half_open : most;
}

INLINE void detect_half_open(struct detector *d, u64 syns, u64 finished)
{
	u64 open = d->half_open + syns, most = half_open_most(&d->limits);

	open = open > finished ? open - finished : 0;
	d->half_open = (u32)(open < most ? open : most);
}

/* Takes over the tallies' totals; sets the figures of the last second. */
INLINE void detect_count(struct detector *d, const struct tally *total, u64 now_ns)
{
	u64 slot = now_ns / DETECTOR_SLOT_NS, syns = total->syns - d->syns,
	    finished = total->finished - d->finished;

	d->syns = total->syns;
	d->finished = total->finished;
	if (!d->slot) { /* what was before the first look is not counted */
		d->slot = slot;
		return;
	}
	detect_turn(d, slot);
	d->slot_syns[slot_index(slot)] += (u32)syns;
	d->slot_finished[slot_index(slot)] += (u32)finished;
	detect_half_open(d, syns, finished);

	u64 all = 0, ended = 0;
	for (u32 i = 0; i < DETECTOR_SLOTS; i++) {
		all += d->slot_syns[i];
		ended += d->slot_finished[i];
	}
	d->now.syns = (u32)(all < ~0U ? all : ~0U);
	d->now.unfinished = all > ended ? (u32)((all - ended) * 100 / all) : 0;
	d->now.half_open = d->half_open;
	d->now.cause = detect_cause(&d->now, &d->limits, 1);
}

INLINE void detect_enter(struct detector *d, enum detector_phase phase, u64 now_ns)
{
	d->phase = phase;
	d->since_ns = now_ns;
	d->calm_from_ns = 0;
}

/* A flood that comes back before T2 has passed once more doubles it. */
INLINE void detect_begin(struct detector *d, u64 now_ns)
{
	u64 quick_ns = (u64)d->calm_ms * NS_PER_MS;
	u32 most = d->limits.calm_ms * DETECTOR_T2_MOST;

	if (d->times_off && d->calm_ms && now_ns - d->off_ns < quick_ns)
		d->calm_ms = d->calm_ms < most / 2 ? 2 * d->calm_ms : most;
	else
		d->calm_ms = d->limits.calm_ms;
	d->on = d->now;
	d->on_ns = now_ns;
	d->times_on++;
	detect_enter(d, DETECTOR_GRACE, now_ns);
}

INLINE void detect_end(struct detector *d, u64 now_ns)
{
	d->off = d->now;
	d->off_ns = now_ns;
	d->times_off++;
	detect_enter(d, DETECTOR_PASSIVE, now_ns);
}

/* True: all figures have been low for T2. */
INLINE bool detect_calm(struct detector *d, u64 now_ns)
{
	if (detect_cause(&d->now, &d->limits, 2)) {
		d->calm_from_ns = 0;
		return false;
	}
	if (!d->calm_from_ns)
		d->calm_from_ns = now_ns;
	return now_ns - d->calm_from_ns >= (u64)d->calm_ms * NS_PER_MS;
}

/* The phase that the figures call for. */
INLINE void detect_decide(struct detector *d, u64 now_ns)
{
	/* signed: what is new to an edge has its begin ahead, and learns until then */
	s64 passed_ms = (s64)(now_ns - d->since_ns) / NS_PER_MS;
	bool calm = d->phase != DETECTOR_PASSIVE && detect_calm(d, now_ns);

	switch (d->phase) {
	case DETECTOR_PASSIVE:
		if (d->now.cause)
			detect_begin(d, now_ns);
		break;
	case DETECTOR_GRACE:
		if (passed_ms >= DETECTOR_GRACE_MS)
			detect_enter(d, DETECTOR_ACTIVE, now_ns);
		break;
	case DETECTOR_ACTIVE:
		if (calm)
			detect_enter(d, DETECTOR_LEAVING, now_ns);
		break;
	default:
		if (d->now.cause)
			detect_enter(d, DETECTOR_ACTIVE, now_ns);
		else if (passed_ms >= DETECTOR_LEAVE_MS)
			detect_end(d, now_ns);
	}
}

_Static_assert((DETECTOR_SLOTS & (DETECTOR_SLOTS - 1)) == 0, "slots are a power of two");

#endif
