/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs of hosts and of tenants' devices decide alike. */
#ifndef SMARTCOOKIE_ARRIVAL_H
#define SMARTCOOKIE_ARRIVAL_H

#include "defended.h"
#include "enforced.h"
#include "icmp.h"

/* A valid cookie with other numbers than the translated connection's. */
NOINLINE bool proves_another(const struct packet *p, const struct service *service)
{
	struct moment now = moment_now();
	struct proof proof;

	return flags_acknowledge(p->flags) && cookie_proves(p, service, &now, &proof) &&
	       !connection_was(p, &now, CONNECTION_ESTABLISHED);
}

/* A SYN: strict lets none pass that has not met an edge. */
INLINE int server_open(const struct packet *p, const struct service *service, u32 id)
{
	if (!strict || source_is_allowed(p))
		return next(id, VERDICT_PASS_SYN);
	struct moment now = moment_now();
	return unenforced(service, &now) ? next(id, VERDICT_PASS_UNENFORCED) :
					   reject(service, id, VERDICT_DROP_STRICT_SYN);
}

/* A packet to a protected service, or the verdict of another one. */
struct arrival {
	const struct service *service; /* or NULL */
	u32 id;
	int verdict;
};

INLINE struct arrival arrival_passes(enum verdict verdict)
{
	return (struct arrival){ .verdict = next(SERVICE_NONE, verdict) };
}

INLINE bool service_acts(u32 id, const struct service *service)
{
	(void)id;
	if (service->mode == MODE_AUTO) /* fail open where nobody says when */
		return hears_edges;
	return service->mode != MODE_OFF && service->mode != MODE_MONITOR;
}

/* Not a whole TCP segment, to a protected prefix. */
NOINLINE int server_unparsed(const struct packet *p, enum parsed parsed)
{
	const struct port_set *set = p ? prefix_find(p->flow.destination, p->flow.v6) : NULL;
	u32 monitored = SERVICE_NONE;

	if (!set)
		return next(SERVICE_NONE, VERDICT_PASS_OTHER);
	if (defended_at(set, &monitored))
		return refuse(SERVICE_NONE, parsed_fault(parsed));
	return next(monitored,
		    monitored == SERVICE_NONE ? VERDICT_PASS_OTHER : parsed_fault(parsed));
}

/* What comes to the services of tenants, or to this host's own. */
INLINE struct arrival arrival_of(struct __sk_buff *skb, struct packet *p, bool tenants)
{
	enum parsed parsed = skb_packet(skb, p);

	if (parsed == PARSED_OTHER) {
		bool error = translating && p->addressed && icmp_translate(skb, p, tenants);

		return arrival_passes(error ? VERDICT_PASS_ERROR : VERDICT_PASS_OTHER);
	}
	int found = service_at(p->flow.destination, p->flow.v6, flow_destination_port(&p->flow));
	if (found == UNPROTECTED)
		return arrival_passes(VERDICT_PASS_OTHER);
	if (parsed != PARSED_TCP)
		return (struct arrival){ .verdict = server_unparsed(p, parsed) };
	u32 id = (u32)found;
	const struct service *service = service_get(id);
	if (id == SERVICE_NONE || !service || (service->setup == SETUP_TENANT) != tenants)
		return arrival_passes(VERDICT_PASS_OTHER);
	return (struct arrival){ .service = service, .id = id };
}

enum { UNDECIDED = -4 }; /* beside those of translate.h and TC's verdicts */

/*
 * A service that is off lets everything pass. But clients whom an edge has
 * answered, which may not know it yet, have no connection unless it is made for
 * them, and what is translated goes on: only what is of neither is decided here.
 */
INLINE int server_early(const struct packet *p, const struct service *service, u32 id)
{
	enum verdict fault = flags_fault(p->flags);

	if (service->mode == MODE_OFF && (fault != VERDICT_PASS_OTHER || flags_open(p->flags)))
		return next(id, VERDICT_PASS_OFF);
	if (fault != VERDICT_PASS_OTHER)
		return reject(service, id, fault);
	return flags_open(p->flags) ? server_open(p, service, id) : UNDECIDED;
}

#endif
