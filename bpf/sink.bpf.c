/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The lab's ends of the wire: the sink counts what comes back to the flood's
 * source addresses, and lab_pass only makes a veth take frames of XDP_TX.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline))

enum count {
	SINK_SYNACK = 0,
	SINK_RST,
	SINK_TCP,    /* any other segment */
	SINK_OTHER,  /* not TCP, for a flood source: ICMP errors */
	SINK_PASSED, /* for the attacker itself */
	SINK_COUNT,
};

struct config {
	__u32 source4_be;
	__u32 mask4_be;
	__u32 source6_be[4];
	__u32 mask6_be[4];
};

const volatile struct config sink = {};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SINK_COUNT);
	__type(key, enum count);
	__type(value, __u64);
} sink_counts SEC(".maps");

INLINE enum count tcp_kind(const void *at, const void *end)
{
	const struct tcphdr *tcp = at;

	if (at + sizeof(*tcp) > end)
		return SINK_OTHER;
	if (tcp->rst)
		return SINK_RST;
	return tcp->syn && tcp->ack ? SINK_SYNACK : SINK_TCP;
}

INLINE enum count ip4_kind(const void *at, const void *end)
{
	const struct iphdr *ip = at;

	if (at + sizeof(*ip) > end)
		return SINK_PASSED;
	if ((ip->daddr & sink.mask4_be) != sink.source4_be)
		return SINK_PASSED;
	if (ip->protocol != IPPROTO_TCP)
		return SINK_OTHER;
	return tcp_kind(at + ip->ihl * 4, end);
}

INLINE enum count ip6_kind(const void *at, const void *end)
{
	const struct ipv6hdr *ip = at;

	if (at + sizeof(*ip) > end)
		return SINK_PASSED;
	for (int i = 0; i < 4; i++)
		if ((ip->daddr.in6_u.u6_addr32[i] & sink.mask6_be[i]) != sink.source6_be[i])
			return SINK_PASSED;
	if (ip->nexthdr != IPPROTO_TCP)
		return SINK_OTHER;
	return tcp_kind(at + sizeof(*ip), end);
}

INLINE enum count frame_kind(const void *at, const void *end)
{
	const struct ethhdr *eth = at;

	if (at + sizeof(*eth) > end)
		return SINK_PASSED;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return ip4_kind(at + sizeof(*eth), end);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return ip6_kind(at + sizeof(*eth), end);
	return SINK_PASSED;
}

SEC("xdp") int lab_sink(struct xdp_md *ctx)
{
	enum count kind = frame_kind((void *)(long)ctx->data, (void *)(long)ctx->data_end);
	__u64 *count = bpf_map_lookup_elem(&sink_counts, &kind);

	if (count)
		(*count)++;
	return kind == SINK_PASSED ? XDP_PASS : XDP_DROP;
}

SEC("xdp.frags") int lab_pass(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

SEC("xdp") int lab_drop(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_DROP;
}

char sink_license[] SEC("license") = "Dual BSD/GPL";
