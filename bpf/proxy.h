/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The edge alone: it has a handshake of its own with the server, and stands
 * between the two from then on. The client's SYN-ACK closes the window, so that
 * nothing of his has to be kept until the server has answered.
 *
 *   client          edge                     server
 *     | SYN           |                        |
 *     | <- SYN-ACK, c, window 0                |
 *     | ACK c+1 ----> | SYN -----------------> |
 *     |               | <--------- SYN-ACK, k  |
 *     | <- ACK, window| ACK k+1 -------------> |
 *     | data, c+1 ... |          data, k+1 ... |
 *
 * What is translated, and when a connection is over, is as with tenants; the
 * hooks are too: out by the device is to the server. Only the SYN is kept, of
 * which the ACK is made that ends the handshake, and which can be sent again.
 *
 * Fail closed for what would begin a translation, open for all that belongs to
 * none: the edge's other programs have judged it.
 */
#ifndef SMARTCOOKIE_PROXY_H
#define SMARTCOOKIE_PROXY_H

#include "tenant.h"

/* The ports of an edge that bridges, 0: it routes. */
const volatile u32 proxy_inside = 0;
const volatile u32 proxy_outside = 0;

enum proxy_limits {
	SYN_FRAME = 128,      /* its headers; what is longer is not sent again */
	BARE_TIMESTAMPS = 32, /* bytes of a TCP header with them */
	WINDOW_MODEST = 4 * MSS_DEFAULT4,
	SYN_AGAIN_TICKS = 95, /* of 2^20 ns: TENANT_SYN_NS */
};

/* A SYN as it went to the server. */
struct syn_kept {
	u32 ifindex;
	u16 length;
	u16 network, transport;         /* offsets */
	u16 vlan_tci, vlan_protocol_be; /* of the tag beside the frame; 0: none */
	u16 pad;
	u8 frame[SYN_FRAME];
};

/* As many as there are half-open connections; the size is set when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct endpoints);
	__type(value, struct syn_kept);
} syns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct syn_kept);
} syn_scratch SEC(".maps");

/* A segment without data. */
struct bare {
	u32 ports;
	u32 seq, ack;
	u32 window;
	u32 tsval, tsecr;
	bool timestamps;
};

/* ---- segments that are made ---------------------------------------------- */

GLOBAL int syn_keep(struct __sk_buff *skb, const struct packet *p)
{
	u32 zero = 0, rest = skb->len - 1;
	struct syn_kept *s = bpf_map_lookup_elem(&syn_scratch, &zero);
	struct endpoints e;

	if (!p || !s)
		return 0;
	asm volatile("" : "+r"(rest)); /* Linux 6.1 does not learn from n != 0 ("size=0") */
	if (rest >= SYN_FRAME || bpf_skb_load_bytes(skb, 0, s->frame, rest + 1))
		return 0; /* it comes again with the client's next packet alone */
	s->ifindex = skb->ifindex;
	s->length = (u16)(rest + 1);
	s->network = p->network;
	s->transport = p->transport;
	s->vlan_tci = skb->vlan_present ? (u16)skb->vlan_tci : 0;
	s->vlan_protocol_be = skb->vlan_present ? (u16)skb->vlan_proto : 0;
	endpoints_of(&p->flow, false, &e);
	return (int)bpf_map_update_elem(&syns, &e, s, BPF_ANY);
}

/* Where a device is to make the checksum, its field has the sum of what is beside
 * the segment. */
INLINE bool sum_leave(struct __sk_buff *skb, const struct packet *p, u32 length)
{
	u16 check = (u16)~checksum_fold(pseudo_sum(&p->flow, length));

	return !bpf_skb_store_bytes(skb, p->transport + TCP_CHECKSUM_AT, &check, sizeof(check), 0);
}

/* Writes the SYN over a packet of its connection, of either direction. */
GLOBAL bool syn_restore(struct __sk_buff *skb, const struct packet *p, const struct endpoints *e,
			bool partial)
{
	if (!p || !e)
		return false;
	struct endpoints own = *e;
	const struct syn_kept *s = bpf_map_lookup_elem(&syns, &own);
	if (!s || s->network != p->network || s->transport != p->transport)
		return false;
	u32 length = s->length;
	if (length < TCP_LENGTH || length > SYN_FRAME || bpf_skb_change_tail(skb, length, 0) ||
	    bpf_skb_store_bytes(skb, 0, s->frame, length, BPF_F_RECOMPUTE_CSUM))
		return false;
	return !partial || sum_leave(skb, p, length - p->transport);
}

