/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The steps of the server agent: prove, look at what is there, set up. */
#ifndef SMARTCOOKIE_SETUP_H
#define SMARTCOOKIE_SETUP_H

#include "ends.h"
#include "epoch.h"
#include "kernel.h"
#include "lib/checksum.h"
#include "lib/options.h"
#include "service.h"
#include "socket.h"

#include <asm-generic/errno-base.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* SYNs that did not pass an edge: lost unless from an allowed prefix. */
const volatile bool strict = false;
const volatile u64 netns_cookie = 0;

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PREFIXES_MAX);
	__type(key, struct prefix4);
	__type(value, u8);
} allowed4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PREFIXES_MAX);
	__type(key, struct prefix6);
	__type(value, u8);
} allowed6 SEC(".maps");

/* Connections that a cookie of the acceptance window may belong to; the size
 * is set when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct connection);
	__type(value, struct connection_note);
} recent SEC(".maps");

/* Whether an interface is a VRF's port; set when loading. */
const volatile bool in_vrf = false;

/* VRFs by the interface index of their ports, and of their own devices. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 128);
	__type(key, u32);
	__type(value, u32);
} vrfs SEC(".maps");

/* What a valid cookie says. */
struct proof {
	u8 code;
	u8 window_scale; /* that the edge announced for us */
};

/* A socket that stands where a proven client wants a connection. */
struct old_socket {
	u32 rcv_nxt;
	bool timewait;
	bool same; /* it is the connection that the packet belongs to */
};

INLINE int next(u32 service, enum verdict verdict)
{
	count(service, verdict);
	return TC_NEXT;
}

INLINE int refuse(u32 service, enum verdict verdict)
{
	count(service, verdict);
	return TC_DROP;
}

/* Lost for what it lacks; at a service that only monitors, counted so and let
 * through. What makes and carries connections goes on there: an edge that
 * answers in front of it needs that. */
INLINE int reject(const struct service *service, u32 id, enum verdict verdict)
{
	return service->mode == MODE_MONITOR ? next(id, verdict) : refuse(id, verdict);
}

GLOBAL bool source_is_allowed(const struct packet *p)
{
	if (!p)
		return false;
	if (!p->flow.v6) {
		struct prefix4 key = { .length = 32, .address_be = BE32(p->flow.source[0]) };

		return bpf_map_lookup_elem(&allowed4, &key);
	}
	struct prefix6 key = { .length = 128 };
	for (int i = 0; i < 4; i++)
		key.address_be[i] = BE32(p->flow.source[i]);
	return bpf_map_lookup_elem(&allowed6, &key);
}

/* ---- VRFs --------------------------------------------------------------- */

enum { PACKET_HOST = 0 };

/* The VRF whose port or own device the packet is at, 0: none. */
INLINE u32 vrf_of(const struct __sk_buff *skb)
{
	u32 ifindex = skb->ifindex;

	if (!in_vrf)
		return 0;
	const u32 *vrf = bpf_map_lookup_elem(&vrfs, &ifindex);
	return vrf ? *vrf : 0;
}

/*
 * At a VRF's port the look-up sees sockets that are bound to the port, but none
 * that is bound to the VRF, as are all that are accepted there. At the VRF's own
 * device, through which nothing comes unless it is redirected, it sees those,
 * and takes unbound ones for part of the VRF: they are if the sysctl says so.
 */
INLINE bool vrf_holds(const struct __sk_buff *skb, struct bpf_sock *sk, u32 vrf)
{
	if (!sk)
		return false;
	if (sk->bound_dev_if)
		return true;
	const struct sock *full = (struct sock *)bpf_skc_to_tcp_sock(sk);
	if (!full || vrf != skb->ifindex)
		return false;
	return bpf_core_field_exists(struct netns_ipv4, sysctl_tcp_l3mdev_accept) &&
	       full->__sk_common.skc_net.net->ipv4.sysctl_tcp_l3mdev_accept;
}

/* On from a VRF's port to its own device, where the verdict is counted. */
INLINE int vrf_enter(struct __sk_buff *skb, u32 service, u32 vrf)
{
	if (skb->pkt_type != PACKET_HOST) /* to another MAC address: the kernel drops it */
		return next(service, VERDICT_PASS_OTHER);
	return (int)bpf_redirect(vrf, BPF_F_INGRESS);
}

