/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SYNs of this host's listeners answered with the kernel's own cookies
 * (Netdev 2020): the kernel makes the connection when one comes back, so there
 * is no program behind this one, no key and no state but the modes of ports.
 *
 * Fail open wherever the kernel itself can judge; fail closed in flood mode for
 * what it would only answer with a RST.
 */
#ifndef SMARTCOOKIE_HOST_KERNEL_H
#define SMARTCOOKIE_HOST_KERNEL_H

#include "listener.h"
#include "memo.h"
#include "port_mode.h"
#include "reply.h"
#include "socket.h"

enum { SYN_HEADER_LENGTH = TCP_LENGTH + 4, ENOENT = 2 };

/* Flows whose cookie came back a moment ago. What follows in the same batch of
 * the driver is here before the kernel has made the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, struct endpoints);
	__type(value, u64); /* when */
} returned SEC(".maps");

enum { BEHIND_NS = 1000 * 1000 * 1000 };

INLINE int pass_up(u32 service, enum verdict verdict)
{
	count(service, verdict);
	return XDP_PASS;
}

/* Of a service that is only monitored everything passes. */
INLINE int lose(const struct service *s, u32 id, enum verdict verdict)
{
	count(id, verdict);
	return s->mode == MODE_MONITOR ? XDP_PASS : XDP_DROP;
}

INLINE struct bpf_sock *socket_of(struct xdp_md *ctx, const struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	u32 size = flow_tuple(&p->flow, &tuple);

	return bpf_skc_lookup_tcp(ctx, &tuple, size, NETNS_OF_DEVICE, 0);
}

/* ---- a SYN ------------------------------------------------------------- */

/* The MSS << 32 and the cookie, as the kernel has them for this SYN; negative:
 * none. Of the options the helper reads the MSS alone, so that a header of its
 * own serves it, whose length the verifier knows. */
INLINE s64 cookie_of(struct xdp_md *ctx, const struct packet *p, u16 mss, void *sk)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *ip = packet_at_network(data, p);
	u32 syn[SYN_HEADER_LENGTH / 4] = {
		BE32(p->flow.ports),
		BE32(p->seq),
		0,
		BE32(SYN_HEADER_LENGTH / 4 << 28 | TCP_SYN << 16),
		0,
		BE32(TCP_OPTION_MSS << 24 | 4 << 16 | mss),
	};

	if (!p->flow.v6)
		return ip + IP4_LENGTH > end ?
			       -1 :
			       bpf_tcp_gen_syncookie(sk, ip, IP4_LENGTH, (void *)syn, sizeof(syn));
	return ip + IP6_LENGTH > end ?
		       -1 :
		       bpf_tcp_gen_syncookie(sk, ip, IP6_LENGTH, (void *)syn, sizeof(syn));
}

INLINE void syn_options(struct xdp_md *ctx, const struct packet *p, struct tcp_options *o)
{
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	options_read(packet_at_transport(data, p) + TCP_LENGTH, end, p->tcp_length - TCP_LENGTH, o);
	o->ecn = (p->flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR);
}

/* What asking a listener has come to. */
struct asked {
	struct tcp_options options;
	struct synack synack;
	u64 now_ns;
	bool queue_full; /* that is why there is a cookie */
};

