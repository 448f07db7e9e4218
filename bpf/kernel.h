/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few fields of the kernel's sockets that the server agent reads, found in
 * the running kernel's BTF when the program is loaded (CO-RE), and the kfunc
 * that makes a connection from a cookie.
 */
#ifndef SMARTCOOKIE_KERNEL_H
#define SMARTCOOKIE_KERNEL_H

#include "lib/types.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct netns_ipv4 {
	u8 sysctl_tcp_l3mdev_accept;
	u8 sysctl_tcp_syncookies;
	u8 sysctl_tcp_timestamps;
	u8 sysctl_tcp_sack;
	u8 sysctl_tcp_window_scaling;
	u8 sysctl_tcp_ecn;
	u8 sysctl_tcp_workaround_signed_windows;
	int sysctl_tcp_adv_win_scale;
	int sysctl_tcp_rmem[3];
};

struct net {
	u64 net_cookie;
	struct netns_ipv4 ipv4;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	u32 skc_tw_rcv_nxt;
};

struct sock {
	struct sock_common __sk_common;
	int sk_rcvbuf;
	u32 sk_ack_backlog;
	u32 sk_max_ack_backlog;
	u8 sk_userlocks : 4; /* a byte of its own in later kernels: read by its BTF */
};

struct inet_sock {
	u16 inet_sport; /* big-endian, still there when skc_num is not */
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 rcv_nxt;
	u32 rcv_wnd;
	u32 snd_una;
	u32 snd_nxt;
	u32 max_window;
	u32 window_clamp;
	u8 scaling_ratio; /* Linux 6.6 */
	u64 bytes_received;
	u64 bytes_acked;
};

struct inet_timewait_sock {
	struct sock_common __tw_common;
};

struct tcp_timewait_sock {
	struct inet_timewait_sock tw_sk;
};

struct tcp_request_sock {
	u32 rcv_isn;
	u32 snt_isn;
	u32 rcv_nxt;
};

struct bpf_iter_meta {
	struct seq_file *seq;
};

#pragma clang attribute pop

/* Linux 6.9, include/net/tcp.h: the kernel's own layout, passed by value. */
struct bpf_tcp_req_attrs {
	u32 rcv_tsval;
	u32 rcv_tsecr;
	u16 mss;
	u8 rcv_wscale;
	u8 snd_wscale;
	u8 ecn_ok;
	u8 wscale_ok;
	u8 sack_ok;
	u8 tstamp_ok;
	u8 usec_ts_ok;
	u8 reserved[3];
};

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk,
				   struct bpf_tcp_req_attrs *attrs, int attrs__sz) __ksym __weak;

#endif
