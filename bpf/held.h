/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that wait for a tenant's SYN-ACK. Its kernel is out of reach: nothing
 * can be put behind the SYN in its queue. So their bytes are kept, and the
 * SYN-ACK, which nobody else needs, carries them back: it is written over with
 * each of them and sent to the tenant. No timer, no daemon.
 */
#ifndef SMARTCOOKIE_HELD_H
#define SMARTCOOKIE_HELD_H

#include "lib/checksum.h"
#include "translate.h"

enum held_limits {
	HELD_PACKETS = 12,   /* of a connection: an initial window, and a bare ACK */
	HELD_HEAD = 255,     /* bytes before the payload, at most */
	HELD_PAYLOAD = 1500, /* larger ones come again */
	HELD_CHUNK = 512,    /* that bpf_csum_diff takes at a time */
	HELD_CHUNKS = 4,
	HELD_FRAME = 2304,   /* HELD_HEAD, and chunks behind it */
	TCP_SEQUENCE_AT = 4, /* offsets in headers */
	TCP_FLAGS_AT = 13,
	TCP_CHECKSUM_AT = 16,
	IP4_TOTAL_AT = 2,
	IP4_CHECKSUM_AT = 10,
	IP6_PAYLOAD_AT = 4,
};

/* Copied to the stack for each look-up: before Linux 6.4 the verifier takes no
 * argument of a global function for a key ("type=mem expected=fp"). */
struct held_key {
	struct endpoints ends;
	u32 cookie;
	u32 index;
};

struct held {
	u16 length;
	u16 network, transport; /* offsets */
	u16 partial;            /* the checksum's field where a device, or nobody, makes the sum */
	u8 frame[HELD_FRAME];
};

/* The size is set when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct held_key);
	__type(value, struct held);
} held SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct held);
} held_scratch SEC(".maps");

/* A part of a packet's payload, which is a packet of its own on the wire. */
struct slice {
	u32 offset, length;
	bool whole; /* it is all there is */
	bool last;
};

/* Whose sum the field of the TCP checksum waits for. */
enum held_sum { HELD_CORRUPT = 0, HELD_SUM_WHOLE, HELD_SUM_PARTIAL };

INLINE u64 held_add(const struct held *h, u32 length)
{
	u32 padded = (length + 3) & ~3U, at = h->transport & HELD_HEAD;
	s64 sum = 0;

	for (u32 i = 0; i < HELD_CHUNKS; i++) {
		u32 done = i * HELD_CHUNK;

		if (done >= padded)
			break;
		u32 n = padded - done > HELD_CHUNK ? HELD_CHUNK : padded - done;
		sum = bpf_csum_diff(NULL, 0, (__be32 *)(h->frame + at + done), n, (u32)sum);
		if (sum < 0)
			return 0;
	}
	return (u64)sum;
}

/*
 * A sum that a device was to make is made here, for the packet may leave in a
 * buffer of another kind. One that is there and wrong stays lost: nothing corrupt
 * gets a right sum.
 */
INLINE enum held_sum held_check(struct held *h, const struct packet *p, u32 length, bool whole)
{
	u16 *check = (u16 *)(h->frame + (h->transport & HELD_HEAD) + TCP_CHECKSUM_AT);
	u64 pseudo = pseudo_sum(&p->flow, length);
	u16 partial = (u16)~checksum_fold(pseudo);
	bool waits = !whole || *check == partial;

	h->partial = partial;
	if (!waits)
		return checksum_fold(pseudo + held_add(h, length)) ? HELD_CORRUPT : HELD_SUM_WHOLE;
	*check = 0;
	*check = checksum_fold(pseudo + held_add(h, length));
	return HELD_SUM_PARTIAL;
}

/* What the device would have written, had it cut the packet up. */
INLINE void slice_header(struct held *h, const struct packet *p, const struct slice *s)
{
	u8 *ip = h->frame + (h->network & NETWORK_MASK);
	u8 *tcp = h->frame + (h->transport & HELD_HEAD);
	u32 length = (u32)h->length - p->network;

	*(u32 *)(tcp + TCP_SEQUENCE_AT) = BE32(p->seq + s->offset);
	if (!s->last)
		tcp[TCP_FLAGS_AT] &= (u8) ~(TCP_FIN | TCP_PSH);
	if (p->flow.v6) {
		*(u16 *)(ip + IP6_PAYLOAD_AT) = BE16((u16)(length - IP6_LENGTH));
		return;
	}
	u16 *total = (u16 *)(ip + IP4_TOTAL_AT), *check = (u16 *)(ip + IP4_CHECKSUM_AT);
	u16 was = *total, is = BE16((u16)length);
	*total = is;
	*check = checksum_fold((u64)(u16) ~*check + (u16)~was + is);
}

