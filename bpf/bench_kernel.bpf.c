// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * For benchmarks: the same edge, but its cookies come from the kernel's raw
 * helpers, which parse the MSS and hash with SipHash on their own. Only the
 * one call is another one.
 */
#include "lib/cookie.h"
#include "lib/packet.h"
#include "maps.h"

INLINE u32 kernel_cookie(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *ip = packet_at_network(data, p), *tcp = packet_at_transport(data, p);

	/* The helpers want constant lengths: those of the benchmark's frames. */
	if (p->tcp_length == 40) {
		if (tcp + 40 > end || ip + IP6_LENGTH > end)
			return 0;
		return (u32)(p->flow.v6 ? bpf_tcp_raw_gen_syncookie_ipv6(ip, tcp, 40) :
					  bpf_tcp_raw_gen_syncookie_ipv4(ip, tcp, 40));
	}
	if (tcp + TCP_LENGTH > end)
		return 0;
	if (p->flow.v6)
		return ip + IP6_LENGTH > end ?
			       0 :
			       (u32)bpf_tcp_raw_gen_syncookie_ipv6(ip, tcp, TCP_LENGTH);
	return ip + IP4_LENGTH > end ? 0 : (u32)bpf_tcp_raw_gen_syncookie_ipv4(ip, tcp, TCP_LENGTH);
}

#define cookie_make(slot, flow, isn, code) kernel_cookie(ctx, p)
#include "bench.h"
