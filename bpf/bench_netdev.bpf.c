// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For benchmarks: the program that the Netdev 2020 paper outlines ("Issuing SYN
 * Cookies in XDP"), in flood mode. A SYN's listener is looked up, its cookie asked
 * for with bpf_tcp_gen_syncookie, and the packet becomes the SYN-ACK and leaves by
 * XDP_TX. Answers are counted by port. The kernel's cookies keep the MSS alone, and
 * so does the answer.
 */
#include "reply.h"
#include "socket.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << 16);
	__type(key, u32);
	__type(value, u64);
} answered SEC(".maps");

/* The MSS << 32 and the cookie; negative: none. The helper wants to know all of
 * the TCP header in reach, and the verifier its length: those of the benchmark's
 * SYNs. */
INLINE s64 cookie_of(struct xdp_md *ctx, const struct packet *p, void *sk)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *ip = packet_at_network(data, p), *tcp = packet_at_transport(data, p);

	if (p->flow.v6 || ip + IP4_LENGTH > end)
		return -1;
	if (p->tcp_length == 40)
		return tcp + 40 > end ? -1 : bpf_tcp_gen_syncookie(sk, ip, IP4_LENGTH, tcp, 40);
	if (p->tcp_length != TCP_LENGTH || tcp + TCP_LENGTH > end)
		return -1;
	return bpf_tcp_gen_syncookie(sk, ip, IP4_LENGTH, tcp, TCP_LENGTH);
}

INLINE s64 cookie_of_listener(struct xdp_md *ctx, const struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	u32 size = flow_tuple(&p->flow, &tuple);
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, &tuple, size, NETNS_OF_DEVICE, 0);

	if (!sk)
		return -1;
	s64 made = sk->state == BPF_TCP_LISTEN ? cookie_of(ctx, p, sk) : -1;
	bpf_sk_release(sk);
	return made;
}

INLINE void count_answer(u32 port)
{
	u64 *n = bpf_map_lookup_elem(&answered, &port);

	if (n)
		(*n)++;
}

SEC("xdp")
int netdev(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	const struct tcp_options none = { .scale = SCALE_NONE };
	struct packet p;

	if (!packet_plain(data, end, &p) || !flags_open(p.flags))
		return XDP_PASS;
	s64 made = cookie_of_listener(ctx, &p);
	if (made < 0)
		return XDP_PASS;
	struct synack s = { .cookie = (u32)made, .mss = (u16)(made >> 32), .window = 65535 };
	if (!answer_write(ctx, &p, &none, &s))
		return XDP_DROP;
	count_answer(flow_destination_port(&p.flow));
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
