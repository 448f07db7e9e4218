/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What becomes of frames after their verdict: drivers and redirects lose some
 * without telling the program. The kernel's tracepoints tell us.
 */
#ifndef SMARTCOOKIE_TRANSMIT_H
#define SMARTCOOKIE_TRANSMIT_H

#include "maps.h"

#include <bpf/bpf_tracing.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct net_device {
	int ifindex;
};
#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TRANSMIT_COUNT);
	__type(key, u32);
	__type(value, u64);
} transmit_failures SEC(".maps");

/* Our own devices; the tracepoints see all. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u8);
} devices SEC(".maps");

INLINE void transmit_failed(u32 ifindex, enum transmit_failure cause, u64 frames)
{
	u32 key = cause;
	u64 *n = bpf_map_lookup_elem(&transmit_failures, &key);

	if (n && bpf_map_lookup_elem(&devices, &ifindex))
		*n += frames;
}

SEC("tp_btf/xdp_exception")
int BPF_PROG(transmit_exception, const struct net_device *device, const void *prog, u32 action)
{
	transmit_failed((u32)device->ifindex, TRANSMIT_EXCEPTION, 1);
	return 0;
}

SEC("tp_btf/xdp_bulk_tx")
int BPF_PROG(transmit_bulk, const struct net_device *device, int sent, int drops, int error)
{
	if (drops > 0)
		transmit_failed((u32)device->ifindex, TRANSMIT_BULK_TX, (u64)drops);
	return 0;
}

SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(transmit_devmap, const struct net_device *from, const struct net_device *to, int sent,
	     int drops, int error)
{
	if (drops > 0)
		transmit_failed((u32)to->ifindex, TRANSMIT_DEVMAP, (u64)drops);
	return 0;
}

SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(transmit_redirect, const struct net_device *device, const void *prog)
{
	transmit_failed((u32)device->ifindex, TRANSMIT_REDIRECT, 1);
	return 0;
}

/* Sends one frame back out, to see whether that works on a device at all. */
SEC("xdp")
int transmit_probe(struct xdp_md *ctx)
{
	return XDP_TX;
}

#endif