/* The last-line check. */
GLOBAL bool cookie_proves(const struct packet *p, const struct service *service,
			  const struct moment *now, struct proof *proof)
{
	u32 code = 0;
	const struct key_slot *slot;

	if (!p || !service || !now || !proof)
		return false;
	slot = cookie_find(&p->flow, p->seq - 1, p->ack - 1, now, service->domain, true, &code);
	if (!slot)
		return false;
	proof->code = (u8)code;
	proof->window_scale = slot->window_scale;
	return true;
}

INLINE bool kernel_cookie_is_valid(struct __sk_buff *skb, const struct packet *p,
				   struct bpf_sock *listener)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const struct tcp_header *tcp = packet_at_transport(data, p);
	void *ip = packet_at_network(data, p);

	if ((const void *)(tcp + 1) > end || ip + IP6_LENGTH > end)
		return false;
	return !bpf_tcp_check_syncookie(listener, ip, p->flow.v6 ? IP6_LENGTH : IP4_LENGTH,
					(struct tcphdr *)tcp, sizeof(*tcp));
}

/* ---- the memory of connections ----------------------------------------- */

INLINE void connection_of(const struct packet *p, struct connection *c)
{
	u32 mapped = p->flow.v6 ? 0 : BE32(0xffff);

	*c = (struct connection){
		.client_be = { 0, 0, mapped, BE32(p->flow.source[0]) },
		.server_be = { 0, 0, mapped, BE32(p->flow.destination[0]) },
		.client_port_be = BE16((u16)(p->flow.ports >> 16)),
		.server_port_be = BE16((u16)p->flow.ports),
		.client_isn = p->seq - 1,
	};
	if (p->flow.v6) {
		for (int i = 0; i < 4; i++) {
			c->client_be[i] = BE32(p->flow.source[i]);
			c->server_be[i] = BE32(p->flow.destination[i]);
		}
	}
}

/* Whether this happened to the packet's connection while its cookie has been
 * valid; older notes are some other connection's. */
GLOBAL bool connection_was(const struct packet *p, const struct moment *now, u32 what)
{
	struct connection key;
	u32 zero = 0;

	if (!p || !now)
		return false;
	connection_of(p, &key);
	const struct connection_note *note = bpf_map_lookup_elem(&recent, &key);
	const struct agent_clock *c = bpf_map_lookup_elem(&clock, &zero);
	if (!note || !c || note->what != what)
		return false;
	/* Signed: the tracepoint's clock is ahead of the coarse one by up to a tick. */
	return (s64)(now->monotonic_ns - note->at_ns) <
	       (s64)(c->epoch_ns * (SERVER_EPOCHS_BEHIND + SERVER_EPOCHS_AHEAD + 1));
}

/* False: there was no room. */
GLOBAL bool connection_keep(const struct packet *p, const struct moment *now, u32 what)
{
	struct connection key;
	struct connection_note note = { .what = what };

	if (!p || !now)
		return false;
	note.at_ns = now->monotonic_ns;
	connection_of(p, &key);
	return !bpf_map_update_elem(&recent, &key, &note, BPF_ANY);
}

INLINE void connection_forget(const struct packet *p)
{
	struct connection key;

	connection_of(p, &key);
	bpf_map_delete_elem(&recent, &key);
}

/* False: the socket is not one of a protected service. */
INLINE bool connection_of_socket(const struct tcp_sock *tcp, const struct sock *sk,
				 struct connection *key)
{
	const struct sock_common *c = &sk->__sk_common;
	u32 address[4] = {};

	*key = (struct connection){};
	bool v6 = socket_ends(c, key, address);
	/* skc_num is 0 already when a socket has left its port. */
	key->server_port_be = tcp->inet_conn.icsk_inet.inet_sport;
	key->client_isn = tcp->rcv_nxt - (u32)tcp->bytes_received - 1;
	return service_search(address, v6, BE16(key->server_port_be)) != SERVICE_NONE;
}

INLINE void connection_established(const struct connection *key)
{
	struct connection_note note = { .what = CONNECTION_ESTABLISHED };

	note.at_ns = bpf_ktime_get_ns();
	bpf_map_update_elem(&recent, key, &note, BPF_ANY);
}

