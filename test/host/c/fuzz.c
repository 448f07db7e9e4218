/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A target for libFuzzer: any bytes as a frame, and as options. */
#include "lib.h"

static void require(bool condition)
{
	if (!condition)
		abort();
}

static struct tcp_options options_of(const u8 *at, size_t length)
{
	struct exact e = exact_copy(at, length, ALIGNED);
	struct tcp_options o;

	options_read(e.data, e.end, (u32)length, &o);
	require(o.scale <= SCALE_NONE);
	for (u32 v6 = 0; v6 < 2; v6++) {
		struct tcp_options back = o;
		u32 code = options_code(&o, v6);

		require(code <= COOKIE_CODE_MASK && options_tsval(&o) <= TSVAL_MASK);
		back.tsecr_be = BE32(options_tsval(&o));
		options_decode(&back, code, v6);
		require(back.mss >= (v6 ? MSS_DEFAULT6 : MSS_DEFAULT4) && back.scale <= SCALE_NONE);
		require(back.sack <= o.sack && (back.scale == SCALE_NONE) == (o.scale == SCALE_NONE));
	}
	exact_free(&e);
	return o;
}

static void answer_fits(const struct packet *p, const struct tcp_options *o)
{
	const struct synack s = { .cookie = 1, .mss = 1460, .window = 1, .scale = 7 };
	u32 length = synack_length(p, o);
	u8 zero[80] = {};

	require(length <= (p->flow.v6 ? 80U : 60U));
	struct exact out = exact_copy(zero, length, ALIGNED);
	require(synack_write(out.data, out.end, p, o, &s));
	exact_free(&out);
}

int LLVMFuzzerTestOneInput(const u8 *bytes, size_t length);

int LLVMFuzzerTestOneInput(const u8 *bytes, size_t length)
{
	struct packet p;
	struct exact frame = exact_copy(bytes, length, FRAME);

	options_of(bytes, length < TCP_OPTIONS_MAX ? length : TCP_OPTIONS_MAX);
	if (frame_parse(&frame, &p) == PARSED_TCP) {
		require((size_t)p.transport + p.tcp_length <= length);
		require(packet_at_transport(frame.data, &p) == frame.data + p.transport);
		struct tcp_options o = options_of(bytes + p.transport + TCP_LENGTH,
						  (size_t)p.tcp_length - TCP_LENGTH);
		answer_fits(&p, &o);
	}
	exact_free(&frame);
	return 0;
}
