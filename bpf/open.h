/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs of hosts and of tenants' devices decide alike. */
#ifndef SMARTCOOKIE_OPEN_H
#define SMARTCOOKIE_OPEN_H

#include "enforced.h"
#include "setup.h"

/* A valid cookie with other numbers than the translated connection's. */
NOINLINE bool proves_another(const struct packet *p, const struct service *service)
{
	struct moment now = moment_now();
	struct proof proof;

	return flags_acknowledge(p->flags) && cookie_proves(p, service, &now, &proof) &&
	       !connection_was(p, &now, CONNECTION_ESTABLISHED);
}

/* A SYN: strict lets none pass that has not met an edge. */
INLINE int server_open(const struct packet *p, u32 id)
{
	if (!strict || source_is_allowed(p))
		return next(id, VERDICT_PASS_SYN);
	struct moment now = moment_now();
	return unenforced(&now) ? next(id, VERDICT_PASS_UNENFORCED) :
				  refuse(id, VERDICT_DROP_STRICT_SYN);
}

#endif
