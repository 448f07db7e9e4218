/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A packet's frame becomes that of its answer. */
#ifndef SMARTCOOKIE_REPLY_H
#define SMARTCOOKIE_REPLY_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "lib/synack.h"

/* A veth delivers what XDP_TX sends only if its other end has an XDP program,
 * but what is redirected to it also if that has GRO. Set when loading. */
const volatile bool answer_by_redirect = false;

/* Frames may lie in several buffers (xdp.frags); set when loading, where the
 * MTU asks for it. */
const volatile bool multi_buffer = false;

INLINE void swap_addresses(u16 *mac)
{
	for (int i = 0; i < 3; i++) {
		u16 other = mac[i];

		mac[i] = mac[3 + i];
		mac[3 + i] = other;
	}
}

enum { LINK_LENGTH_MAX = ETHERNET_LENGTH + VLAN_TAGS_MAX * VLAN_LENGTH, GROW_MASK = 0x1f };

/* Longer at the head, where every driver has room for XDP; the link header
 * moves there. What is behind it is written anew anyway. */
INLINE bool frame_grow_head(struct xdp_md *ctx, const struct packet *p, u32 delta)
{
	if (bpf_xdp_adjust_head(ctx, -(int)delta))
		return false;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	u16 *to = data;
	const u16 *from = data + (delta & GROW_MASK);

	if ((void *)to + LINK_LENGTH_MAX > end || (const void *)from + LINK_LENGTH_MAX > end)
		return false;
	for (u32 i = 0; i < LINK_LENGTH_MAX / 2 && i < p->network / 2; i++)
		to[i] = from[i];
	return true;
}

/* A veth leaves behind a frame what its allocation was rounded up by: 2 bytes
 * where a client's SYN asks for SACK or a scale alone. */
INLINE bool frame_resize(struct xdp_md *ctx, const struct packet *p, s32 delta)
{
	return !bpf_xdp_adjust_tail(ctx, delta) ||
	       (delta > 0 && frame_grow_head(ctx, p, (u32)delta));
}

/* A SYN that every station gets; an answer would come from no one (RFC 1122
 * 4.2.3.10). */
INLINE bool sent_to_many(const struct xdp_md *ctx)
{
	const u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	return data + 1 > end || (data[0] & 1);
}

/* Makes room for so many bytes from the IP header on and turns the link header
 * around; the VLAN tags stay. */
INLINE bool answer_fit(struct xdp_md *ctx, const struct packet *p, u32 length)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	u32 want = p->network + length;
	s32 delta = (s32)want - (multi_buffer ? (s32)bpf_xdp_get_buff_len(ctx) : (s32)(end - data));

	if (delta && !frame_resize(ctx, p, delta))
		return false;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if (data + ETHERNET_LENGTH > end)
		return false;
	swap_addresses(data);
	return true;
}

INLINE bool answer_write(struct xdp_md *ctx, const struct packet *p, const struct tcp_options *o,
			 const struct synack *s)
{
	if (!answer_fit(ctx, p, synack_length(p, o)))
		return false;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	return synack_write(packet_at_network(data, p), end, p, o, s);
}

/* A segment without data or options, in the place of the packet. */
INLINE bool answer_write_back(struct xdp_md *ctx, const struct packet *p, const struct back *b)
{
	if (!answer_fit(ctx, p, back_length(&p->flow)))
		return false;
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	return back_write(packet_at_network(data, p), end, &p->flow, b);
}

#endif
