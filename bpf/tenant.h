/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Servers behind a device of this host, a veth or tap, in another network
 * namespace or machine. What goes out by the device goes to the server. No socket
 * can be looked up: connections are always translated, and how they stand is read
 * from their packets.
 *
 *             first packet            FIN             the other's FIN
 *  SYN_SENT ... SYN_RECEIVED ... ESTABLISHED --> *_FIN --> CLOSED, 64 s on
 *                                     | RST of the server
 *                                     v
 *                                  CLOSED, 1 s on
 *
 * Fail closed for what would begin a translation, open for all that belongs to
 * none: the tenant's kernel has the last word, unless the agent is strict.
 */
#ifndef SMARTCOOKIE_TENANT_H
#define SMARTCOOKIE_TENANT_H

#include "arrival.h"
#include "held.h"

/* How long an idle connection is kept: as connection tracking does. */
#define TENANT_IDLE_NS (5ULL * 24 * 3600 * 1000 * 1000 * 1000)
/* One that has an end: the other one may be gone, and nobody be told. An upload goes
 * on in that state as long as the server acknowledges. Of a RST nothing else tells
 * whether it was the client's. */
#define TENANT_ENDING_NS (5ULL * 60 * 1000 * 1000 * 1000)
/* Less than clients wait before they send again (RFC 6298 2.4, in practice). */
#define TENANT_SYN_NS (100ULL * 1000 * 1000)
/* Not every packet writes to the map. */
#define TENANT_REFRESH_NS (10ULL * 1000 * 1000 * 1000)

/* The largest window that TCP can announce, 1 GiB, is more than any client's:
 * 8 MiB are taken for one, in units of 64 KiB. */
enum {
	TENANT_WINDOW_HIGH = 128,
	TENANT_PACKET_HIGH = 8, /* a packet of the server's may be so long (BIG TCP) */
};

/* ---- how a connection stands --------------------------------------------- */

INLINE bool tenant_lives(const struct translation *t)
{
	return t->state >= TRANSLATION_ESTABLISHED && t->state != TRANSLATION_CLOSED;
}

/* Whether a client's number is one that the server may wait for. */
INLINE bool seq_is_plausible(const struct translation *t, u32 seq)
{
	u16 ahead = (u16)(((seq - t->client_isn) >> 16) - t->acked_high);

	return (u16)(ahead + 1) <= TENANT_WINDOW_HIGH;
}

/* Whether a client acknowledges what the server may have sent. */
INLINE bool ack_is_plausible(const struct translation *t, u32 ack)
{
	u16 behind = (u16)(t->sent_high + TENANT_PACKET_HIGH - (u16)((ack - t->cookie) >> 16));

	return behind <= TENANT_PACKET_HIGH + TENANT_WINDOW_HIGH;
}

/* Whether a packet can be another connection's first one. Of what fits one that lives
 * no proof is asked for: a guess in 2^25 is right, so that a connection of many packets
 * would be cut some day. Of others' sequence numbers one in 508 fits, and independently
 * of the cookies that they acknowledge one in 478. */
INLINE bool tenant_doubts(const struct translation *t, const struct packet *p)
{
	if (p->seq - 1 == t->client_isn && p->ack - 1 == t->cookie)
		return false;
	return !tenant_lives(t) || !seq_is_plausible(t, p->seq) || !ack_is_plausible(t, p->ack);
}

INLINE void tenant_expire(struct translation *t, u64 after_ns)
{
	u64 at = bpf_ktime_get_coarse_ns() + after_ns;

	if (at - t->expires_ns > TENANT_REFRESH_NS) /* also if it is to be sooner */
		t->expires_ns = at;
}

INLINE u64 tenant_keeps_ns(const struct translation *t)
{
	if (t->state == TRANSLATION_ESTABLISHED)
		return TENANT_IDLE_NS;
	return tenant_lives(t) ? TENANT_ENDING_NS : LINGER_NS;
}

INLINE void tenant_fin(struct translation *t, enum translation_state mine,
		       enum translation_state theirs)
{
	if (t->state == TRANSLATION_ESTABLISHED)
		t->state = (u8)mine;
	else if (t->state == theirs)
		t->state = TRANSLATION_CLOSED;
}

/* A client's RST may be a stranger's: if the server goes on, so does this. */
INLINE void tenant_hears_client(const struct packet *p, struct translation *t)
{
	if (!seq_is_plausible(t, p->seq))
		return;
	if (p->flags & TCP_RST)
		tenant_expire(t, TENANT_ENDING_NS);
	else if (p->flags & TCP_FIN)
		tenant_fin(t, TRANSLATION_CLIENT_FIN, TRANSLATION_SERVER_FIN);
}

