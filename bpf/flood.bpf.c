/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The lab's generator. BPF_PROG_TEST_RUN runs it on live frames and sends what
 * it redirects. A recycled frame comes back with the receiver's edits, so
 * every frame is written completely: a template made by the lab, then what
 * differs between packets.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline))

enum flood_limits {
	FLOOD_WORDS = 13,                 /* 64-bit words of the template */
	FLOOD_ROOM = FLOOD_WORDS * 8 + 1, /* bytes of the frames handed in */
	FLOOD_BURST_MAX = 96,             /* a veth ring holds 256: never fill it at once */
	FLOOD_VARIANTS = 4,
};

enum frame_layout {
	IP4_CHECK = 24,
	IP4_SOURCE = 26,
	IP6_SOURCE = 22,

	TCP_SEQ = 4, /* from the TCP header */
	TCP_ACK = 8,
	TCP_CONTROL = 12, /* length of the header, flags */
	TCP_CHECK = 16,
	TCP_TSVAL = 28, /* in the option order of the template */
};

/* Sums are one's complement sums of the template in the order of memory. */
struct config {
	__u64 frame[FLOOD_WORDS]; /* zero where the program writes */
	__u64 interval;           /* nanoseconds between packets << 10, 0: none */
	__u32 source_be[4];       /* the prefix; IPv4 in the last word */
	__u32 spread_be[4];       /* bits of the source that are random */
	__u32 length;             /* of the frame */
	__u32 ip_sum;             /* IPv4 header */
	__u32 tcp_sum;            /* segment and pseudo header */
	__u32 interface;
	__u32 quantum; /* packets that a refill waits for */
	__u32 tcp_at;  /* offset of the TCP header */
	__u16 control_be[FLOOD_VARIANTS];
	__u8 ipv6;
	__u8 timestamps;
	__u8 random_ack;
	__u8 pad[1];
};

const volatile struct config flood = {};

/* One thread runs the program: none of this needs an atomic operation. */
__u64 random_state = 0;
__u64 sent = 0;
__u64 allowance = 0;
__u64 refilled_ns = 0;

/* xorshift64 (Marsaglia 2003): the state is never zero. */
INLINE __u64 random_next(void)
{
	__u64 x = random_state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	random_state = x;
	return x;
}

INLINE __u16 checksum(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)~sum;
}

/* The token bucket: false while no packet is due. */
INLINE bool packet_due(void)
{
	__u64 now, due;

	if (!flood.interval || allowance > 0)
		return true;
	now = bpf_ktime_get_ns();
	due = ((now - refilled_ns) << 10) / flood.interval;
	if (due < flood.quantum)
		return false;
	if (due > FLOOD_BURST_MAX) {
		due = FLOOD_BURST_MAX;
		refilled_ns = now;
	} else {
		refilled_ns += (due * flood.interval) >> 10;
	}
	allowance = due;
	return true;
}

INLINE __u32 source_word(int i, __u32 random)
{
	return flood.source_be[i] | (random & flood.spread_be[i]);
}

/* Writes the source address; returns its sum. */
INLINE __u64 write_source(void *frame, __u64 random)
{
	__u32 *address = frame + (flood.ipv6 ? IP6_SOURCE : IP4_SOURCE);
	__u32 low = source_word(3, (__u32)random);

	if (!flood.ipv6) {
		address[0] = low;
		*(__u16 *)(frame + IP4_CHECK) = checksum((__u64)flood.ip_sum + low);
		return low;
	}
	address[0] = source_word(0, (__u32)(random >> 24));
	address[1] = source_word(1, (__u32)(random >> 16));
	address[2] = source_word(2, (__u32)(random >> 32));
	address[3] = low;
	return (__u64)address[0] + address[1] + address[2] + low;
}

INLINE void write_tcp(void *tcp, __u64 random, __u64 sum)
{
	__u16 port = (__u16)random | bpf_htons(1024);
	__u32 seq = (__u32)(random >> 32);
	__u32 other = (__u32)(random >> 16);
	__u16 control = flood.control_be[(random >> 20) % FLOOD_VARIANTS];

	*(__u16 *)tcp = port;
	*(__u32 *)(tcp + TCP_SEQ) = seq;
	*(__u16 *)(tcp + TCP_CONTROL) = control;
	sum += (__u64)flood.tcp_sum + port + seq + control;
	if (flood.random_ack) {
		*(__u32 *)(tcp + TCP_ACK) = other;
		sum += other;
	}
	if (flood.timestamps) {
		*(__u32 *)(tcp + TCP_TSVAL) = other;
		sum += other;
	}
	*(__u16 *)(tcp + TCP_CHECK) = checksum(sum);
}

SEC("xdp") int lab_flood(struct xdp_md *ctx)
{
	void *frame = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u64 sum;

	if (!packet_due() || frame + FLOOD_ROOM > end)
		return XDP_DROP;
	for (int i = 0; i < FLOOD_WORDS; i++)
		*(__u64 *)(frame + 8 * i) = flood.frame[i];
	sum = write_source(frame, random_next());
	write_tcp(frame + flood.tcp_at, random_next(), sum);

	/* Cuts a fragment off, and makes the kernel reset a frame that a receiver resized. */
	if (bpf_xdp_adjust_tail(ctx, (int)flood.length - FLOOD_ROOM))
		return XDP_ABORTED;
	if (flood.interval)
		allowance--;
	sent++;
	return (int)bpf_redirect(flood.interface, 0);
}

char flood_license[] SEC("license") = "Dual BSD/GPL";