GLOBAL bool bare_write(struct __sk_buff *skb, const struct packet *p, const struct bare *b,
		       bool partial)
{
	if (!p || !b)
		return false;
	u32 length = b->timestamps ? BARE_TIMESTAMPS : TCP_LENGTH;
	u32 tcp[BARE_TIMESTAMPS / 4] = {
		BE32(b->ports),
		BE32(b->seq),
		BE32(b->ack),
		BE32(length / 4 << 28 | TCP_ACK << 16 | (b->window & 0xffff)),
		0,
		BE32(0x0101080a),
		BE32(b->tsval),
		BE32(b->tsecr),
	};
	u64 pseudo = pseudo_sum(&p->flow, length), sum = pseudo;

	for (u32 i = 0; i < BARE_TIMESTAMPS / 4; i++)
		sum += i < length / 4 ? tcp[i] : 0;
	tcp[4] = partial ? (u16)~checksum_fold(pseudo) : checksum_fold(sum);
	if (skb->len < p->transport + sizeof(tcp) &&
	    bpf_skb_change_tail(skb, p->transport + sizeof(tcp), 0))
		return false;
	return network_resize(skb, p, length) &&
	       !bpf_skb_store_bytes(skb, p->transport, tcp, sizeof(tcp), BPF_F_RECOMPUTE_CSUM) &&
	       !bpf_skb_change_tail(skb, p->transport + length, 0);
}

/* ---- to the server ------------------------------------------------------- */

INLINE u32 tick_now(void)
{
	return (u32)(bpf_ktime_get_coarse_ns() >> TSVAL_SHIFT_NS);
}

/* Until the SYN-ACK comes, `delta` is when the last SYN was sent and
 * `acked_high` the window that the client has announced. */
INLINE bool proxy_record(struct __sk_buff *skb, const struct packet *p, const struct proof *proof)
{
	struct endpoints e;
	u16 window = 0;

	if (!tenant_record(skb, p, proof))
		return false;
	endpoints_of(&p->flow, false, &e);
	struct translation *t = bpf_map_lookup_elem(&half_open, &e);
	if (!t || bpf_skb_load_bytes(skb, p->transport + 14, &window, sizeof(window)))
		return false;
	t->delta = tick_now();
	t->acked_high = BE16(window);
	return true;
}

INLINE bool whole_sum_is_partial(struct __sk_buff *skb, const struct packet *p)
{
	return sum_is_partial(skb, p, payload_length(skb, p) + p->tcp_length);
}

/* What is in the first packet beside its proof comes again: the client has no
 * acknowledgement of it. */
INLINE int proxy_begin(struct __sk_buff *skb, const struct packet *p, u32 id,
		       const struct proof *proof)
{
	if (!proxy_record(skb, p, proof))
		return refuse(id, VERDICT_DROP_FLOWS_FULL);
	bool partial = whole_sum_is_partial(skb, p);
	if (!tenant_syn(skb, p, proof, false))
		return refuse(id, VERDICT_DROP_EARLY);
	syn_keep(skb, p);
	if (partial && !sum_leave(skb, p, skb->len - p->transport))
		return refuse(id, VERDICT_DROP_EARLY);
	return next(id, VERDICT_SETUP_TRANSLATED);
}

enum { ECHO_EPOCHS_AHEAD = 2, ECHO_EPOCHS = 6 };

/*
 * Whether a packet can answer a SYN-ACK of an edge: its TSecr is then a TSval of
 * the last epochs. Connections that are not translated come by here, too, and one
 * guess in 2^24 is right: nearly all of them are told apart by their servers'
 * timestamps, at the cost of no MAC.
 */
GLOBAL bool echoes_an_edge(struct __sk_buff *skb, const struct packet *p)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	u32 zero = 0;
	const struct agent_clock *c = bpf_map_lookup_elem(&clock, &zero);
	struct tcp_options o;

	if (!p || !c)
		return false;
	options_read(packet_at_transport(data, p) + TCP_LENGTH, end, p->tcp_length - TCP_LENGTH,
		     &o);
	if (!o.timestamps) /* nothing tells */
		return true;
	struct moment now = moment_now();
	u64 ticks = c->epoch_ns >> TSVAL_SHIFT_NS;
	u32 latest = (u32)((now.clock_ns >> TSVAL_SHIFT_NS) + ECHO_EPOCHS_AHEAD * ticks);
	return latest - BE32(o.tsecr_be) <= ECHO_EPOCHS * ticks;
}

