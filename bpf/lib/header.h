/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A copy of a TCP header in which numbers are changed, with the difference
 * that this makes to the checksum (RFC 1624). */
#ifndef SMARTCOOKIE_HEADER_H
#define SMARTCOOKIE_HEADER_H

#include "options.h"
#include "packet.h"

enum { TCP_OPTION_SACK_BLOCKS = 5, SACK_BLOCKS_MAX = 4 };

/* What is added to the numbers in options; 0 changes nothing. */
struct shift {
	u32 sack, tsval, tsecr;
};

enum { HEADER_MASK = 63, HEADER_ROOM = HEADER_MASK + 5 };

struct header {
	union {
		u32 word[HEADER_ROOM / 4];
		u8 byte[HEADER_ROOM];
	};
	u32 length;
	u32 offset; /* of the option that comes next */
	u32 stamps; /* of TSval, 0: none */
	u32 blocks; /* of SACK's, and how many numbers they are */
	u32 edges;
	u64 sum; /* new less old, of words as they lie in memory */
	struct shift shift;
};

INLINE void header_account(struct header *h, u32 was, u32 is)
{
	h->sum += (u64)(u32)~was + is;
}

INLINE u32 header_difference(const struct header *h)
{
	u64 sum = (h->sum & 0xffffffff) + (h->sum >> 32);

	return (u32)((sum & 0xffffffff) + (sum >> 32));
}

INLINE void header_put(struct header *h, u32 index, u32 value_be)
{
	header_account(h, h->word[index], value_be);
	h->word[index] = value_be;
}

/* An offset that the verifier sees within the copy, whatever it has forgotten;
 * the compiler knows better and would leave the mask out. */
INLINE u8 *header_at(struct header *h, u32 offset)
{
	asm volatile("" : "+r"(offset));
	return h->byte + (offset & HEADER_MASK);
}

/* Adds to a number anywhere in the options, byte by byte: the verifier wants
 * words on its stack aligned ("misaligned stack access"). */
INLINE void header_add(struct header *h, u32 offset, u32 more)
{
	u8 *b = header_at(h, offset);
	u32 was = (u32)b[0] << 24 | (u32)b[1] << 16 | (u32)b[2] << 8 | b[3], is = was + more;

	b[0] = (u8)(is >> 24);
	b[1] = (u8)(is >> 16);
	b[2] = (u8)(is >> 8);
	b[3] = (u8)is;
	if (offset & 1) { /* its bytes lie in the other halves of the sum's words */
		was = was << 8 | was >> 24;
		is = is << 8 | is >> 24;
	}
	header_account(h, BE32(was), BE32(is));
}

/* Finds one option; returns 1 to stop, as where the kernel's own walk ends. */
static long header_step(u32 i, struct header *h)
{
	u32 at = h->offset, length;

	(void)i;
	if (at < TCP_LENGTH || at >= h->length || *header_at(h, at) == TCP_OPTION_END)
		return 1;
	if (*header_at(h, at) == TCP_OPTION_NOP) {
		h->offset = at + 1;
		return 0;
	}
	length = *header_at(h, at + 1);
	if (length < 2 || at + length > h->length)
		return 1;
	if (*header_at(h, at) == TCP_OPTION_TIMESTAMPS && length == 10)
		h->stamps = at + 2;
	if (*header_at(h, at) == TCP_OPTION_SACK_BLOCKS) {
		h->blocks = at + 2;
		h->edges = (length - 2) / 4;
	}
	h->offset = at + length;
	return 0;
}

/* One edge of a SACK block. */
static long header_edge(u32 i, struct header *h)
{
	if (i >= h->edges)
		return 1;
	header_add(h, h->blocks + 4 * i, h->shift.sack);
	return 0;
}

/* Nearly all packets have timestamps alone, where RFC 7323 (appendix A) puts
 * them. */
INLINE void header_options(struct header *h)
{
	struct shift *s = &h->shift;

	if (h->length == TCP_LENGTH || !(s->sack | s->tsval | s->tsecr))
		return;
	if (LIKELY(h->length == TCP_LENGTH + 12 && h->word[5] == BE32(0x0101080a))) {
		header_put(h, 6, BE32(BE32(h->word[6]) + s->tsval));
		header_put(h, 7, BE32(BE32(h->word[7]) + s->tsecr));
		return;
	}
	h->offset = TCP_LENGTH;
	bpf_loop(TCP_OPTIONS_MAX, header_step, h, 0);
	if (h->stamps) {
		header_add(h, h->stamps, s->tsval);
		header_add(h, h->stamps + 4, s->tsecr);
	}
	if (h->edges && s->sack)
		bpf_loop(2 * SACK_BLOCKS_MAX, header_edge, h, 0);
}

#endif
