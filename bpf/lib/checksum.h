/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The Internet checksum (RFC 1071) over 32-bit words as they lie in memory. */
#ifndef SMARTCOOKIE_CHECKSUM_H
#define SMARTCOOKIE_CHECKSUM_H

#include "types.h"

INLINE u16 checksum_fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (u16)~sum;
}

#endif