/* VERDICT_ANSWER_SYN: there is a cookie; any other is the SYN's verdict. */
INLINE enum verdict listener_ask(struct xdp_md *ctx, const struct packet *p, struct bpf_sock *sk,
				 struct asked *a)
{
	if (sk->state != BPF_TCP_LISTEN)
		return VERDICT_PASS_SOCKET;
	const struct tcp_sock *t = bpf_skc_to_tcp_sock(sk);
	if (!t)
		return VERDICT_PASS_SOCKET; /* cannot be: the verifier's doubt */
	const struct netns_ipv4 *sysctls = listener_sysctls(t);
	if (listener_sock(t)->sk_ack_backlog > listener_sock(t)->sk_max_ack_backlog)
		return VERDICT_DROP_ACCEPT_FULL; /* as the kernel does */
	syn_options(ctx, p, &a->options);
	u16 mss = a->options.mss ? a->options.mss : p->flow.v6 ? MSS_DEFAULT6 : MSS_DEFAULT4;
	s64 made = cookie_of(ctx, p, mss, sk);
	if (made < 0)
		return VERDICT_PASS_NO_COOKIE;
	u16 most = p->flow.v6 ? device_mss6 : device_mss4;
	mss = (u16)(made >> 32);
	listener_limit(sysctls, &a->options);
	listener_window(t, mss, &a->synack);
	a->synack.cookie = (u32)made;
	a->synack.mss = mss < most ? mss : most;
	a->synack.tsval = listener_tsval(a->now_ns, &a->options);
	a->queue_full = sysctls->sysctl_tcp_syncookies != COOKIES_ALWAYS;
	return VERDICT_ANSWER_SYN;
}

INLINE int syn_reply(struct xdp_md *ctx, const struct packet *p, const struct service *s, u32 id,
		     const struct asked *a)
{
	if (s->mode == MODE_MONITOR)
		return pass_up(id, VERDICT_ANSWER_SYN);
	if (!answer_write(ctx, p, &a->options, &a->synack))
		return lose(s, id, VERDICT_DROP_NO_ROOM);
	count(id, VERDICT_ANSWER_SYN);
	return answer_by_redirect ? (int)bpf_redirect(ctx->ingress_ifindex, 0) : XDP_TX;
}

GLOBAL int syn_answer(struct xdp_md *ctx, struct packet *p, u32 id, u64 now_ns)
{
	const struct service *s = service_get(id);
	struct bimodal *b = mode_of(id);
	struct asked asked = { .now_ns = now_ns };

	if (!p || !b || !s)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	bool always = service_is_always(s), floods = always || b->mode == BIMODAL_FLOOD;
	if (source_is_bad(&p->flow) || sent_to_many(ctx))
		return floods ? lose(s, id, VERDICT_DROP_BAD_SOURCE) :
				pass_up(id, VERDICT_PASS_SYN);
	struct bpf_sock *sk = socket_of(ctx, p);
	if (!sk)
		return pass_up(id, VERDICT_PASS_NO_LISTENER);
	enum verdict verdict = listener_ask(ctx, p, sk, &asked);
	bpf_sk_release(sk);
	if (verdict == VERDICT_DROP_ACCEPT_FULL && floods)
		return lose(s, id, verdict);
	if (verdict != VERDICT_ANSWER_SYN)
		return pass_up(id, floods ? verdict : VERDICT_PASS_SYN);
	if (asked.queue_full && !always)
		mode_press(id, b, CHANGE_QUEUE, now_ns);
	else if (!floods) /* a cookie says nothing of the queue */
		return pass_up(id, VERDICT_PASS_SYN);
	return syn_reply(ctx, p, s, id, &asked);
}

/* In passive mode a SYN is counted, and one in T1 tries the kernel's queue. */
INLINE int syn_arrives(struct xdp_md *ctx, struct packet *p)
{
	int found = service_at(p->flow.destination, p->flow.v6, flow_destination_port(&p->flow));
	u32 id = (u32)found;
	const struct service *s = found > SERVICE_NONE ? service_get(id) : NULL;
	struct bimodal *b = mode_of(id);
	u64 now_ns = bpf_ktime_get_coarse_ns();

	if (!s || !b)
		return pass_up(SERVICE_NONE, VERDICT_PASS_OTHER);
	syn_count(id);
	if (s->mode == MODE_OFF)
		return pass_up(id, VERDICT_PASS_OFF);
	if (service_is_always(s)) {
		mode_press(id, b, CHANGE_ORDERED, now_ns);
		return syn_answer(ctx, p, id, now_ns);
	}
	struct bimodal_limits limits = limits_now();
	enum bimodal_syn syn = bimodal_count(b, &limits, now_ns);
	if (syn == SYN_PRESSES)
		mode_press(id, b, CHANGE_SYNS, now_ns);
	if (mode_floods(s, id, b, now_ns) || syn == SYN_OPENS)
		return syn_answer(ctx, p, id, now_ns);
	return pass_up(id, VERDICT_PASS_SYN);
}

