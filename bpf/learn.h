/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows that an agent announces go into the filter: the daemon hands them over
 * a message at a time, so that the filter's hash is here alone. */
#ifndef SMARTCOOKIE_LEARN_H
#define SMARTCOOKIE_LEARN_H

#include "filter.h"
#include "service.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct announcement);
} announcements SEC(".maps");

static long learn_flow(u32 i, void *unused)
{
	u32 zero = 0;
	struct announcement *a = bpf_map_lookup_elem(&announcements, &zero);

	(void)unused;
	if (!a || i >= ANNOUNCED_MAX)
		return 1;
	const struct announced *from = &a->flow[i];
	struct flow flow = { .ports = from->ports, .v6 = from->v6 };
	for (int w = 0; w < 4; w++) {
		flow.source[w] = from->client[w];
		flow.destination[w] = from->server[w];
	}
	if (service_search(flow.destination, flow.v6, flow_destination_port(&flow)) == SERVICE_NONE)
		return 0;
	filter_add(&flow);
	a->learned++;
	return 0;
}

/* Never attached: the daemon runs it. ("Sleepable programs can only use array,
 * hash, ringbuf and local storage maps": that rules out the type syscall.) */
SEC("raw_tp")
int learn_flows(void *ctx)
{
	u32 zero = 0;
	struct announcement *a = bpf_map_lookup_elem(&announcements, &zero);

	(void)ctx;
	if (!a)
		return -1;
	a->learned = 0;
	u32 count = a->count;
	return bpf_loop(count < ANNOUNCED_MAX ? count : ANNOUNCED_MAX, learn_flow, NULL, 0) < 0;
}

#endif
