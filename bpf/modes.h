/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the edge does for a service whose mode is not plain `always`, and the
 * detector that decides it for `auto`. None of it is on the way of a packet to
 * a service that is always defended.
 */
#ifndef SMARTCOOKIE_MODES_H
#define SMARTCOOKIE_MODES_H

#include "agents.h"
#include "epoch.h"
#include "filter.h"
#include "lib/detect.h"
#include "lib/packet.h"

/* By service id. The timer alone writes what it has found; limits and
 * orders are user space's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICES_MAX + 1);
	__type(key, u32);
	__type(value, struct detector);
} detectors SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICES_MAX + 1);
	__type(key, u32);
	__type(value, struct tally);
} tallies SEC(".maps");

/* Set when loading. */
const volatile u32 cpu_count = 1;

enum {
	LOOKS_PER_TICK = 128, /* services, each on every CPU */
	DRAIN_EPOCHS = 2,     /* in which a cookie of ours may still come back */
};

enum conduct {
	CONDUCT_ACTS,
	CONDUCT_LEARNS,   /* likewise, but unknown packets pass */
	CONDUCT_MONITORS, /* decides and counts; everything passes */
	CONDUCT_DRAINS,   /* everything passes, but valid cookies count */
	CONDUCT_PASSES,   /* everything passes */
};

/* ---- what a mode makes of a packet --------------------------------------- */

INLINE enum conduct phase_conduct(const struct detector *d, const struct moment *now)
{
	u32 zero = 0;
	const struct agent_clock *c;

	if (d->phase == DETECTOR_GRACE)
		return CONDUCT_LEARNS;
	if (d->phase != DETECTOR_PASSIVE)
		return CONDUCT_ACTS;
	c = bpf_map_lookup_elem(&clock, &zero);
	/* signed: a packet's time is coarse, and may be before the timer's */
	if (d->times_off && c &&
	    (s64)(now->monotonic_ns - d->since_ns) < (s64)(DRAIN_EPOCHS * c->epoch_ns))
		return CONDUCT_DRAINS;
	return CONDUCT_PASSES;
}

/* Of any mode but `always` and `off`. */
NOINLINE u32 mode_conduct(u32 id, u32 mode, u64 now_ns)
{
	const struct detector *d = bpf_map_lookup_elem(&detectors, &id);
	struct moment now = { .monotonic_ns = now_ns };

	if (mode == MODE_MONITOR)
		return CONDUCT_MONITORS;
	if (mode == MODE_STARTING)
		return CONDUCT_LEARNS;
	return d ? phase_conduct(d, &now) : CONDUCT_ACTS; /* fail closed: cannot be */
}

INLINE enum conduct service_conduct(const struct service *service, u32 id, const struct moment *now)
{
	if (LIKELY(service->mode == MODE_ALWAYS))
		return CONDUCT_ACTS;
	return (enum conduct)mode_conduct(id, service->mode, now->monotonic_ns);
}

INLINE bool service_acts(u32 id, const struct service *service)
{
	struct moment now = {};

	return service->mode != MODE_OFF && service_conduct(service, id, &now) <= CONDUCT_LEARNS;
}

/* ---- counts for the detector ---------------------------------------------- */

INLINE struct tally *tally_of(u32 id)
{
	return bpf_map_lookup_elem(&tallies, &id);
}

/* A flow that is in the filter has finished a handshake before: ports are used
 * again, and then nothing else would tell. */
NOINLINE void tally_syn(u32 id, const struct flow *flow)
{
	struct tally *t = tally_of(id);

	if (!t || !flow)
		return;
	t->syns++;
	if (filter_has(flow))
		t->finished++;
}

/* A connection that nobody has seen before. */
NOINLINE void tally_finished(u32 id)
{
	const struct service *service = service_get(id);
	struct tally *t = tally_of(id);

	if (t && service && (service->mode == MODE_AUTO || service->mode == MODE_MONITOR))
		t->finished++;
}

/* ---- the timer's part ----------------------------------------------------- */

struct tally_total {
	u32 id;
	struct tally sum;
};

static long tally_add(u32 cpu, struct tally_total *t)
{
	const struct tally *one = bpf_map_lookup_percpu_elem(&tallies, &t->id, cpu);

	if (!one)
		return 1;
	t->sum.syns += one->syns;
	t->sum.finished += one->finished;
	return 0;
}

NOINLINE void detector_look(u32 id, struct service *service, u64 now_ns)
{
	struct detector *d = bpf_map_lookup_elem(&detectors, &id);
	struct tally_total total = { .id = id };

	if (!d || !service)
		return;
	if (service->mode == MODE_STARTING) {
		/* signed, as in detect_decide */
		if ((s64)(now_ns - d->since_ns) >= (s64)DETECTOR_GRACE_MS * (s64)NS_PER_MS)
			service->mode = MODE_ALWAYS;
		return;
	}
	bpf_loop(cpu_count, tally_add, &total, 0);
	detect_count(d, &total.sum, now_ns);
	if (service->mode != MODE_AUTO)
		return;
	bool acted = d->phase != DETECTOR_PASSIVE;
	detect_decide(d, now_ns);
	if (acted != (d->phase != DETECTOR_PASSIVE))
		__sync_fetch_and_add(&acting_changes, 1); /* a full barrier before it */
}

struct looking {
	u64 now_ns;
	u32 first;
};

static long look_step(u32 i, struct looking *l)
{
	u32 id = 1 + (l->first + i) % (service_count ? service_count : 1);
	struct service *service = bpf_map_lookup_elem(&services, &id);

	if (service && service->mode != MODE_OFF && service->mode != MODE_ALWAYS)
		detector_look(id, service, l->now_ns);
	return 0;
}

/* All services on each tick, or as many as are looked at in one. */
INLINE void detect(u32 *next, u64 now_ns)
{
	struct looking l = { .now_ns = now_ns, .first = *next };
	u32 times = service_count < LOOKS_PER_TICK ? service_count : LOOKS_PER_TICK;

	bpf_loop(times, look_step, &l, 0);
	*next = l.first + times;
}

#endif
