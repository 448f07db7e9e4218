// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The server agent, native mode: a proven client's first packet becomes a
 * connection in an unmodified kernel, which adopts the cookie as its initial
 * sequence number. Nothing is translated and nothing is kept for the life of
 * a flow.
 *
 * Fail closed for what would make a connection, fail open for every packet of
 * a connection that the kernel has.
 */
#include "setup.h"

/* A packet for which the kernel has no connection, only perhaps a listener. */
NOINLINE int server_new(struct __sk_buff *skb, const struct packet *p,
			const struct service *service, u32 id, struct bpf_sock *listener)
{
	struct moment now = moment_now();
	struct proof proof;

	if (!cookie_proves(p, service, &now, &proof)) {
		if (listener && kernel_cookie_is_valid(skb, p, listener))
			return next(id, VERDICT_PASS_KERNEL_COOKIE);
		return refuse(id, VERDICT_DROP_BAD_COOKIE);
	}
	if (!listener) /* the kernel answers with a RST, as for any closed port */
		return next(id, VERDICT_PASS_CLOSED_PORT);
	if (connection_was(p, &now, CONNECTION_ESTABLISHED))
		return next(id, VERDICT_PASS_REPLAYED);
	return setup(skb, p, id, listener, &proof);
}

/* A packet for which the kernel has a socket: not ours, unless its valid
 * cookie shows that the socket is an older connection's. */
NOINLINE int server_known(struct __sk_buff *skb, const struct packet *p,
			  const struct service *service, u32 id, struct bpf_sock *sk)
{
	struct moment now;
	struct proof proof;
	struct old_socket old;

	if (!flags_acknowledge(p->flags) || !socket_inspect(sk, p, &old))
		return next(id, VERDICT_PASS_CONNECTION);
	now = moment_now();
	if (!cookie_proves(p, service, &now, &proof)) /* the kernel judges it */
		return next(id, VERDICT_PASS_CONNECTION);
	/* A connection that was begins no second time, also where the socket is
	 * another one, made from the same port after it. */
	if (old.same || connection_was(p, &now, CONNECTION_ESTABLISHED))
		return next(id, VERDICT_PASS_REPEATED);
	/* The note ends the loop of a copy that meets the same socket again. */
	if (connection_was(p, &now, CONNECTION_REQUEUED) ||
	    !connection_note(p, &now, CONNECTION_REQUEUED))
		return refuse(id, VERDICT_DROP_STUBBORN_SOCKET);
	return requeue(skb, p, id, &old);
}

INLINE int server_service(struct __sk_buff *skb, struct packet *p, const struct service *service,
			  u32 id)
{
	struct bpf_sock_tuple tuple = {};
	int verdict;

	enum verdict fault = flags_fault(p->flags);
	if (fault != VERDICT_PASS_OTHER)
		return refuse(id, fault);
	if (flags_open(p->flags))
		return strict && !source_is_allowed(p) ? refuse(id, VERDICT_DROP_STRICT_SYN) :
							 next(id, VERDICT_PASS_SYN);
	u32 size = flow_tuple(&p->flow, &tuple), vrf = vrf_of(skb);
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, &tuple, size, NETNS_OF_DEVICE, 0);
	if (vrf && !vrf_holds(skb, sk, vrf)) {
		if (sk)
			bpf_sk_release(sk);
		if (vrf != skb->ifindex)
			return vrf_enter(skb, id, vrf);
		sk = NULL;
	}
	if (vrf == skb->ifindex) /* the redirect compares MAC addresses, and the VRF has its own */
		bpf_skb_change_type(skb, PACKET_HOST);
	bool listener = sk && sk->state == BPF_TCP_LISTEN;

	if (sk && !listener)
		verdict = server_known(skb, p, service, id, sk);
	else if (p->flags & TCP_RST)
		verdict = next(id, VERDICT_PASS_RST);
	else if (p->flags & TCP_SYN)
		verdict = refuse(id, VERDICT_DROP_UNVERIFIED_SYNACK);
	else
		verdict = server_new(skb, p, service, id, sk);
	if (sk)
		bpf_sk_release(sk);
	return verdict;
}

SEC("tc")
int server_ingress(struct __sk_buff *skb)
{
	struct packet p = {};
	enum parsed parsed = skb_packet(skb, &p);

	if (parsed == PARSED_OTHER)
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	const struct port_set *set = prefix_find(p.flow.destination, p.flow.v6);
	if (!set)
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	if (parsed != PARSED_TCP)
		return refuse(SERVICE_NONE, parsed_fault(parsed));
	u32 id = port_find(set, flow_destination_port(&p.flow));
	const struct service *service = service_get(id);
	if (id == SERVICE_NONE || !service)
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	if (service->mode == MODE_OFF)
		return next(id, VERDICT_PASS_OFF);
	return server_service(skb, &p, service, id);
}

/*
 * The kernel's word that a connection exists, at the moment it begins: its
 * first packet, should it come again after the connection's end, is then no
 * first packet. (A setup alone proves nothing: the accept queue may be full,
 * and then the client's retransmission must have its chance.)
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(server_established, const struct sock *sk, int old_state, int new_state)
{
	if (old_state != BPF_TCP_SYN_RECV || new_state != BPF_TCP_ESTABLISHED)
		return 0;
	if (sk->__sk_common.skc_net.net->net_cookie != netns_cookie)
		return 0;
	connection_established((const struct tcp_sock *)bpf_skc_to_tcp_sock((void *)sk), sk);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
