/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef SMARTCOOKIE_TYPES_H
#define SMARTCOOKIE_TYPES_H

#include <stdbool.h>
#include <linux/types.h>
#include "../../contract/contract.h"

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s16 s16;
typedef __s64 s64;

#define INLINE static inline __attribute__((always_inline))
/* A function of its own for the verifier, which checks it once per caller
 * rather than on every path through the caller. */
#define NOINLINE static __attribute__((noinline))
/* One that the verifier checks alone, for any arguments: once, and not for
 * each state that a caller may be in. It asks for NULL, which no caller passes:
 * those early returns never happen. */
#define GLOBAL __attribute__((noinline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Network to host order and back; both targets that we build for, BPF and the
 * host tests, are little-endian. */
#define BE16(x) __builtin_bswap16(x)
#define BE32(x) __builtin_bswap32(x)

INLINE u16 load16(const u8 *p)
{
	return (u16)(p[0] << 8 | p[1]);
}

#endif