/*
 * The proof of a packet, and in *first the packet that it is of. A client that
 * finds the window closed asks with the number before the one that is due
 * (RFC 9293 3.8.6.1 leaves it open; Linux does): his ISN itself.
 */
INLINE bool proxy_proves(const struct packet *p, const struct service *service,
			 const struct moment *now, struct proof *proof, struct packet *first)
{
	*first = *p;
	if (cookie_proves(first, service, now, proof))
		return true;
	first->seq++;
	return cookie_proves(first, service, now, proof);
}

/* A packet of no translated connection. */
NOINLINE int proxy_new(struct __sk_buff *skb, const struct packet *p, const struct service *service,
		       u32 id)
{
	struct moment now = moment_now();
	struct packet first;
	struct proof proof;

	if (echoes_an_edge(skb, p) && proxy_proves(p, service, &now, &proof, &first)) {
		if (connection_was(&first, &now, CONNECTION_ESTABLISHED))
			return next(id, VERDICT_PASS_REPLAYED);
		return proxy_begin(skb, &first, id, &proof);
	}
	return next(id, service->mode == MODE_OFF ? VERDICT_PASS_OFF : VERDICT_PASS_UNPROVEN);
}

/* Before the SYN-ACK. The window is closed: nothing but a question is due. */
NOINLINE int proxy_wait(struct __sk_buff *skb, const struct packet *p, u32 id,
			struct translation *t, const struct endpoints *e)
{
	u32 now = tick_now();

	if (p->ack - 1 != t->cookie || p->seq - t->client_isn > 1 || /* ahead of the first */
	    now - t->delta < SYN_AGAIN_TICKS)
		return refuse(id, VERDICT_DROP_EARLY);
	t->delta = now;
	return syn_restore(skb, p, e, whole_sum_is_partial(skb, p)) ?
		       next(id, VERDICT_SETUP_TRANSLATED) :
		       refuse(id, VERDICT_DROP_EARLY);
}

/* A packet whose ends have a translated connection; NOT_TRANSLATED: it begins
 * another one. */
NOINLINE int proxy_translated(struct __sk_buff *skb, const struct packet *p,
			      const struct service *service, u32 id)
{
	struct endpoints e;

	endpoints_of(&p->flow, false, &e);
	struct translation *t = translation_find(&e);
	if (!t)
		return NOT_TRANSLATED;
	if (p->flags & TCP_SYN)
		return refuse(id, VERDICT_DROP_UNVERIFIED_SYNACK);
	if (tenant_doubts(t, p) && proves_another(p, service))
		return NOT_TRANSLATED;
	if (deltas_are_known(t))
		return tenant_accepted(skb, p, id, t, &e);
	if (p->flags & TCP_RST) /* the client's own, or ours to an old socket */
		return next(id, VERDICT_PASS_RST);
	return proxy_wait(skb, p, id, t, &e);
}

INLINE int proxy_service(struct __sk_buff *skb, const struct packet *p,
			 const struct service *service, u32 id)
{
	int verdict = server_early(p, service, id);

	if (verdict != UNDECIDED)
		return verdict;
	verdict = proxy_translated(skb, p, service, id);
	if (verdict != NOT_TRANSLATED)
		return verdict;
	if (p->flags & TCP_RST)
		return next(id, VERDICT_PASS_RST);
	if (p->flags & TCP_SYN) /* the server may have sent the SYN, from a protected port */
		return next(id, VERDICT_PASS_UNPROVEN);
	return proxy_new(skb, p, service, id);
}

/* Out by an inside port: to the server. */
SEC("tc")
int proxy_egress(struct __sk_buff *skb)
{
	struct packet p = {};
	struct arrival a = arrival_of(skb, &p, true);

	return a.service ? proxy_service(skb, &p, a.service, a.id) : a.verdict;
}

/* In by the outside port of a bridge, what the XDP program has let through to
 * here; it has counted it, and the next program does. */
SEC("tc")
int proxy_cross(struct __sk_buff *skb)
{
	(void)skb;
	return (int)bpf_redirect(proxy_inside, 0);
}

/* ---- from the server ----------------------------------------------------- */

/* The window of a SYN is never scaled (RFC 7323 2.2), that of an ACK is. */
INLINE u32 window_opened(u32 window, const struct translation *t)
{
	if (client_scale(t) == SCALE_NONE)
		return window;
	u32 scaled = window >> announced_scale(t);
	return !scaled && window ? 1 : scaled;
}

