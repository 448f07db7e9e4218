/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the kernel would say in its own SYN-ACK for a listening socket, and will
 * hold itself to when a cookie comes back: cookie_v4_check and
 * tcp_select_initial_window choose the window and its scale anew, from the
 * socket and the sysctls, and nobody tells the client again.
 */
#ifndef SMARTCOOKIE_LISTENER_H
#define SMARTCOOKIE_LISTENER_H

#include "maps.h"

#include <bpf/bpf_core_read.h>
#include "kernel.h"
#include "lib/options.h"
#include "lib/synack.h"

enum listener_facts {
	WINDOW_MAX = 65535,
	WINDOW_SIGNED_MAX = 32767,
	RECEIVE_BUFFER_LOCKED = 2, /* SOCK_RCVBUF_LOCK: the program has set SO_RCVBUF */
	RATIO_SHIFT = 8,           /* TCP_RMEM_TO_WIN_SCALE */
	TIMESTAMPS_WITHOUT_OFFSET = 2,
	COOKIES_ALWAYS = 2,
	TSVAL_TICK_NS = 1000 * 1000, /* as the kernel counts */
};

/* What the daemon writes. */
struct host_facts {
	u32 rmem_max; /* net.core.rmem_max, which no program can see */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct host_facts);
} facts SEC(".maps");

/* What the device carries, set when loading. */
const volatile u16 device_mss4 = 1460, device_mss6 = 1440;

INLINE const struct sock *listener_sock(const struct tcp_sock *t)
{
	return (const struct sock *)t;
}

INLINE const struct netns_ipv4 *listener_sysctls(const struct tcp_sock *t)
{
	return &listener_sock(t)->__sk_common.skc_net.net->ipv4;
}

/* tcp_full_space */
INLINE u32 listener_space(const struct tcp_sock *t)
{
	u32 buffer = (u32)listener_sock(t)->sk_rcvbuf;

	if (bpf_core_field_exists(t->scaling_ratio))
		return (u32)((u64)buffer * t->scaling_ratio >> RATIO_SHIFT);
	int scale = listener_sysctls(t)->sysctl_tcp_adv_win_scale;
	return scale <= 0 ? buffer >> (-scale & 31) : buffer - (buffer >> (scale & 31));
}

INLINE u8 window_scale_of(u32 space)
{
	u8 scale = 0;

	for (u32 i = 0; i < TCP_SCALE_MAX; i++)
		scale += space >> 16 >> i != 0;
	return scale;
}

/* tcp_select_initial_window, for the segment size that the cookie keeps. */
INLINE void listener_window(const struct tcp_sock *t, u32 mss, struct synack *s)
{
	const struct netns_ipv4 *sysctls = listener_sysctls(t);
	u32 space = listener_space(t), clamp = t->window_clamp, zero = 0;

	if ((u32)BPF_CORE_READ_BITFIELD(listener_sock(t), sk_userlocks) & RECEIVE_BUFFER_LOCKED &&
	    (clamp > space || !clamp))
		clamp = space;
	if (!clamp)
		clamp = WINDOW_MAX << TCP_SCALE_MAX;
	if (space > clamp)
		space = clamp;
	if (mss && space > mss)
		space -= space % mss;
	u32 most = sysctls->sysctl_tcp_workaround_signed_windows ? WINDOW_SIGNED_MAX : WINDOW_MAX;
	s->window = (u16)(space < most ? space : most);

	const struct host_facts *host = bpf_map_lookup_elem(&facts, &zero);
	u32 largest = (u32)sysctls->sysctl_tcp_rmem[2];
	if (host && host->rmem_max > largest)
		largest = host->rmem_max;
	if (space < largest)
		space = largest;
	s->scale = window_scale_of(space < clamp ? space : clamp);
}

/*
 * What comes back in a cookie: all in TSecr, or nothing. With tcp_timestamps at
 * 1 the kernel takes off a secret offset that nobody else knows: a TSval of ours
 * would be read as other options, and the kernel's next one be far from it.
 */
INLINE u8 listener_offer(const struct netns_ipv4 *sysctls)
{
	if (sysctls->sysctl_tcp_timestamps != TIMESTAMPS_WITHOUT_OFFSET)
		return 0;
	return OPTION_TIMESTAMPS | (sysctls->sysctl_tcp_sack ? OPTION_SACK : 0) |
	       (sysctls->sysctl_tcp_window_scaling ? OPTION_SCALE : 0) |
	       (sysctls->sysctl_tcp_ecn ? OPTION_ECN : 0);
}

INLINE void listener_limit(const struct netns_ipv4 *sysctls, struct tcp_options *o)
{
	options_limit(o, listener_offer(sysctls));
	if (o->timestamps)
		return;
	o->sack = false;
	o->scale = SCALE_NONE;
}

/* The kernel's clock of milliseconds, and below it the options
 * (cookie_init_timestamp): never ahead of what the kernel says next. */
INLINE u32 listener_tsval(u64 now_ns, const struct tcp_options *o)
{
	u64 ms = now_ns / TSVAL_TICK_NS, ts = (ms & ~(u64)TSVAL_MASK) | options_tsval(o);

	return (u32)(ts > ms ? ts - TSVAL_MASK - 1 : ts);
}

#endif
