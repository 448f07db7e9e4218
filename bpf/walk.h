/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The established connections of protected services in the daemon's network
 * namespace, one struct connection each: what the agent announces to edges. */
#ifndef SMARTCOOKIE_WALK_H
#define SMARTCOOKIE_WALK_H

#include "ends.h"
#include "established.h"
#include "service.h"

/* The context of an iterator over TCP sockets: pointers at fixed places. */
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

/* Those in which the client may still send. */
INLINE bool state_is_established(u8 state)
{
	return 1U << state &
	       (1U << BPF_TCP_ESTABLISHED | 1U << BPF_TCP_FIN_WAIT1 | 1U << BPF_TCP_FIN_WAIT2 |
		1U << BPF_TCP_CLOSE_WAIT | 1U << BPF_TCP_LAST_ACK | 1U << BPF_TCP_CLOSING);
}

SEC("iter/tcp")
int walk_connections(struct bpf_iter__tcp *ctx)
{
	const struct sock_common *sk = ctx->sk_common;
	struct connection c = {};
	u32 address[4] = {};

	if (!sk || !state_is_established(sk->skc_state))
		return 0;
	bool v6 = socket_ends(sk, &c, address);
	if (service_search(address, v6, sk->skc_num) == SERVICE_NONE)
		return 0;
	established_add(&c); /* the socket is locked: it cannot end meanwhile */
	bpf_seq_write(ctx->meta->seq, &c, sizeof(c)); /* full: the kernel comes again */
	return 0;
}

#endif