INLINE void tenant_hears_server(const struct packet *p, struct translation *t)
{
	if (p->flags & TCP_RST) {
		t->expires_ns = bpf_ktime_get_coarse_ns() + LINGER_RESET_NS;
		t->state = TRANSLATION_CLOSED;
		return;
	}
	u16 sent = (u16)((p->seq - t->delta - t->cookie) >> 16);
	if ((s16)(sent - t->sent_high) > 0) /* what is sent again lies behind */
		t->sent_high = sent;
	if (p->flags & TCP_ACK)
		t->acked_high = (u16)((p->ack - t->client_isn) >> 16);
	if (p->flags & TCP_FIN)
		tenant_fin(t, TRANSLATION_SERVER_FIN, TRANSLATION_CLIENT_FIN);
	if (t->state >= TRANSLATION_ESTABLISHED)
		tenant_expire(t, tenant_keeps_ns(t));
}

/* ---- to the server ------------------------------------------------------- */

/* The memory of connections has it from now on. */
INLINE void tenant_established(const struct endpoints *e, u32 client_isn)
{
	struct connection c = {};

	__builtin_memcpy(&c, e, sizeof(*e));
	c.client_isn = client_isn;
	connection_established(&c);
}

NOINLINE int tenant_accepted(struct __sk_buff *skb, const struct packet *p, u32 id,
			     struct translation *t, const struct endpoints *e)
{
	bool first = p->seq - 1 == t->client_isn && p->ack - 1 == t->cookie;
	bool begins = t->state == TRANSLATION_SYN_RECEIVED && flags_acknowledge(p->flags);
	bool repeated = first && t->state >= TRANSLATION_ESTABLISHED;

	if (begins) {
		tenant_established(e, t->client_isn);
		if (!translation_promote(e, t))
			return refuse(id, VERDICT_DROP_FLOWS_FULL);
		t = bpf_map_lookup_elem(&flows, e);
		if (!t)
			return refuse(id, VERDICT_DROP_FLOWS_FULL);
	}
	tenant_hears_client(p, t);
	if (!translate_in(skb, p, t))
		return refuse(id, VERDICT_DROP_UNTRANSLATABLE);
	return next(id, repeated ? VERDICT_PASS_REPEATED : VERDICT_PASS_CONNECTION);
}

/* Before the SYN-ACK. It may pass while the packet is being kept: then both send
 * it, which is better than none. */
INLINE int tenant_wait(struct __sk_buff *skb, const struct packet *p, u32 id, struct translation *t,
		       const struct endpoints *e)
{
	if (hold(skb, p) == HELD_CORRUPT)
		return refuse(id, VERDICT_DROP_EARLY);
	__sync_fetch_and_add(&t->delta, 0); /* full barrier: kept, then looked */
	if (deltas_are_known(t))
		return tenant_accepted(skb, p, id, t, e);
	return refuse(id, VERDICT_HOLD_EARLY);
}

/* False: there is no room. */
GLOBAL bool tenant_record(struct __sk_buff *skb, const struct packet *p, const struct proof *proof)
{
	struct endpoints e;
	struct tcp_options o;

	if (!p || !proof)
		return false;
	setup_options(skb, p, proof, &o);
	endpoints_of(&p->flow, false, &e);
	struct translation t = translation_begun(p, &o, proof);
	const struct translation *before = bpf_map_lookup_elem(&half_open, &e);
	if (before && before->client_isn == t.client_isn && before->cookie == t.cookie)
		t.requeues = before->requeues & (u8)~TRANSLATION_HELD_MASK;
	if (!bpf_map_delete_elem(&flows, &e)) /* an older connection's */
		t.requeues |= TRANSLATION_REPLACES;
	translating = true;
	return !bpf_map_update_elem(&half_open, &e, &t, BPF_ANY);
}

/* The packet becomes a SYN, cut to what that needs; who makes its checksum stays
 * as it was. */
GLOBAL bool tenant_syn(struct __sk_buff *skb, const struct packet *p, const struct proof *proof,
		       bool partial)
{
	struct tcp_options o;

	if (!p || !proof)
		return false;
	setup_options(skb, p, proof, &o);
	u32 length = synack_tcp_length(&o);
	u16 check = (u16)~checksum_fold(pseudo_sum(&p->flow, length));

	if (!syn_write(skb, p, &o) || bpf_skb_change_tail(skb, p->transport + length, 0))
		return false;
	return !partial ||
	       !bpf_skb_store_bytes(skb, p->transport + TCP_CHECKSUM_AT, &check, sizeof(check), 0);
}

/* The first packet is kept, and itself becomes the SYN. One that cannot be kept
 * comes again, as does one whose SYN was lost: the client has no answer to it. */
