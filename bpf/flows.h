/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The translated connections that are established, and how they are found. */
#ifndef SMARTCOOKIE_FLOWS_H
#define SMARTCOOKIE_FLOWS_H

#include "lib/flow.h"
#include "maps.h"

/* Nothing evicts what is established: when this is full, newcomers wait. The
 * size is set when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct endpoints);
	__type(value, struct translation);
} flows SEC(".maps");

INLINE u32 client_scale(const struct translation *t)
{
	return t->options & TRANSLATION_SCALE_MASK;
}

INLINE u32 announced_scale(const struct translation *t)
{
	return t->options >> TRANSLATION_ANNOUNCED_SHIFT & TRANSLATION_SCALE_MASK;
}

INLINE u32 kernel_scale(const struct translation *t)
{
	return t->options >> TRANSLATION_KERNEL_SHIFT & TRANSLATION_SCALE_MASK;
}

INLINE bool stamps_are_shifted(const struct translation *t)
{
	return t->options & TRANSLATION_TIMESTAMPS;
}

INLINE u16 translation_options(u32 client, u32 announced, u32 kernel, bool timestamps)
{
	return (u16)(client | announced << TRANSLATION_ANNOUNCED_SHIFT |
		     kernel << TRANSLATION_KERNEL_SHIFT |
		     (timestamps ? TRANSLATION_TIMESTAMPS : 0));
}

INLINE bool translation_lives(const struct translation *t)
{
	return !t->expires_ns || (s64)(t->expires_ns - bpf_ktime_get_coarse_ns()) > 0;
}

#endif
