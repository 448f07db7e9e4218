/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The data plane's pure part, outside the kernel. */
#ifndef SMARTCOOKIE_HOST_LIB_H
#define SMARTCOOKIE_HOST_LIB_H

#include <linux/types.h>

struct options_cursor;

/* The kernel's helper: calls until it is told to stop. */
static long bpf_loop(__u32 times, long (*step)(__u32, struct options_cursor *),
		     struct options_cursor *context, __u64 flags)
{
	__u32 i = 0;

	(void)flags;
	while (i < times && !step(i, context))
		i++;
	return i;
}

#include "../../../bpf/lib/back.h"
#include "../../../bpf/lib/bimodal.h"
#include "../../../bpf/lib/bucket.h"
#include "../../../bpf/lib/challenge.h"
#include "../../../bpf/lib/cookie.h"
#include "../../../bpf/lib/detect.h"
#include "../../../bpf/lib/options.h"
#include "../../../bpf/lib/packet.h"
#include "../../../bpf/lib/siphash.h"
#include "../../../bpf/lib/synack.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that end where their memory ends, so that a read beyond is found. As
 * in a driver's buffers, frames begin so that what follows the Ethernet header
 * is aligned to words. */
struct exact {
	u8 *memory, *data, *end;
};

enum shift { ALIGNED = 0, FRAME = 2 };

static inline struct exact exact_copy(const u8 *bytes, size_t length, enum shift shift)
{
	struct exact e = { .memory = malloc(length + shift) };

	if (!e.memory)
		abort();
	e.data = e.memory + shift;
	e.end = e.data + length;
	if (length)
		memcpy(e.data, bytes, length);
	return e;
}

static inline void exact_free(struct exact *e)
{
	free(e->memory);
}

static inline bool flow_equals(const struct flow *a, const struct flow *b)
{
	size_t address = a->v6 ? 16 : 4;

	return a->v6 == b->v6 && a->ports == b->ports &&
	       !memcmp(a->source, b->source, address) &&
	       !memcmp(a->destination, b->destination, address);
}

/* The shortcut for plain frames must find what the walk finds, or nothing. */
static inline void plain_agrees(const struct exact *frame, enum parsed parsed,
				const struct packet *p)
{
	struct packet plain;

	memset(&plain, 0, sizeof(plain));
	if (!packet_plain(frame->data, frame->end, &plain))
		return;
	if (parsed != PARSED_TCP || !flow_equals(&plain.flow, &p->flow) || plain.seq != p->seq ||
	    plain.ack != p->ack || plain.flags != p->flags || plain.network != p->network ||
	    plain.transport != p->transport || plain.tcp_length != p->tcp_length ||
	    plain.addressed != p->addressed)
		abort();
}

static inline enum parsed frame_parse(const struct exact *frame, struct packet *p)
{
	memset(p, 0, sizeof(*p));
	enum parsed parsed = packet_frame(frame->data, frame->end, p);

	plain_agrees(frame, parsed, p);
	return parsed;
}

#endif
