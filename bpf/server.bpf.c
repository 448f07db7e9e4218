// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The server agent: a proven client's first packet becomes a connection in an
 * unmodified kernel. Native, the kernel adopts the cookie as its initial sequence
 * number: nothing is translated and nothing is kept for the life of a flow. Where
 * it refuses that, it does a handshake of its own and translate.h stands between.
 *
 * Fail closed for what would make a connection, fail open for every packet of
 * a connection that the kernel has.
 */
#include "beginning.h"
#include "enforced.h"
#include "established.h"
#include "inject.h"
#include "proxy.h"
#include "tenant.h"
#include "walk.h"

/* How depends on the service and, unless that is settled, on what the kernel
 * says of the listener. */
INLINE int setup(struct __sk_buff *skb, const struct packet *p, const struct service *service,
		 struct bpf_sock *listener, const struct proof *proof, u32 id)
{
	int error =
		service->setup == SETUP_TRANSLATE ? -EINVAL : setup_native(skb, p, listener, proof);

	if (!error) {
		if (translating)
			translation_forget(p);
		beginning_keep(p, BEGINS_HERE);
		return next(id, VERDICT_SETUP);
	}
	if (error != -EINVAL || service->setup == SETUP_NATIVE)
		return refuse(id, VERDICT_DROP_REFUSED);
	beginning_forget(p); /* from here on the translation says what has to wait */
	return translate_begin(skb, p, id, proof);
}

/* A packet for which the kernel has no connection, only perhaps a listener. */
NOINLINE int server_new(struct __sk_buff *skb, const struct packet *p,
			const struct service *service, u32 id, struct bpf_sock *listener)
{
	struct moment now = moment_now();
	struct proof proof;
	bool proven = cookie_proves(p, service, &now, &proof);

	if (listener && beginning_is_near(p, proven))
		return come_again(skb, id);
	if (service->mode == MODE_OFF && !(proven && listener))
		return next(id, VERDICT_PASS_OFF);
	if (!proven) {
		if (listener && kernel_cookie_is_valid(skb, p, listener))
			return next(id, VERDICT_PASS_KERNEL_COOKIE);
		return unenforced(service, &now) ? next(id, VERDICT_PASS_UNENFORCED) :
						   reject(service, id, VERDICT_DROP_BAD_COOKIE);
	}
	if (!listener) /* the kernel answers with a RST, as for any closed port */
		return next(id, VERDICT_PASS_CLOSED_PORT);
	if (connection_was(p, &now, CONNECTION_ESTABLISHED))
		return next(id, VERDICT_PASS_REPLAYED);
	return setup(skb, p, service, listener, &proof, id);
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
		return beginning_is_near(p, false) ? come_again(skb, id) :
						     next(id, VERDICT_PASS_CONNECTION);
	/* A connection that was begins no second time, also where the socket is
	 * another one, made from the same port after it. */
	if (old.same || connection_was(p, &now, CONNECTION_ESTABLISHED))
		return next(id, VERDICT_PASS_REPEATED);
	if (beginning_is_near(p, false))
		return come_again(skb, id);
	/* The note ends the loop of a copy that meets the same socket again. */
	if (connection_was(p, &now, CONNECTION_REQUEUED) ||
	    !connection_keep(p, &now, CONNECTION_REQUEUED))
		return refuse(id, VERDICT_DROP_STUBBORN_SOCKET);
	beginning_keep(p, BEGINS_AGAIN);
	return requeue(skb, p, id, &old);
}

/* Whether the packet is acceptable to the socket of a translated connection. */
NOINLINE bool socket_takes(struct bpf_sock *sk, const struct packet *p, const struct translation *t)
{
	struct packet translated = *p;
	struct old_socket old;

	if (!sk || sk->state == BPF_TCP_LISTEN)
		return false;
	translated.ack += t->delta;
	return !socket_inspect(sk, &translated, &old);
}

/* A packet whose ends have a translated connection; NOT_TRANSLATED: it belongs
 * to another one. SYN_AGAIN: the kernel has not been heard, but has not forgotten;
 * resetting its handshake would bring a second SYN-ACK behind the delayed one. */
NOINLINE int server_translated(struct __sk_buff *skb, const struct packet *p,
			       const struct service *service, u32 id, struct bpf_sock *sk)
{
	struct endpoints e;

	endpoints_of(&p->flow, false, &e);
	struct translation *t = translation_find(&e);
	if (!t)
		return NOT_TRANSLATED;
	if (p->flags & TCP_SYN)
		return refuse(id, VERDICT_DROP_UNVERIFIED_SYNACK);
	bool first = p->seq - 1 == t->client_isn && p->ack - 1 == t->cookie;
	if (!deltas_are_known(t)) {
		if (first && t->state == TRANSLATION_UNANSWERED)
			return sk && sk->state == BPF_TCP_NEW_SYN_RECV ? SYN_AGAIN : NOT_TRANSLATED;
		if (!first && proves_another(p, service))
			return NOT_TRANSLATED;
		return translate_wait(skb, id, t);
	}
	if (socket_takes(sk, p, t))
		return translate_accepted(skb, p, id, t, &e, VERDICT_PASS_CONNECTION);
	bool connection = sk && sk->state != BPF_TCP_LISTEN;
	if (t->state == TRANSLATION_CLOSED && !connection) {
		if (first) /* what the kernel answers is what the client has sent */
			bpf_map_delete_elem(&flows, &e);
		return NOT_TRANSLATED;
	}
	if (!first && proves_another(p, service))
		return NOT_TRANSLATED;
	if (beginning_is_near(p, false)) /* of what displaces this connection */
		return come_again(skb, id);
	if (!connection && handshake_is_stale(t)) /* the kernel has given it up */
		return first ? NOT_TRANSLATED : refuse(id, VERDICT_DROP_EARLY);
	if (t->expires_ns && connection) /* TIME_WAIT, or a full accept queue */
		t->expires_ns = bpf_ktime_get_coarse_ns() + LINGER_NS;
	bool repeated = first && t->state >= TRANSLATION_ESTABLISHED;
	return translate_accepted(skb, p, id, t, &e,
				  repeated ? VERDICT_PASS_REPEATED : VERDICT_PASS_CONNECTION);
}