/* For a server that has not had the ACK, when the client's own window is forgotten:
 * four of the smallest segments, which everybody can take. */
INLINE u32 window_modest(const struct translation *t)
{
	u32 scaled = (u32)WINDOW_MODEST >> (client_scale(t) == SCALE_NONE ? 0 : client_scale(t));

	return scaled ? scaled : 1;
}

/* What the SYN-ACK says to either side. */
INLINE bool synack_tells(struct __sk_buff *skb, const struct packet *p, const struct translation *t,
			 struct bare *server, struct bare *client)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcp_options o;
	u16 window;

	options_read(packet_at_transport(data, p) + TCP_LENGTH, end, p->tcp_length - TCP_LENGTH,
		     &o);
	if (bpf_skb_load_bytes(skb, p->transport + 14, &window, sizeof(window)))
		return false;
	*client = (struct bare){
		.ports = p->flow.ports,
		.seq = t->cookie + 1,
		.ack = t->client_isn + 1,
		.window = window_opened(BE16(window), t),
		.timestamps = stamps_are_shifted(t),
		.tsval = BE32(o.tsval_be) - t->stamp_delta,
		.tsecr = BE32(o.tsecr_be),
	};
	/* In the client's numbers: our program at the way out translates it. */
	*server = (struct bare){
		.ports = p->flow.ports << 16 | p->flow.ports >> 16,
		.seq = t->client_isn + 1,
		.ack = t->cookie + 1,
		.timestamps = stamps_are_shifted(t),
		.tsval = BE32(o.tsecr_be),
		.tsecr = client->tsval,
	};
	return true;
}

/*
 * One packet becomes two: over the SYN-ACK the SYN is written, of which the ACK is
 * made that a clone carries to the server; then its own headers again, and it is
 * the client's window update.
 */
GLOBAL bool proxy_open(struct __sk_buff *skb, const struct packet *p, const struct endpoints *e,
		       const struct translation *t, u32 window)
{
	u32 zero = 0;
	struct syn_kept *own = bpf_map_lookup_elem(&syn_scratch, &zero);
	struct bare server, client;

	if (!p || !e || !t || !own || !synack_tells(skb, p, t, &server, &client))
		return false;
	bool partial = whole_sum_is_partial(skb, p);
	u32 rest = (u32)p->transport - 1;
	asm volatile("" : "+r"(rest));
	if (rest >= SYN_FRAME || bpf_skb_load_bytes(skb, 0, own->frame, rest + 1))
		return false;
	server.window = window;
	if (syn_restore(skb, p, e, false) && bare_write(skb, p, &server, partial))
		bpf_clone_redirect(skb, skb->ifindex, 0);
	return !bpf_skb_store_bytes(skb, 0, own->frame, rest + 1, BPF_F_RECOMPUTE_CSUM) &&
	       bare_write(skb, p, &client, partial);
}

enum { PROXY_OPENS = -5 }; /* beside those of translate.h and TC's verdicts */

/* Also when it comes again: then a packet of either side was lost. PROXY_OPENS: the
 * connection is there, or was. */
NOINLINE int proxy_synack(const struct packet *p, u32 id, struct translation *t,
			  const struct endpoints *e)
{
	if (t->state != TRANSLATION_SYN_RECEIVED)
		return PROXY_OPENS;
	tenant_established(e, t->client_isn);
	if (!translation_promote(e, t)) /* it comes again, and there may be room */
		return refuse(id, VERDICT_DROP_FLOWS_FULL);
	t = bpf_map_lookup_elem(&flows, e);
	if (t)
		tenant_hears_server(p, t);
	return t ? PROXY_OPENS : refuse(id, VERDICT_DROP_FLOWS_FULL);
}

/* The deltas are learned, unless they are known. UNDECIDED: they fit. */
INLINE int proxy_learns(struct __sk_buff *skb, const struct packet *p, u32 id,
			struct translation *t)
{
	if (p->ack - 1 != t->client_isn) { /* another handshake, which is the server's alone */
		translation_void(t);
		return next(id, VERDICT_PASS_INSIDE);
	}
	if (!deltas_are_known(t))
		synack_learn(skb, p, t);
	else if (p->seq - t->cookie != t->delta) /* of an earlier attempt */
		return refuse(id, VERDICT_DROP_OWN_SYNACK);
	return UNDECIDED;
}

