/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A packet that an edge has sent in a message comes in by the real device, as
 * if it had come on the wire: the daemon runs this program on it, and the
 * kernel's path begins anew, server_ingress first.
 */
#ifndef SMARTCOOKIE_INJECT_H
#define SMARTCOOKIE_INJECT_H

#include "walk.h"

/* Whether the kernel has a connection for a packet. */
INLINE bool connection_exists(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	u32 size = flow_tuple(&p->flow, &tuple);
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, &tuple, size, NETNS_OF_DEVICE, 0);
	bool exists = sk && state_is_established((u8)sk->state);

	if (sk)
		bpf_sk_release(sk);
	return exists;
}

/* Never attached. cb[0] is an enum inject_order; the result is made of enum
 * inject_result. What is not whole TCP is neither known nor injected. */
SEC("tc")
int server_inject(struct __sk_buff *skb)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct packet p = {};
	u32 order = skb->cb[0];

	if (packet_frame(data, end, &p) != PARSED_TCP)
		return 0;
	bool known = connection_exists(skb, &p);
	int result = known ? INJECT_KNOWN : 0;
	if (!(order & INJECT_PACKET) || ((order & INJECT_IF_KNOWN) && !known))
		return result;
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS))
		return result;
	return result | INJECT_DONE;
}

#endif