/* From the socket that the kernel has for the packet, or none, to the verdict. */
INLINE int server_judge(struct __sk_buff *skb, const struct packet *p,
			const struct service *service, u32 id, struct bpf_sock *sk)
{
	int verdict = NOT_TRANSLATED;

	if (translating) /* whatever `setup` is: what was translated goes on */
		verdict = server_translated(skb, p, service, id, sk);
	if (verdict != NOT_TRANSLATED && verdict != SYN_AGAIN)
		return verdict;
	if (sk && sk->state != BPF_TCP_LISTEN && verdict != SYN_AGAIN)
		return server_known(skb, p, service, id, sk);
	if (service->mode == MODE_OFF && p->flags & (TCP_RST | TCP_SYN))
		return next(id, VERDICT_PASS_OFF);
	if (p->flags & TCP_RST)
		return next(id, VERDICT_PASS_RST);
	if (p->flags & TCP_SYN)
		return reject(service, id, VERDICT_DROP_UNVERIFIED_SYNACK);
	return server_new(skb, p, service, id, sk);
}

INLINE int server_service(struct __sk_buff *skb, struct packet *p, const struct service *service,
			  u32 id)
{
	struct bpf_sock_tuple tuple = {};
	int early = server_early(p, service, id);

	if (early != UNDECIDED)
		return early;
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
	int verdict = server_judge(skb, p, service, id, sk);
	if (sk)
		bpf_sk_release(sk);
	return verdict;
}

SEC("tc")
int server_ingress(struct __sk_buff *skb)
{
	struct packet p = {};
	struct arrival a = arrival_of(skb, &p, false);

	return a.service ? server_service(skb, &p, a.service, a.id) : a.verdict;
}

INLINE int server_answers(struct __sk_buff *skb, const struct packet *p, u32 id)
{
	struct endpoints e;

	if (!translating)
		return next(id, VERDICT_PASS_INSIDE);
	endpoints_of(&p->flow, true, &e);
	struct translation *t = translation_find(&e);
	if (!t)
		return next(id, VERDICT_PASS_INSIDE);
	if (flags_open(p->flags)) { /* the server itself connects from its port */
		translation_void(t);
		return next(id, VERDICT_PASS_INSIDE);
	}
	if (p->flags & TCP_SYN)
		return translate_synack(skb, p, id, t);
	if (!deltas_are_known(t) && !(p->flags & TCP_RST)) /* of a connection before */
		return next(id, VERDICT_PASS_INSIDE);
	bool done = deltas_are_known(t) ? translate_out(skb, p, t) : reset_out(skb, p, t);
	return done ? next(id, VERDICT_PASS_TRANSLATED) : refuse(id, VERDICT_DROP_UNTRANSLATABLE);
}

/* A VLAN device may leave its tag in the frame, if the one below cannot add it. */
INLINE enum parsed egress_packet(struct __sk_buff *skb, struct packet *p)
{
	bool tagged = skb->protocol == BE16(ETHER_VLAN) || skb->protocol == BE16(ETHER_QINQ);

	if (LIKELY(!tagged || !own_tags))
		return skb_packet(skb, p);
	return packet_frame((void *)(long)skb->data, (void *)(long)skb->data_end, p);
}

/* Everything that the server sends; fails open but for what is translated. */
SEC("tc")
int server_egress(struct __sk_buff *skb)
{
	struct packet p = {};

	if (egress_packet(skb, &p) != PARSED_TCP)
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	int id = service_at(p.flow.source, p.flow.v6, (u16)(p.flow.ports >> 16));
	if (id == UNPROTECTED || id == SERVICE_NONE || service_is_tenants((u32)id))
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	return server_answers(skb, &p, (u32)id);
}

/*
 * The kernel's word that a connection exists, at the moment it begins: its
 * first packet, should it come again after the connection's end, is then no
 * first packet. (A setup alone proves nothing: the accept queue may be full,
 * and then the client's retransmission must have its chance.) And its word that
 * a connection has ended, which lets a translation go.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(server_established, const struct sock *sk, int old_state, int new_state)
{
	bool begins = old_state == BPF_TCP_SYN_RECV && new_state == BPF_TCP_ESTABLISHED;
	struct connection c;

	if (!begins && !(new_state == BPF_TCP_CLOSE && (translating || hears_edges)))
		return 0;
	if (sk->__sk_common.skc_net.net->net_cookie != netns_cookie)
		return 0;
	const struct tcp_sock *tcp = (const struct tcp_sock *)bpf_skc_to_tcp_sock((void *)sk);
	if (!tcp || !connection_of_socket(tcp, sk, &c))
		return 0;
	if (begins)
		connection_established(&c);
	if (translating)
		translation_follow((const struct endpoints *)&c, c.client_isn, old_state,
				   new_state);
	established_event(&c, begins);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