/* As with tenants: who has the place yields to a RST at the number that he
 * acknowledges, and the SYN comes behind it. */
GLOBAL int proxy_stale(struct __sk_buff *skb, const struct packet *p, u32 id, struct translation *t,
		       const struct endpoints *e)
{
	if (!p || !t || !e)
		return TC_DROP;
	bool partial = whole_sum_is_partial(skb, p);

	if (t->requeues & TRANSLATION_RESET_TRIED)
		return refuse(id, VERDICT_DROP_STUBBORN_SOCKET);
	t->requeues |= TRANSLATION_RESET_TRIED;
	if (!(p->flags & TCP_RST) &&
	    (!syn_restore(skb, p, e, false) || !tenant_reset(skb, p, partial) ||
	     bpf_clone_redirect(skb, skb->ifindex, 0)))
		return refuse(id, VERDICT_DROP_STUBBORN_SOCKET);
	if (!syn_restore(skb, p, e, partial) || bpf_clone_redirect(skb, skb->ifindex, 0))
		return refuse(id, VERDICT_DROP_STUBBORN_SOCKET);
	return refuse(id, VERDICT_REQUEUE_STALE);
}

INLINE int proxy_hears_synack(struct __sk_buff *skb, const struct packet *p, u32 id,
			      struct translation *t, const struct endpoints *e)
{
	u32 window = tenant_lives(t) ? window_modest(t) : t->acked_high;
	int verdict = proxy_learns(skb, p, id, t);

	if (verdict == UNDECIDED)
		verdict = proxy_synack(p, id, t, e);
	if (verdict != PROXY_OPENS)
		return verdict;
	t = bpf_map_lookup_elem(&flows, e);
	return t && proxy_open(skb, p, e, t, window) ? next(id, VERDICT_PASS_OPENED) :
						       refuse(id, VERDICT_DROP_UNTRANSLATABLE);
}

NOINLINE int proxy_answers(struct __sk_buff *skb, const struct packet *p, u32 id)
{
	struct endpoints e;

	endpoints_of(&p->flow, true, &e);
	struct translation *t = translation_find(&e);
	if (!t)
		return next(id, VERDICT_PASS_INSIDE);
	if (flags_open(p->flags)) { /* the server itself connects from its port */
		translation_void(t);
		return next(id, VERDICT_PASS_INSIDE);
	}
	if (p->flags & TCP_SYN)
		return proxy_hears_synack(skb, p, id, t, &e);
	if (!deltas_are_known(t)) {
		if (p->flags & TCP_RST && !tenant_may_yet(t))
			return tenant_refused(skb, p, id, t);
		return proxy_stale(skb, p, id, t, &e);
	}
	tenant_hears_server(p, t);
	return translate_out(skb, p, t) ? next(id, VERDICT_PASS_TRANSLATED) :
					  refuse(id, VERDICT_DROP_UNTRANSLATABLE);
}

INLINE int proxy_from_server(struct __sk_buff *skb)
{
	struct packet p = {};

	if (skb_packet(skb, &p) != PARSED_TCP)
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	int id = service_at(p.flow.source, p.flow.v6, (u16)(p.flow.ports >> 16));
	if (id == UNPROTECTED || id == SERVICE_NONE || !service_is_tenants((u32)id))
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	return proxy_answers(skb, &p, (u32)id);
}

/* In by an inside port: from the server. A bridge sends it on itself. */
SEC("tc")
int proxy_ingress(struct __sk_buff *skb)
{
	int verdict = proxy_from_server(skb);

	return verdict == TC_NEXT && proxy_outside ? (int)bpf_redirect(proxy_outside, 0) : verdict;
}

/* ---- for the daemon ------------------------------------------------------- */

/*
 * Never attached: the daemon sends a SYN again, out by the inside port, or lets a
 * RST come in there as if the server had sent it. cb: the flags of the redirect,
 * the verdict, the service and its tag.
 */
SEC("tc")
int proxy_send(struct __sk_buff *skb)
{
	u32 flags = skb->cb[0], verdict = skb->cb[1], service = skb->cb[2], tag = skb->cb[3];

	if (tag && bpf_skb_vlan_push(skb, (u16)(tag >> 16), (u16)tag))
		return 0;
	if (bpf_clone_redirect(skb, skb->ifindex, flags & BPF_F_INGRESS))
		return 0;
	if (verdict < VERDICT_COUNT)
		count(service, verdict);
	return INJECT_DONE;
}

#endif