/* ---- anything else, to a port in flood mode ------------------------------ */

/* 0: the kernel takes its cookie; -ENOENT: it does not; else it judges none. */
INLINE long cookie_check_by_kernel(struct xdp_md *ctx, const struct packet *p, void *sk)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	void *ip = packet_at_network(data, p), *tcp = packet_at_transport(data, p);

	if (tcp + TCP_LENGTH > end)
		return -1;
	if (!p->flow.v6)
		return ip + IP4_LENGTH > end ?
			       -1 :
			       bpf_tcp_check_syncookie(sk, ip, IP4_LENGTH, tcp, TCP_LENGTH);
	return ip + IP6_LENGTH > end ? -1 :
				       bpf_tcp_check_syncookie(sk, ip, IP6_LENGTH, tcp, TCP_LENGTH);
}

/* An ACK to a listener. */
INLINE enum verdict cookie_verdict(const struct packet *p, long checked, u64 now_ns)
{
	struct endpoints ends;

	endpoints_of(&p->flow, false, &ends);
	if (!checked) {
		bpf_map_update_elem(&returned, &ends, &now_ns, BPF_ANY);
		return VERDICT_PASS_KERNEL_COOKIE;
	}
	if (checked != -ENOENT)
		return VERDICT_PASS_NO_COOKIE; /* fail open: tcp_syncookies is 0 */
	const u64 *when = bpf_map_lookup_elem(&returned, &ends);
	if (when && !bimodal_passed(*when, now_ns, BEHIND_NS))
		return VERDICT_PASS_BEHIND;
	return VERDICT_DROP_BAD_COOKIE;
}

/* Without a SYN alone, and to a listener. */
INLINE enum verdict stray_verdict(struct xdp_md *ctx, const struct packet *p, void *sk, u64 now_ns)
{
	enum verdict fault = flags_fault(p->flags);

	if (fault != VERDICT_PASS_OTHER)
		return fault;
	if (p->flags & TCP_RST)
		return VERDICT_DROP_UNVERIFIED_RST;
	if (p->flags & TCP_SYN)
		return VERDICT_DROP_UNVERIFIED_SYNACK;
	return cookie_verdict(p, cookie_check_by_kernel(ctx, p, sk), now_ns);
}

GLOBAL int stray_arrives(struct xdp_md *ctx, struct packet *p)
{
	if (!p)
		return XDP_DROP; /* cannot be: the verifier's doubt */
	int found = service_at(p->flow.destination, p->flow.v6, flow_destination_port(&p->flow));
	u32 id = (u32)found;
	const struct service *s = found > SERVICE_NONE ? service_get(id) : NULL;
	struct bimodal *b = mode_of(id);
	u64 now_ns = bpf_ktime_get_coarse_ns();
	if (!s || !b)
		return pass_up(SERVICE_NONE, VERDICT_PASS_OTHER);
	if (s->mode == MODE_OFF)
		return pass_up(id, VERDICT_PASS_OFF);
	if (!mode_floods(s, id, b, now_ns))
		return pass_up(id, VERDICT_PASS_CALM);
	struct bpf_sock *sk = socket_of(ctx, p);
	if (!sk)
		return pass_up(id, VERDICT_PASS_NO_LISTENER);
	enum verdict verdict = VERDICT_PASS_SOCKET;
	if (sk->state == BPF_TCP_LISTEN)
		verdict = stray_verdict(ctx, p, sk, now_ns);
	bpf_sk_release(sk);
	if (verdict == VERDICT_PASS_SOCKET || verdict == VERDICT_PASS_KERNEL_COOKIE ||
	    verdict == VERDICT_PASS_NO_COOKIE || verdict == VERDICT_PASS_BEHIND)
		return pass_up(id, verdict);
	return lose(s, id, verdict);
}

#endif