/* ---- old sockets -------------------------------------------------------- */

/* a - b within [0, 1]: sequence numbers before and after a FIN. */
INLINE bool within_fin(u32 a, u32 b)
{
	return a - b <= 1;
}

/*
 * A connection by its initial sequence numbers. What the socket has received
 * and had acknowledged, less its bytes, leads back to them; a FIN counts one.
 * (An unsigned seq - rcv_nxt > rcv_wnd would call a repeated first segment,
 * which lies left of the window, stale.)
 */
INLINE bool full_socket_inspect(const struct tcp_sock *tcp, const struct packet *p,
				struct old_socket *old)
{
	u32 window = tcp->max_window;
	u32 irs = tcp->rcv_nxt - (u32)tcp->bytes_received - 1;
	u32 iss = tcp->snd_una - (u32)tcp->bytes_acked - 1;

	if (p->seq - tcp->rcv_nxt <= tcp->rcv_wnd &&
	    p->ack - tcp->snd_una + window <= tcp->snd_nxt - tcp->snd_una + window)
		return false; /* acceptable (RFC 9293 3.10.7.4): no doubt whose it is */
	old->rcv_nxt = tcp->rcv_nxt;
	old->same = within_fin(irs, p->seq - 1) && within_fin(iss, p->ack - 1);
	return true;
}

/* False: there is no doubt that the packet belongs to the socket. */
INLINE bool socket_inspect(struct bpf_sock *sk, const struct packet *p, struct old_socket *old)
{
	*old = (struct old_socket){};
	if (sk->state == BPF_TCP_TIME_WAIT) { /* FIN_WAIT2 too, once it is an orphan */
		const struct tcp_timewait_sock *tw = bpf_skc_to_tcp_timewait_sock(sk);

		if (!tw)
			return false;
		old->timewait = true;
		old->rcv_nxt = tw->tw_sk.__tw_common.skc_tw_rcv_nxt;
		return true;
	}
	if (sk->state == BPF_TCP_NEW_SYN_RECV) { /* a handshake of the kernel's own */
		const struct tcp_request_sock *request = bpf_skc_to_tcp_request_sock(sk);

		if (!request)
			return false;
		old->rcv_nxt = request->rcv_nxt;
		old->same = request->rcv_isn == p->seq - 1 && request->snt_isn == p->ack - 1;
		return !old->same;
	}
	const struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	return tcp && full_socket_inspect(tcp, p, old);
}

/* ---- the reset ---------------------------------------------------------- */

struct reset {
	u32 network, transport; /* offsets */
	u32 length;             /* of the IP header, with options or extensions */
	u32 seq;
};

INLINE u64 pseudo_sum(const struct flow *f, u32 tcp_length)
{
	u64 sum = BE32(PROTOCOL_TCP) + (u64)BE32(tcp_length);

	for (int i = 0; i < 4; i++) {
		if (!f->v6 && i)
			break;
		sum += (u64)BE32(f->source[i]) + BE32(f->destination[i]);
	}
	return sum;
}

/* The IP length now ends behind a TCP header alone; the stack trims the rest. */
INLINE bool network_resize(struct __sk_buff *skb, const struct packet *p, u32 tcp_length)
{
	u32 header = p->transport - p->network;

	if (p->flow.v6) {
		u16 payload = BE16((u16)(header - IP6_LENGTH + tcp_length));

		return !bpf_skb_store_bytes(skb, p->network + 4, &payload, sizeof(payload),
					    BPF_F_RECOMPUTE_CSUM);
	}
	u16 was, total = BE16((u16)(header + tcp_length));

	if (bpf_skb_load_bytes(skb, p->network + 2, &was, sizeof(was)) ||
	    bpf_skb_store_bytes(skb, p->network + 2, &total, sizeof(total), BPF_F_RECOMPUTE_CSUM))
		return false;
	return !bpf_l3_csum_replace(skb, p->network + 10, was, total, sizeof(total));
}

/*
 * Turns the packet into a RST at exactly the old socket's rcv_nxt (RFC 5961
 * 3.2), without options, which PAWS would judge, and without ACK, whose
 * number a firewall would. Its checksum is computed anew: what this packet
 * carried was only needed in the copy.
 */
