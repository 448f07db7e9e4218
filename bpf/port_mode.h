/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The mode of each port (lib/bimodal.h), and what the daemon hears of it. A
 * port is a service of its own: its id is its place in these tables. */
#ifndef SMARTCOOKIE_PORT_MODE_H
#define SMARTCOOKIE_PORT_MODE_H

#include "lib/bimodal.h"
#include "service.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICES_MAX + 1);
	__type(key, u32);
	__type(value, struct bimodal);
} port_modes SEC(".maps");

/* SYNs to each port, whatever became of them. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SERVICES_MAX + 1);
	__type(key, u32);
	__type(value, u64);
} port_syns SEC(".maps");

/* How many ports are in flood mode. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} flooded SEC(".maps");

enum change_cause {
	CHANGE_SYNS = 1, /* as many SYNs as the limit within T1 */
	CHANGE_QUEUE,    /* the kernel's queue was full */
	CHANGE_CALM,     /* neither, for T2 */
	CHANGE_ORDERED,  /* the service's mode is always */
};

/* A change of mode, with the figures that caused it. */
struct mode_change {
	u64 lasted_ns; /* the mode that has ended; 0: since ever */
	u64 window_ns; /* in which the SYNs came, up to T1 */
	u64 calm_ns;   /* T2 of the flood */
	u32 service;
	u32 syns;
	u32 cause; /* enum change_cause */
	u32 changes;
};

/* For the daemon; full while none runs, and then nothing is lost but its log. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} mode_changes SEC(".maps");

/* Named so that the daemon's Go is generated from it. */
struct generated_modes {
	enum bimodal_mode *mode;
	enum change_cause *cause;
	struct mode_change change;
} *generated_modes __attribute__((unused));

/* Set when loading. */
const volatile struct bimodal_limits flood_limits = {};
const volatile bool flood_always = false; /* the mode of all is always */

INLINE struct bimodal_limits limits_now(void)
{
	return (struct bimodal_limits){
		.window_ns = flood_limits.window_ns,
		.calm_ns = flood_limits.calm_ns,
		.calm_most_ns = flood_limits.calm_most_ns,
		.syns = flood_limits.syns,
	};
}

INLINE struct bimodal *mode_of(u32 service)
{
	return bpf_map_lookup_elem(&port_modes, &service);
}

INLINE void syn_count(u32 service)
{
	u64 *n = bpf_map_lookup_elem(&port_syns, &service);

	if (n)
		(*n)++;
}

INLINE bool any_flooded(void)
{
	u32 zero = 0;
	const u32 *ports = bpf_map_lookup_elem(&flooded, &zero);

	return flood_always || (ports && *ports);
}

/* `was`: as it was before the change. */
GLOBAL int mode_changed(u32 service, const struct bimodal *was, enum change_cause cause, u64 now_ns)
{
	struct bimodal *b = mode_of(service);
	u32 zero = 0, *ports = bpf_map_lookup_elem(&flooded, &zero);

	if (!b || !was || !ports)
		return 0; /* cannot be: the verifier's doubt */
	__sync_fetch_and_add(ports, cause == CHANGE_CALM ? -1 : 1);
	struct mode_change *c = bpf_ringbuf_reserve(&mode_changes, sizeof(*c), 0);
	if (!c)
		return 0;
	*c = (struct mode_change){
		.lasted_ns = was->changed_ns && bimodal_passed(was->changed_ns, now_ns, 0) ?
				     now_ns - was->changed_ns :
				     0,
		.window_ns = now_ns - b->began_ns,
		.calm_ns = b->calm_ns,
		.service = service,
		.syns = b->syns,
		.cause = cause,
		.changes = b->changes,
	};
	bpf_ringbuf_submit(c, 0);
	return 0;
}

INLINE void mode_press(u32 service, struct bimodal *b, enum change_cause cause, u64 now_ns)
{
	struct bimodal_limits limits = limits_now();
	struct bimodal was = { .changed_ns = b->changed_ns };

	if (UNLIKELY(bimodal_press(b, &limits, now_ns)))
		mode_changed(service, &was, cause, now_ns);
}

INLINE bool service_is_always(const struct service *s)
{
	return s->mode == MODE_ALWAYS || s->mode == MODE_STARTING;
}

/* Whether the port is in flood mode now. */
INLINE bool mode_floods(const struct service *s, u32 service, struct bimodal *b, u64 now_ns)
{
	struct bimodal was = { .changed_ns = b->changed_ns };

	if (service_is_always(s))
		return true;
	if (UNLIKELY(bimodal_rest(b, now_ns)))
		mode_changed(service, &was, CHANGE_CALM, now_ns);
	return b->mode == BIMODAL_FLOOD;
}

static long mode_rest_step(u32 service, u64 *now_ns)
{
	const struct service *s = service_get(service);
	struct bimodal *b = mode_of(service);

	if (!s || !b)
		return 1;
	mode_floods(s, service, b, *now_ns);
	return 0;
}

/* Run by the daemon once a second: a port that gets no packet any more ends its
 * flood too. */
SEC("syscall")
int modes_rest(void *ctx)
{
	u64 now_ns = bpf_ktime_get_ns(); /* the coarse one is not for such programs */

	(void)ctx;
	bpf_loop(SERVICES_MAX + 1, mode_rest_step, &now_ns, 0);
	return 0;
}

#endif