INLINE int tenant_begin(struct __sk_buff *skb, const struct packet *p, u32 id,
			const struct proof *proof)
{
	if (!tenant_record(skb, p, proof))
		return refuse(id, VERDICT_DROP_FLOWS_FULL);
	bool partial = hold(skb, p) == HELD_SUM_PARTIAL;
	return tenant_syn(skb, p, proof, partial) ? next(id, VERDICT_SETUP_TRANSLATED) :
						    refuse(id, VERDICT_DROP_EARLY);
}

/* A packet of no translated connection. */
NOINLINE int tenant_new(struct __sk_buff *skb, const struct packet *p,
			const struct service *service, u32 id)
{
	struct moment now = moment_now();
	struct proof proof;

	if (cookie_proves(p, service, &now, &proof)) { /* also if the service is off */
		if (connection_was(p, &now, CONNECTION_ESTABLISHED))
			return next(id, VERDICT_PASS_REPLAYED);
		return tenant_begin(skb, p, id, &proof);
	}
	if (service->mode == MODE_OFF)
		return next(id, VERDICT_PASS_OFF);
	if (!strict || source_is_allowed(p))
		return next(id, VERDICT_PASS_UNPROVEN);
	return unenforced(service, &now) ? next(id, VERDICT_PASS_UNENFORCED) :
					   reject(service, id, VERDICT_DROP_BAD_COOKIE);
}

INLINE bool tenant_is_silent(const struct translation *t)
{
	u64 begun_ns = t->expires_ns - LINGER_NS;

	return t->state == TRANSLATION_UNANSWERED ||
	       bpf_ktime_get_coarse_ns() - begun_ns > TENANT_SYN_NS;
}

/* A packet whose ends have a translated connection; NOT_TRANSLATED: it begins
 * another one. */
NOINLINE int tenant_translated(struct __sk_buff *skb, const struct packet *p,
			       const struct service *service, u32 id)
{
	struct endpoints e;

	endpoints_of(&p->flow, false, &e);
	struct translation *t = translation_find(&e);
	if (!t)
		return NOT_TRANSLATED;
	if (p->flags & TCP_SYN)
		return refuse(id, VERDICT_DROP_UNVERIFIED_SYNACK);
	bool first = p->seq - 1 == t->client_isn && p->ack - 1 == t->cookie;
	if (tenant_doubts(t, p) && proves_another(p, service))
		return NOT_TRANSLATED;
	if (deltas_are_known(t))
		return tenant_accepted(skb, p, id, t, &e);
	if (p->flags & TCP_RST) /* the client's own, or ours to an old socket */
		return next(id, VERDICT_PASS_RST);
	if (first && tenant_is_silent(t))
		return NOT_TRANSLATED;
	return tenant_wait(skb, p, id, t, &e);
}

INLINE int tenant_service(struct __sk_buff *skb, const struct packet *p,
			  const struct service *service, u32 id)
{
	int early = server_early(p, service, id);

	if (early != UNDECIDED)
		return early;
	int verdict = tenant_translated(skb, p, service, id);
	if (verdict != NOT_TRANSLATED)
		return verdict;
	if (service->mode == MODE_OFF && p->flags & (TCP_RST | TCP_SYN))
		return next(id, VERDICT_PASS_OFF);
	if (p->flags & TCP_RST)
		return next(id, VERDICT_PASS_RST);
	if (p->flags & TCP_SYN) /* the tenant may have sent the SYN, from a protected port */
		return !strict || source_is_allowed(p) ?
			       next(id, VERDICT_PASS_UNPROVEN) :
			       reject(service, id, VERDICT_DROP_UNVERIFIED_SYNACK);
	return tenant_new(skb, p, service, id);
}

/* Out by a tenant's device: to the server. */
SEC("tc")
int tenant_egress(struct __sk_buff *skb)
{
	struct packet p = {};
	struct arrival a = arrival_of(skb, &p, true);

	return a.service ? tenant_service(skb, &p, a.service, a.id) : a.verdict;
}

/* ---- from the server ----------------------------------------------------- */

INLINE void held_key_of(const struct endpoints *e, const struct translation *t,
			struct held_key *key)
{
	*key = (struct held_key){ .ends = *e, .cookie = t->cookie };
}

/* Sends what is held to the tenant, through our program at the way out. It stays
 * until it is pushed out: should the SYN-ACK come again, so does this. */
GLOBAL int held_release(struct __sk_buff *skb, const struct packet *p, const struct endpoints *e,
			const struct translation *t)
{
	if (!p || !e || !t)
		return 0;
	struct held_key key;
	bool partial = sum_is_partial(skb, p, payload_length(skb, p) + p->tcp_length);

	held_key_of(e, t, &key);
	for (u32 i = 0; i < HELD_PACKETS; i++) {
		key.index = i;
		if (held_fits(&key, p) && held_write(skb, &key, partial))
			bpf_clone_redirect(skb, skb->ifindex, 0);
	}
	return 0;
}

