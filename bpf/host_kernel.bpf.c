// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The host shape with the kernel's own cookies. The walk is in host_kernel.h. */
#include "host_kernel.h"
#include "transmit.h"

SEC("xdp")
int host_arrive(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct packet p;

	if (UNLIKELY(!packet_plain(data, end, &p)) && packet_frame(data, end, &p) != PARSED_TCP)
		return pass_up(SERVICE_NONE, VERDICT_PASS_OTHER); /* the kernel reassembles */
	if (flags_open(p.flags))
		return syn_arrives(ctx, &p);
	if (LIKELY(!any_flooded()))
		return pass_up(SERVICE_NONE, VERDICT_PASS_CALM);
	return stray_arrives(ctx, &p);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
