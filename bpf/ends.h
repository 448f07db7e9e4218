/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The two ends of a kernel's socket. */
#ifndef SMARTCOOKIE_ENDS_H
#define SMARTCOOKIE_ENDS_H

#include "socket.h"

#include "kernel.h"

/* Fills in all but the client's ISN, and the server's address as services have
 * it. True: IPv6; a socket of that family may carry IPv4. */
INLINE bool socket_ends(const struct sock_common *sk, struct connection *c, u32 address[4])
{
	bool v6 = sk->skc_family == AF_INET6 &&
		  (sk->skc_v6_daddr.in6_u.u6_addr32[0] || sk->skc_v6_daddr.in6_u.u6_addr32[1] ||
		   sk->skc_v6_daddr.in6_u.u6_addr32[2] != BE32(0xffff));

	c->client_port_be = sk->skc_dport;
	c->server_port_be = BE16(sk->skc_num);
	if (!v6) {
		c->client_be[2] = c->server_be[2] = BE32(0xffff);
		c->client_be[3] = sk->skc_daddr;
		c->server_be[3] = sk->skc_rcv_saddr;
		address[0] = BE32(sk->skc_rcv_saddr);
		return false;
	}
	for (int i = 0; i < 4; i++) {
		c->client_be[i] = sk->skc_v6_daddr.in6_u.u6_addr32[i];
		c->server_be[i] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
		address[i] = BE32(c->server_be[i]);
	}
	return true;
}

#endif
