/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Runs the data plane's pure functions on lines of standard input, one result
 * line each. Words are separated by blanks, bytes are hex ("-" is none),
 * integers are decimal or 0x:
 *
 *   siphash KEY MESSAGE              halfsiphash KEY MESSAGE
 *   make HASH KEY EPOCH FLOW ISN CODE
 *   check HASH KEY EPOCH FLOW ISN COOKIE
 *   options V6 FLAGS OFFERED BYTES   decode V6 CODE BYTES
 *   frame BYTES                      answer OFFERED COOKIE TSVAL BYTES
 *   bucket INTERVAL TIME...          (1 for each that got a token, else 0)
 *   detect SYNS UNFINISHED HALF_OPEN CALM TIME,SYNS,FINISHED...
 *                                    (for each phase:cause:syns:unfinished:half-open:T2)
 *   bimodal T1 SYNS T2 MOST EVENT... (MODE:T2 after each; EVENT is s, q or t for
 *                                     SYN, full queue, a look, and its time)
 *   challenge HASH KEY EPOCH FLOW ISN
 *   returned HASH KEY EPOCH FLOW CHALLENGE
 *   back SEQ ACK FLAGS WINDOW BYTES
 *
 * FLOW: V6 SOURCE DESTINATION PORTS, addresses in bytes.
 */
#include "lib.h"

#include <stdio.h>

enum { LINE_MAX_BYTES = 1 << 20, BYTES_MAX = 1 << 14 };

struct bytes {
	u8 at[BYTES_MAX];
	size_t length;
};

static void fail(const char *why)
{
	fprintf(stderr, "host: %s\n", why);
	exit(1);
}

static const char *next_word(void)
{
	const char *word = strtok(NULL, " \n");

	if (!word)
		fail("a word is missing");
	return word;
}

static u64 next_number(void)
{
	return strtoull(next_word(), NULL, 0);
}