/* One packet, into the scratch. */
GLOBAL int hold_slice(struct __sk_buff *skb, const struct packet *p, const struct slice *s)
{
	u32 zero = 0;
	struct held *h = bpf_map_lookup_elem(&held_scratch, &zero);

	if (!h || !p || !s)
		return HELD_CORRUPT;
	u32 head = (u32)p->transport + p->tcp_length, rest = s->length - 1, n = 0;
	if (head < TCP_LENGTH || head > HELD_HEAD || bpf_skb_load_bytes(skb, 0, h->frame, head))
		return HELD_CORRUPT;
	asm volatile("" : "+r"(rest)); /* Linux 6.1 does not learn from n != 0 ("size=0") */
	if (rest < HELD_PAYLOAD) {
		n = rest + 1;
		if (bpf_skb_load_bytes(skb, head + s->offset, h->frame + head, n))
			return HELD_CORRUPT;
	} else if (s->length) {
		return HELD_CORRUPT;
	}
	*(u32 *)(h->frame + head + n) = 0; /* the sum is of whole words */
	h->network = p->network;
	h->transport = p->transport;
	h->length = (u16)(head + n);
	if (!s->whole)
		slice_header(h, p, s);
	return (int)held_check(h, p, p->tcp_length + n, s->whole);
}

/* Payload as the IP header says: a frame may be padded. */
INLINE u32 payload_length(struct __sk_buff *skb, const struct packet *p)
{
	u32 head = (u32)p->transport + p->tcp_length, at = IP4_TOTAL_AT, extra = 0;
	u16 field;

	if (p->flow.v6) {
		at = IP6_PAYLOAD_AT;
		extra = IP6_LENGTH;
	}
	u32 room = skb->len > head ? skb->len - head : 0;
	if (bpf_skb_load_bytes(skb, p->network + at, &field, sizeof(field)) || !field)
		return room; /* merged beyond what the field can say */
	u32 end = p->network + BE16(field) + extra;
	u32 length = end > head ? end - head : 0;
	return length < room ? length : room;
}

INLINE bool held_keep(const struct held_key *key)
{
	u32 zero = 0;
	const struct held *h = bpf_map_lookup_elem(&held_scratch, &zero);

	return h && !bpf_map_update_elem(&held, key, h, BPF_ANY);
}

/* Keeps a packet of a handshake, or the parts that it was merged of, as far as
 * there is room. HELD_CORRUPT: nothing is kept. */
GLOBAL int hold(struct __sk_buff *skb, const struct packet *p)
{
	struct held_key key = {};

	if (!p)
		return HELD_CORRUPT;
	endpoints_of(&p->flow, false, &key.ends);
	struct translation *t = bpf_map_lookup_elem(&half_open, &key.ends);
	if (!t)
		return HELD_CORRUPT;
	key.cookie = t->cookie;
	u32 payload = payload_length(skb, p), size = skb->gso_size;
	struct slice s = { .whole = !size || payload <= size };
	u8 count = t->requeues & TRANSLATION_HELD_MASK;
	int kept = HELD_CORRUPT;

	for (u32 i = 0; i < HELD_PACKETS && count < HELD_PACKETS && !s.last; i++) {
		u32 rest = payload - s.offset;

		s.last = s.whole || rest <= size;
		s.length = s.last ? rest : size;
		key.index = count;
		int kind = hold_slice(skb, p, &s);
		if (kind == HELD_CORRUPT || !held_keep(&key))
			break;
		kept = kind;
		count++;
		s.offset += s.length;
	}
	t->requeues = (t->requeues & (u8)~TRANSLATION_HELD_MASK) | count;
	return kept;
}

/* ---- on their way -------------------------------------------------------- */

/* Whether a device is to make the packet's checksum: then the field has the sum
 * of what is beside the segment. */
INLINE bool sum_is_partial(struct __sk_buff *skb, const struct packet *p, u32 length)
{
	u16 check;

	return !bpf_skb_load_bytes(skb, p->transport + TCP_CHECKSUM_AT, &check, sizeof(check)) &&
	       check == (u16)~checksum_fold(pseudo_sum(&p->flow, length));
}

/* Writes a held packet over this one. `partial`: whose sum a device makes. */
GLOBAL bool held_write(struct __sk_buff *skb, const struct held_key *key, bool partial)
{
	if (!key)
		return false;
	struct held_key own = *key;
	const struct held *h = bpf_map_lookup_elem(&held, &own);
	if (!h)
		return false;
	u32 length = h->length;
	if (length < TCP_LENGTH || length > HELD_HEAD + HELD_PAYLOAD ||
	    bpf_skb_change_tail(skb, length, 0) ||
	    bpf_skb_store_bytes(skb, 0, h->frame, length, BPF_F_RECOMPUTE_CSUM))
		return false;
	return !partial || !bpf_skb_store_bytes(skb, h->transport + TCP_CHECKSUM_AT, &h->partial,
						sizeof(h->partial), 0);
}

/* Whether the packet can carry what is held: where a device makes its checksum,
 * it begins where this one's segment does. */
INLINE bool held_fits(const struct held_key *key, const struct packet *p)
{
	const struct held *h = bpf_map_lookup_elem(&held, key);

	return h && h->transport == p->transport && h->network == p->network;
}

#endif