INLINE int tenant_synack(struct __sk_buff *skb, const struct packet *p, u32 id,
			 struct translation *t, const struct endpoints *e)
{
	int verdict = translate_synack(skb, p, id, t);

	if (verdict == TC_DROP && t->state == TRANSLATION_SYN_RECEIVED && t->expires_ns != 1)
		held_release(skb, p, e, t);
	return verdict;
}

/* The RST goes where the held packet would, whose headers are written already. */
GLOBAL bool tenant_reset(struct __sk_buff *skb, const struct packet *p, bool partial)
{
	if (!p)
		return false;
	struct packet reset = *p;

	for (int i = 0; i < 4; i++) {
		reset.flow.source[i] = p->flow.destination[i];
		reset.flow.destination[i] = p->flow.source[i];
	}
	reset.flow.ports = p->flow.ports << 16 | p->flow.ports >> 16;
	u16 check = (u16)~checksum_fold(pseudo_sum(&reset.flow, TCP_LENGTH));
	if (!reset_write(skb, &reset, p->ack) ||
	    bpf_skb_change_tail(skb, (u32)p->transport + TCP_LENGTH, 0))
		return false;
	return !partial || !bpf_skb_store_bytes(skb, (u32)p->transport + TCP_CHECKSUM_AT, &check,
						sizeof(check), 0);
}

/*
 * An ACK answers our SYN: an old connection has the place. The number that it
 * acknowledges is the one at which a RST clears it (RFC 9293 3.5.1), and the
 * first packet comes again behind the RST. If the answer is itself a RST, the
 * place is clear. Once: who does not yield keeps it.
 */
GLOBAL int tenant_stale(struct __sk_buff *skb, const struct packet *p, u32 id,
			struct translation *t, const struct endpoints *e)
{
	if (!p || !t || !e)
		return TC_DROP;
	struct held_key key;
	bool partial = sum_is_partial(skb, p, payload_length(skb, p) + p->tcp_length);

	held_key_of(e, t, &key);
	if (t->requeues & TRANSLATION_RESET_TRIED || !held_fits(&key, p))
		return refuse(id, VERDICT_DROP_STUBBORN_SOCKET);
	t->requeues |= TRANSLATION_RESET_TRIED;
	if (!(p->flags & TCP_RST) &&
	    (!held_write(skb, &key, partial) || !tenant_reset(skb, p, partial) ||
	     bpf_clone_redirect(skb, skb->ifindex, 0)))
		return refuse(id, VERDICT_DROP_STUBBORN_SOCKET);
	t->state = TRANSLATION_UNANSWERED; /* our program makes a SYN of the next */
	if (!held_write(skb, &key, partial) || bpf_clone_redirect(skb, skb->ifindex, 0))
		return refuse(id, VERDICT_DROP_STUBBORN_SOCKET);
	return refuse(id, VERDICT_REQUEUE_STALE);
}

/* Nobody listens: the RST that answers the SYN is the client's, and the end. */
INLINE int tenant_refused(struct __sk_buff *skb, const struct packet *p, u32 id,
			  struct translation *t)
{
	if (p->ack - 1 != t->client_isn) /* of a connection before */
		return next(id, VERDICT_PASS_INSIDE);
	bool done = reset_out(skb, p, t);

	translation_void(t);
	return done ? next(id, VERDICT_PASS_TRANSLATED) : refuse(id, VERDICT_DROP_UNTRANSLATABLE);
}

/* The RST may have been the old connection's end: a Linux in FIN_WAIT2 says so. */
INLINE bool tenant_may_yet(const struct translation *t)
{
	return (t->requeues & (TRANSLATION_REPLACES | TRANSLATION_RESET_TRIED)) ==
	       TRANSLATION_REPLACES;
}

NOINLINE int tenant_answers(struct __sk_buff *skb, const struct packet *p, u32 id)
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
		return tenant_synack(skb, p, id, t, &e);
	if (!deltas_are_known(t)) {
		if (p->flags & TCP_RST && !tenant_may_yet(t))
			return tenant_refused(skb, p, id, t);
		return tenant_stale(skb, p, id, t, &e);
	}
	tenant_hears_server(p, t);
	return translate_out(skb, p, t) ? next(id, VERDICT_PASS_TRANSLATED) :
					  refuse(id, VERDICT_DROP_UNTRANSLATABLE);
}

/* In by a tenant's device: from the server. Fails open but for what is
 * translated. */
SEC("tc")
int tenant_ingress(struct __sk_buff *skb)
{
	struct packet p = {};

	if (skb_packet(skb, &p) != PARSED_TCP)
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	int id = service_at(p.flow.source, p.flow.v6, (u16)(p.flow.ports >> 16));
	if (id == UNPROTECTED || id == SERVICE_NONE || !service_is_tenants((u32)id))
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	return tenant_answers(skb, &p, (u32)id);
}

#endif
