// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For benchmarks: the verified filter and the paper's by themselves, asked for
 * flows by number; and a gate in the place of an edge, which lets packets
 * through as the paper's filter says.
 */
#include "bench_paper.h"

/* ---- flows by number -------------------------------------------------- */

/* What a run asks for, and what it has found. */
u64 first, count, found;

enum { FLOW_NUMBERS = 48 /* bits */ };

/* All different: the multiplier is odd. */
INLINE struct flow numbered_flow(u64 n)
{
	u64 x = (n * 0x9e3779b97f4bULL) & ((1ULL << FLOW_NUMBERS) - 1);
	struct flow f = {
		.source[0] = (u32)(x >> 16),
		.destination[0] = 0xc6336402, /* 198.51.100.2 */
		.ports = (u32)x << 16 | 80,
	};

	return f;
}

static long ours_add_one(u64 i, void *unused)
{
	struct flow f = numbered_flow(first + i);

	filter_add(&f);
	return 0;
}

static long ours_has_one(u64 i, void *unused)
{
	struct flow f = numbered_flow(first + i);

	found += filter_has(&f);
	return 0;
}

static long paper_has_one(u64 i, void *unused)
{
	struct flow f = numbered_flow(first + i);

	found += paper_has(&f);
	return 0;
}

SEC("syscall") int ours_add(void *ctx)
{
	bpf_loop((u32)count, ours_add_one, NULL, 0);
	return 0;
}

SEC("syscall") int ours_has(void *ctx)
{
	bpf_loop((u32)count, ours_has_one, NULL, 0);
	return 0;
}

SEC("syscall") int paper_has_all(void *ctx)
{
	bpf_loop((u32)count, paper_has_one, NULL, 0);
	return 0;
}

/* ---- the gate --------------------------------------------------------- */

struct gate_frame {
	u8 destination[6];
	u8 source[6];
	u16 type_be;
	u8 version_ihl;
	u8 tos;
	u16 length_be;
	u16 id_be;
	u16 fragment_be;
	u8 ttl;
	u8 protocol;
	u16 checksum;
	u32 from_be;
	u32 to_be;
	u16 from_port_be;
	u16 to_port_be;
} __attribute__((packed));

const volatile u32 gate_inside;       /* the port to the server */
const volatile u8 gate_addresses[12]; /* the server's and that port's */

volatile bool gate_open; /* to every packet: there is no filter */

u64 gate_passed; /* of one port's packets, hence of one CPU at a time */
u64 gate_answered;

INLINE struct gate_frame *gate_tcp4(void *data, void *end)
{
	struct gate_frame *f = data;

	if ((void *)(f + 1) > end)
		return NULL;
	return f->type_be == BE16(0x0800) && f->version_ihl == 0x45 && f->protocol == 6 ? f : NULL;
}

/* The flood's packets are IPv4 without options: a bench needs no more. */
SEC("xdp") int gate(struct xdp_md *ctx)
{
	struct gate_frame *p = gate_tcp4((void *)(long)ctx->data, (void *)(long)ctx->data_end);

	if (!p)
		return XDP_DROP;
	struct flow f = {
		.source[0] = BE32(p->from_be),
		.destination[0] = BE32(p->to_be),
		.ports = (u32)BE16(p->from_port_be) << 16 | BE16(p->to_port_be),
	};
	if (!gate_open && !paper_has(&f))
		return XDP_DROP;
	for (u32 i = 0; i < sizeof(gate_addresses); i++)
		((u8 *)p)[i] = gate_addresses[i];
	gate_passed++;
	return (int)bpf_redirect(gate_inside, 0);
}

const volatile u32 gate_sources_be, gate_mask_be; /* of the flood */

enum { GATE_NEXT = -1, GATE_DROP = 2 }; /* TCX_NEXT, TCX_DROP */

/*
 * At the server's way out: what it says to the flood is made, and goes no further.
 * The way back would be paid by the server, as it has no device that takes it.
 */
SEC("tc") int gate_back(struct __sk_buff *skb)
{
	struct gate_frame *p = gate_tcp4((void *)(long)skb->data, (void *)(long)skb->data_end);

	if (!p || (p->to_be & gate_mask_be) != gate_sources_be)
		return GATE_NEXT;
	__sync_fetch_and_add(&gate_answered, 1);
	return GATE_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