static u8 hex_digit(char c)
{
	return (u8)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static void next_bytes(struct bytes *b)
{
	const char *word = next_word();

	b->length = 0;
	if (!strcmp(word, "-"))
		return;
	for (; word[0] && word[1]; word += 2) {
		if (b->length == BYTES_MAX)
			fail("too many bytes");
		b->at[b->length++] = (u8)(hex_digit(word[0]) << 4 | hex_digit(word[1]));
	}
}

/* Little-endian, the missing bytes zero. */
static u64 load(const u8 *at, size_t length)
{
	u64 value = 0;

	for (size_t i = 0; i < length; i++)
		value |= (u64)at[i] << (8 * i);
	return value;
}

static void run_siphash(void)
{
	struct bytes key, message;

	next_bytes(&key);
	next_bytes(&message);
	struct siphash s = siphash_start((u64[]){ load(key.at, 8), load(key.at + 8, 8) });
	size_t i = 0;
	for (; message.length - i >= 8; i += 8)
		siphash_word(&s, load(message.at + i, 8));
	siphash_word(&s, load(message.at + i, message.length - i) | (u64)message.length << 56);
	printf("%016llx\n", (unsigned long long)siphash_end(&s));
}

static void run_halfsiphash(void)
{
	struct bytes key, message;

	next_bytes(&key);
	next_bytes(&message);
	struct halfsiphash s = halfsiphash_start(load(key.at, 8));
	size_t i = 0;
	for (; message.length - i >= 4; i += 4)
		halfsiphash_word(&s, (u32)load(message.at + i, 4));
	halfsiphash_word(&s, (u32)load(message.at + i, message.length - i) |
				     (u32)message.length << 24);
	printf("%08x\n", halfsiphash_end(&s));
}

static struct key_slot next_slot(void)
{
	struct key_slot slot = { .hash = (u8)next_number() };
	struct bytes key;

	next_bytes(&key);
	slot.key[0] = load(key.at, 8);
	slot.key[1] = key.length > 8 ? load(key.at + 8, 8) : 0;
	slot.epoch = next_number();
	return slot;
}

static void next_address(u32 words[4])
{
	struct bytes b;

	next_bytes(&b);
	for (size_t i = 0; i < b.length / 4; i++)
		words[i] = BE32((u32)load(b.at + 4 * i, 4));
}

static struct flow next_flow(void)
{
	struct flow f = { .v6 = next_number() != 0 };

	next_address(f.source);
	next_address(f.destination);
	f.ports = (u32)next_number();
	return f;
}

static void run_make(void)
{
	struct key_slot slot = next_slot();
	struct flow flow = next_flow();
	u32 isn = (u32)next_number(), code = (u32)next_number();

	printf("%08x %08x\n", cookie_mac(&slot, &flow, isn), cookie_make(&slot, &flow, isn, code));
}

static void run_check(void)
{
	struct key_slot slot = next_slot();
	struct flow flow = next_flow();
	u32 isn = (u32)next_number(), cookie = (u32)next_number(), code = 0;

	if (cookie_parity(cookie) == (slot.epoch & 1) &&
	    cookie_check(&slot, &flow, isn, cookie, &code))
		printf("%u\n", code);
	else
		printf("invalid\n");
}

static void run_challenge(void)
{
	struct key_slot slot = next_slot();
	struct flow flow = next_flow();
	u32 isn = (u32)next_number();

	printf("%08x %08x\n", challenge_mac(&slot, &flow), challenge_make(&slot, &flow, isn));
}

static void run_returned(void)
{
	struct key_slot slot = next_slot();
	struct flow flow = next_flow();
	u32 challenge = (u32)next_number();

	printf("%s\n", cookie_parity(challenge) == (slot.epoch & 1) &&
				      challenge_check(&slot, &flow, challenge) ?
			      "valid" :
			      "invalid");
}

static void print_options(const struct tcp_options *o)
{
	printf("mss=%u scale=%u sack=%d timestamps=%d ecn=%d", o->mss, o->scale, o->sack,
	       o->timestamps, o->ecn);
}

static struct tcp_options read_options(const u8 *bytes, size_t length)
{
	struct exact e = exact_copy(bytes, length, ALIGNED);
	struct tcp_options o;

	options_read(e.data, e.end, (u32)length, &o);
	exact_free(&e);
	return o;
}

static void run_options(void)
{
	bool v6 = next_number() != 0;
	u8 flags = (u8)next_number(), offered = (u8)next_number();
	struct bytes b;

	next_bytes(&b);
	struct tcp_options o = read_options(b.at, b.length);
	o.ecn = (flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR);
	print_options(&o);
	printf(" tsval=%u tsecr=%u", o.timestamps ? BE32(o.tsval_be) : 0,
	       o.timestamps ? BE32(o.tsecr_be) : 0);
	options_limit(&o, offered);
	printf(" code=%u bits=%u\n", options_code(&o, v6), o.timestamps ? options_tsval(&o) : 0);
}

static void run_bucket(void)
{
	u64 spent = 0, interval = next_number();

	for (const char *word; (word = strtok(NULL, " \n"));) {
		u64 after = bucket_next(spent, interval, strtoull(word, NULL, 0));

		spent = after ? after : spent;
		putchar(after ? '1' : '0');
	}
	putchar('\n');
}

static void run_detect(void)
{
	struct detector d = {};

	d.limits.syns = (u32)next_number();
	d.limits.unfinished = (u32)next_number();
	d.limits.half_open = (u32)next_number();
	d.limits.calm_ms = (u32)next_number();
	for (char *word; (word = strtok(NULL, " \n"));) {
		u64 now_ns = strtoull(word, &word, 0);
		struct tally total = { .syns = strtoull(word + 1, &word, 0) };

		total.finished = strtoull(word + 1, &word, 0);
		detect_count(&d, &total, now_ns);
		detect_decide(&d, now_ns);
		printf("%u:%u:%u:%u:%u:%u ", d.phase, d.now.cause, d.now.syns, d.now.unfinished,
		       d.now.half_open, d.calm_ms);
	}
	printf("\n");
}

/* What becomes of one port by an event at a time. */
static void bimodal_event(struct bimodal *b, const struct bimodal_limits *l, char what, u64 now_ns)
{
	if (what == 's' && bimodal_count(b, l, now_ns) == SYN_PRESSES)
		bimodal_press(b, l, now_ns);
	if (what == 'q')
		bimodal_press(b, l, now_ns);
	bimodal_rest(b, now_ns);
}

static void run_bimodal(void)
{
	struct bimodal_limits l = { .window_ns = next_number() };
	struct bimodal b = {};

	l.syns = (u32)next_number();
	l.calm_ns = b.calm_ns = next_number();
	l.calm_most_ns = next_number();
	for (const char *word; (word = strtok(NULL, " \n"));) {
		bimodal_event(&b, &l, word[0], strtoull(word + 1, NULL, 0));
		printf("%u:%llu:%u ", b.mode, (unsigned long long)b.calm_ns, b.changes);
	}
	printf("\n");
}

static void run_decode(void)
{
	bool v6 = next_number() != 0;
	u32 code = (u32)next_number();
	struct bytes b;

	next_bytes(&b);
	struct tcp_options o = read_options(b.at, b.length);
	options_decode(&o, code, v6);
	print_options(&o);
	printf("\n");
}

static void print_address(const u32 *words, bool v6)
{
	for (int i = 0; i < (v6 ? 4 : 1); i++)
		printf("%08x", words[i]);
	printf(" ");
}

static void run_frame(void)
{
	struct bytes b;
	struct packet p;

	next_bytes(&b);
	struct exact frame = exact_copy(b.at, b.length, FRAME);
	enum parsed parsed = frame_parse(&frame, &p);
	printf("kind=%d", parsed);
	if (parsed == PARSED_TCP) {
		printf(" ");
		print_address(p.flow.source, p.flow.v6);
		print_address(p.flow.destination, p.flow.v6);
		printf("%08x %08x %08x %02x %u %u %u", p.flow.ports, p.seq, p.ack, p.flags,
		       p.network, p.transport, p.tcp_length);
	}
	printf("\n");
	exact_free(&frame);
}

/* Into a buffer of exactly the answer's size, and into every shorter one. */
static void run_answer(void)
{
	u8 offered = (u8)next_number();
	struct synack s = { .mss = 1460, .window = 65535, .scale = 9 };
	struct bytes b, zero = {};
	struct packet p;

	s.cookie = (u32)next_number();
	s.tsval = (u32)next_number();
	next_bytes(&b);
	struct exact frame = exact_copy(b.at, b.length, FRAME);
	if (frame_parse(&frame, &p) != PARSED_TCP)
		fail("not TCP");
	struct tcp_options o = read_options(b.at + p.transport + TCP_LENGTH,
					    p.tcp_length - (size_t)TCP_LENGTH);
	o.ecn = (p.flags & (TCP_ECE | TCP_CWR)) == (TCP_ECE | TCP_CWR);
	options_limit(&o, offered);
	exact_free(&frame);

	u32 length = synack_length(&p, &o);
	for (u32 n = 0; n <= length; n++) {
		struct exact out = exact_copy(zero.at, n, ALIGNED);

		if (synack_write(out.data, out.end, &p, &o, &s) != (n == length))
			fail("wrote an answer into too little room, or none into enough");
		for (u32 i = 0; n == length && i < n; i++)
			printf("%02x", out.data[i]);
		exact_free(&out);
	}
	printf("\n");
}

/* Into a buffer of exactly its size, and into every shorter one. */
static void run_back(void)
{
	struct back back = { .seq = (u32)next_number(), .ack = (u32)next_number() };
	struct bytes b, zero = {};
	struct packet p;

	back.flags = (u8)next_number();
	back.window = (u16)next_number();
	next_bytes(&b);
	struct exact frame = exact_copy(b.at, b.length, FRAME);
	if (frame_parse(&frame, &p) != PARSED_TCP)
		fail("not TCP");
	exact_free(&frame);

	u32 length = back_length(&p.flow);
	for (u32 n = 0; n <= length; n++) {
		struct exact out = exact_copy(zero.at, n, ALIGNED);

		if (back_write(out.data, out.end, &p.flow, &back) != (n == length))
			fail("wrote a segment into too little room, or none into enough");
		for (u32 i = 0; n == length && i < n; i++)
			printf("%02x", out.data[i]);
		exact_free(&out);
	}
	printf("\n");
}

static const struct {
	const char *name;
	void (*run)(void);
} commands[] = {
	{ "siphash", run_siphash }, { "halfsiphash", run_halfsiphash }, { "make", run_make },
	{ "check", run_check },	    { "options", run_options },		{ "decode", run_decode },
	{ "frame", run_frame },	    { "answer", run_answer },	{ "bucket", run_bucket },
	{ "detect", run_detect },
	{ "bimodal", run_bimodal },
	{ "challenge", run_challenge }, { "returned", run_returned }, { "back", run_back },
};

static void run_line(char *line)
{
	const char *name = strtok(line, " \n");

	for (size_t i = 0; name && i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (!strcmp(name, commands[i].name)) {
			commands[i].run();
			return;
		}
	}
	fail("unknown command");
}

int main(void)
{
	static char line[LINE_MAX_BYTES];

	while (fgets(line, sizeof(line), stdin))
		run_line(line);
	return 0;
}