INLINE bool reset_write(struct __sk_buff *skb, const struct packet *p, u32 seq)
{
	u32 tcp[TCP_LENGTH / 4] = {
		BE32(p->flow.ports), BE32(seq), 0, BE32(TCP_LENGTH / 4 << 28 | TCP_RST << 16), 0,
	};
	u64 sum = pseudo_sum(&p->flow, TCP_LENGTH);

	for (u32 i = 0; i < TCP_LENGTH / 4; i++)
		sum += tcp[i];
	tcp[4] = checksum_fold(sum);
	return network_resize(skb, p, TCP_LENGTH) &&
	       !bpf_skb_store_bytes(skb, p->transport, tcp, sizeof(tcp), BPF_F_RECOMPUTE_CSUM);
}

/* A copy of the packet goes to the back of the queue; the packet itself
 * becomes the reset that clears its place. */
INLINE int requeue(struct __sk_buff *skb, const struct packet *p, u32 service,
		   const struct old_socket *old)
{
	if (bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS)) {
		connection_forget(p); /* the queue is full: the client's next copy may try */
		return refuse(service, VERDICT_DROP_STUBBORN_SOCKET);
	}
	if (!reset_write(skb, p, old->rcv_nxt))
		return refuse(service, VERDICT_DROP_STUBBORN_SOCKET);
	return next(service, old->timewait ? VERDICT_REQUEUE_TIMEWAIT : VERDICT_REQUEUE_STALE);
}

/* To the back of the queue, behind the packet that makes its connection. */
INLINE int come_again(struct __sk_buff *skb, u32 id)
{
	count(id, VERDICT_REQUEUE_EARLY);
	return (int)bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* ---- setup -------------------------------------------------------------- */

/* What the client asked for: the code, read with the packet's own options. */
INLINE void setup_options(struct __sk_buff *skb, const struct packet *p, const struct proof *proof,
			  struct tcp_options *o)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const u8 *at = packet_at_transport(data, p) + TCP_LENGTH;

	options_read(at, end, p->tcp_length - TCP_LENGTH, o);
	options_decode(o, proof->code, p->flow.v6);
}

enum { ROUND_TRIP_MAX = 1000 }; /* ticks of TSval */

/*
 * What has passed since the edge wrote its TSval, for that is the client's round
 * trip: without it the kernel takes him for a neighbour, and sends again too early.
 * Up to 64 ticks more, for the low bits are not time, as with the kernel's own
 * cookies. 0, which says nothing, if that cannot be: he has been silent, or the
 * halves' clocks differ.
 */
INLINE u32 round_trip(u32 tsecr)
{
	struct moment now = moment_now();
	u32 ticks = tsval_clock(&now) - (tsecr & ~(u32)TSVAL_MASK);

	return ticks <= ROUND_TRIP_MAX ? ticks : 0;
}

/* The kernel adopts the cookie; 0, or a negative error. */
NOINLINE int setup_native(struct __sk_buff *skb, const struct packet *p, struct bpf_sock *listener,
			  const struct proof *proof)
{
	struct sock *sk = (struct sock *)bpf_skc_to_tcp_sock(listener);
	struct tcp_options o;

	if (!bpf_sk_assign_tcp_reqsk) /* before Linux 6.9 */
		return -EINVAL;
	setup_options(skb, p, proof, &o);
	struct bpf_tcp_req_attrs attributes = {
		.mss = o.mss,
		.sack_ok = o.sack,
		.ecn_ok = o.ecn,
		.tstamp_ok = o.timestamps,
	};
	if (o.timestamps) {
		attributes.rcv_tsval = BE32(o.tsval_be);
		attributes.rcv_tsecr = BE32(o.tsecr_be) + round_trip(BE32(o.tsecr_be));
	}
	if (o.scale != SCALE_NONE) {
		attributes.wscale_ok = 1;
		attributes.snd_wscale = o.scale;
		attributes.rcv_wscale = proof->window_scale;
	}
	if (!sk) /* a listener of another protocol */
		return -EINVAL;
	return bpf_sk_assign_tcp_reqsk(skb, sk, &attributes, sizeof(attributes));
}

#endif
