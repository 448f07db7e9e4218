/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause OR Apache-2.0 */
/*
 * The contract between every part of smartcookie: the edge agents (XDP, P4),
 * the server agent, the daemons and the tools.
 *
 * C includes this file, Go is generated from it (bpf2go -type), and nothing
 * in it is declared a second time anywhere. cookie.md specifies the cookie
 * that the constants below belong to.
 *
 * Multi-byte fields are in host byte order unless the name ends in _be.
 */
#ifndef SMARTCOOKIE_CONTRACT_H
#define SMARTCOOKIE_CONTRACT_H

#include <linux/types.h>

/* Raised on every change that makes pinned state of an older build unusable. */
enum contract_version { CONTRACT_VERSION = 4 };

/* ---- the cookie ------------------------------------------------------- */

/*
 *  bit  31 | 30 ........... 26 | 25 ............................. 0
 *        P |  (code + H) mod 32 |  M
 *
 * H is bits 30..26 and M bits 25..0 of MAC(K_e, m); P is the lowest bit of e.
 */
enum cookie_layout {
	COOKIE_MAC_BITS    = 26,
	COOKIE_CODE_BITS   = 5,
	COOKIE_PARITY_SHIFT = 31,
	COOKIE_MAC_MASK    = 0x03ffffff,
	COOKIE_CODE_MASK   = 0x1f,
	COOKIE_ISN_MASK    = 0x00ffffff, /* the bits of the client's ISN in m */
	COOKIE_LENGTH4     = 15,         /* bytes of m, IPv4 */
	COOKIE_LENGTH6     = 39,         /* bytes of m, IPv6 */
};

/* A challenge (challenge.md) is a cookie without an ISN in its message. */
enum challenge_layout {
	CHALLENGE_LENGTH4 = 12, /* bytes of m, IPv4 */
	CHALLENGE_LENGTH6 = 36, /* bytes of m, IPv6 */
	CHALLENGE_CODE_FAR = 16, /* the code of one that a client could accept otherwise */
	CHALLENGE_SPAN = 1 << 16, /* acknowledgements behind the ISN that it could accept */
};

enum cookie_hash {
	HASH_NONE       = 0, /* an empty key slot */
	HASH_SIPHASH    = 1, /* SipHash-2-4, 128-bit key, low 32 bits of its output */
	HASH_HALFSIPHASH = 2, /* HalfSipHash-2-4, 64-bit key, 32-bit output */
};

/* Which epochs are accepted, relative to the receiver's own epoch e. */
enum cookie_acceptance {
	EDGE_EPOCHS_BEHIND   = 1,
	EDGE_EPOCHS_AHEAD    = 1,
	SERVER_EPOCHS_BEHIND = 2,
	SERVER_EPOCHS_AHEAD  = 1,
};

/* The low six bits of our TSval, for clients that use timestamps. */
enum tsval_layout {
	TSVAL_SCALE_MASK = 0x0f, /* window scale of the client, 15: none */
	TSVAL_SCALE_NONE = 0x0f,
	TSVAL_SACK       = 0x10,
	TSVAL_ECN        = 0x20,
	TSVAL_MASK       = 0x3f,
};

/* For clients without timestamps: code = class << 2 | MSS index. */
enum option_class {
	CLASS_PLAIN    = 0, /* neither SACK nor window scale */
	CLASS_SACK     = 1, /* SACK, no window scale */
	CLASS_SCALE_0  = 2, /* SACK and window scale 0 */
	CLASS_SCALE_2  = 3,
	CLASS_SCALE_4  = 4,
	CLASS_SCALE_7  = 5,
	CLASS_SCALE_8  = 6,
	CLASS_SCALE_0_NO_SACK = 7,
	CLASS_SCALE_MOST = 10, /* with SACK; larger ones are not agreed on */
	CLASS_SHIFT    = 2,
	CLASS_MSS_MASK = 3,
};

/* What a SYN without an MSS option means (RFC 9293 3.7.1). */
enum mss_default { MSS_DEFAULT4 = 536, MSS_DEFAULT6 = 1220 };

enum mss_tables {
	MSS_LONG = 32,
	MSS_SHORT = 4,
	MSS4_LONG_ETHERNET = 25, /* the index of 1460 */
	MSS6_LONG_ETHERNET = 23, /* the index of 1440 */
};

/* MSS values that a cookie can carry, ascending. LONG: clients with
 * timestamps (5 bits); SHORT: clients without (2 bits). */
#define MSS4_LONG_VALUES                                                 \
	536, 600, 680, 768, 880, 996, 1024, 1100, 1160, 1200, 1220, 1240, \
	1260, 1280, 1300, 1320, 1340, 1360, 1380, 1400, 1412, 1420, 1430, \
	1440, 1452, 1460, 1960, 2948, 4056, 6000, 8860, 8960
#define MSS6_LONG_VALUES                                                  \
	1220, 1230, 1240, 1250, 1260, 1270, 1280, 1290, 1300, 1310, 1320, \
	1330, 1340, 1350, 1360, 1370, 1380, 1390, 1400, 1408, 1412, 1420, \
	1432, 1440, 1460, 1940, 2928, 4036, 5980, 8860, 8940, 8960
#define MSS4_SHORT_VALUES 536, 1300, 1400, 1460
#define MSS6_SHORT_VALUES 1220, 1300, 1400, 1440

/* ---- keys and clock --------------------------------------------------- */

/* The key of one epoch. Slot of epoch e: domain * slots + e mod slots; a slot
 * whose epoch is another one holds no key for e. */
struct key_slot {
	__u64 epoch;
	__u64 key[2];       /* SipHash k0, k1; HalfSipHash: key[0] alone */
	__u8  hash;         /* enum cookie_hash */
	__u8  window_scale; /* of the server, announced in the SYN-ACK */
	__u8  pad[6];
};

/* Written by the daemon, read for every packet that needs an epoch.
 * epoch = (coarse monotonic clock + offset_ns) / epoch_ns. */
struct agent_clock {
	__u64 offset_ns;      /* to real time, modulo 2^64; 0 in the host shape */
	__u64 epoch_ns;
	__u64 learn_until_ns; /* coarse monotonic; unknown flows pass until then */
	__u64 tables_version; /* raised after every change of prefixes or ports */
};

/* In the host shape the kernel makes the epoch keys itself, by SipHash-2-4
 * under this master key, which no daemon keeps. */
struct master_key {
	__u64 key[2];
	__u32 armed;
	__u8  window_scale;
	__u8  pad[3];
};

/* ---- services --------------------------------------------------------- */

enum service_limits {
	SERVICE_NONE = 0, /* id of "no service"; services count from 1 */
	SERVICES_MAX = 1024,
	DOMAINS_MAX  = 64,
	PORT_RANGES_MAX = 65536,
	PREFIXES_MAX = 65536,
};

enum service_mode {
	MODE_OFF = 0,      /* everything passes */
	MODE_ALWAYS = 1,
	MODE_MONITOR = 2,  /* decides and counts; everything passes */
	MODE_AUTO = 3,     /* everything passes until the detector sees a flood */
	MODE_STARTING = 4, /* always, but unknown packets still pass: until the timer says so */
};

/* What becomes of new connections when the keys have run out. */
enum keys_end { KEYS_END_STOP = 0, KEYS_END_PASS = 1 };

/* How a server makes connections of cookies. */
enum setup_kind {
	SETUP_AUTO      = 0, /* native, and by translation what the kernel refuses */
	SETUP_NATIVE    = 1, /* the kernel adopts the cookie */
	SETUP_TRANSLATE = 2, /* the kernel does a handshake, its numbers are translated */
	SETUP_TENANT    = 3, /* likewise, in another network namespace or machine */
};

/* What makes an edge let a flow through: its cookie, or the agent's word that
 * the connection was made. */
enum admission { ADMISSION_COOKIE = 0, ADMISSION_CONFIRM = 1 };

/* How an edge proves strangers. */
enum strategy {
	STRATEGY_SPLIT = 0, /* a cookie, of which the server's agent makes the connection */
	STRATEGY_PROXY = 1, /* a cookie, then a handshake of the edge's own with the server */

	/* a challenge, then the client's address is let through for a time: */
	STRATEGY_AUTH_COOKIE = 2, /* a handshake with a cookie, then a RST */
	STRATEGY_AUTH_FULL = 3,   /* a handshake without a cookie, then a RST */
	STRATEGY_AUTH_RST = 4,    /* a wrong acknowledgement, which the client resets */
};

/* Options that a service agrees to. */
enum service_option {
	OPTION_TIMESTAMPS = 1,
	OPTION_SACK       = 2,
	OPTION_SCALE      = 4,
	OPTION_ECN        = 8,
};

struct service {
	__u8  mode;     /* enum service_mode that holds now */
	__u8  keys_end; /* enum keys_end */
	__u8  options;  /* enum service_option */
	__u8  domain;   /* index of the key domain */
	__u16 mss4;     /* MSS option of the SYN-ACK */
	__u16 mss6;
	__u16 window;   /* of the SYN-ACK, unscaled (RFC 7323 2.2) */
	__u8  setup;    /* enum setup_kind */
	__u8  silent;   /* enum silent_policy */
	__u8  admission; /* enum admission */
	__u8  strategy;  /* enum strategy */
	__u8  auth_prefix4; /* bits of a source that is whitelisted */
	__u8  auth_prefix6;
	__u32 probe_interval_ns; /* between two probes; 0: none are sent */
	__u32 auth_seconds;      /* that a source stays whitelisted */
	__u32 auth_interval_ns;  /* between two of its SYNs */
	__u32 auth_unfinished;   /* of its SYNs without an ACK end it */
	__u32 packet_interval_ns; /* between two packets of a verified flow; 0: no budget */
	__u8  min_ttl;            /* of packets that are no SYN, 0: any */
	__u8  pad[3];
};

/* ---- sources that have met a challenge ---------------------------------- */

/* A source, as its service's prefix length cuts it off; words as in struct
 * flow. */
struct whitelist_key {
	__u32 source[4];
	__u16 service;
	__u8  v6;
	__u8  pad;
};

struct whitelisted {
	__u64 until_ns;   /* coarse monotonic: later SYNs are challenged again */
	__u64 spent_ns;   /* token bucket of its SYNs */
	__u32 unfinished; /* SYNs let through since the last ACK that followed one */
	__u32 pad;
};

struct prefix4 {
	__u32 length;
	__u32 address_be;
};

struct prefix6 {
	__u32 length;
	__u32 address_be[4];
};

/* Value of a protected prefix: its ascending, disjoint ranges in port_ranges. */
struct port_set {
	__u32 first;
	__u32 count;
};

struct port_range {
	__u16 low;
	__u16 high; /* inclusive */
	__u16 service;
	__u16 pad;
};

/* ---- the detector -------------------------------------------------------
 *
 *                a figure crosses its limit
 *     PASSIVE ------------------------------> GRACE
 *        ^                                      | GRACE_MS
 *        | LEAVE_MS                             v
 *     LEAVING <-----------------------------  ACTIVE
 *        |       all figures low for T2         ^
 *        +--------------------------------------+
 *                a figure crosses its limit
 */
enum detector_phase {
	DETECTOR_PASSIVE = 0, /* everything passes */
	DETECTOR_GRACE   = 1, /* SYNs are answered, unknown packets still pass */
	DETECTOR_ACTIVE  = 2,
	DETECTOR_LEAVING = 3, /* as ACTIVE; agents are told that nothing is enforced */
};

enum detector_layout {
	DETECTOR_SLOTS   = 16, /* that make a second, which is what a figure looks back */
	DETECTOR_GRACE_MS = 3000,
	DETECTOR_LEAVE_MS = 3000, /* agents hear of it every second */
	DETECTOR_T2_MOST  = 16,   /* times calm_ms */
	DETECTOR_UNFINISHED_FROM = 10, /* the share counts from a tenth of `syns` on */
	DETECTOR_DECAY_SHIFT = 7, /* half-open ones fade by 1/128 in a slot: in 8 s to 1/e */
	DETECTOR_HALF_OPEN_MOST = 1 << 20, /* that are estimated */
};

/* Which limits a figure has crossed: bits. */
enum detector_cause { CAUSE_SYNS = 1, CAUSE_UNFINISHED = 2, CAUSE_HALF_OPEN = 4 };

struct detect_limits {
	__u32 syns;       /* in a second */
	__u32 unfinished; /* handshakes, percent; 0: not looked at */
	__u32 half_open;  /* handshakes; 0: not looked at */
	__u32 calm_ms;    /* T2 of a first flood */
};

struct detect_figures {
	__u32 syns; /* in the last second */
	__u32 unfinished;
	__u32 half_open;
	__u32 cause; /* enum detector_cause */
};

struct detector {
	struct detect_limits limits;
	struct detect_figures now;
	struct detect_figures on;  /* when it last began to act */
	struct detect_figures off; /* when it last ended */
	__u64 since_ns;     /* of the phase, monotonic */
	__u64 calm_from_ns; /* since when all figures are low; 0: they are not */
	__u64 on_ns;
	__u64 off_ns;
	__u64 syns;     /* of the tallies at the last look */
	__u64 finished;
	__u64 slot;     /* the last look's, by number; 0: there was none */
	__u32 slot_syns[DETECTOR_SLOTS];
	__u32 slot_finished[DETECTOR_SLOTS];
	__u32 half_open;
	__u32 calm_ms; /* T2 now */
	__u32 times_on;
	__u32 times_off;
	__u32 phase; /* enum detector_phase */
	__u32 pad;
};

/* Of a service on one CPU, since the start. */
struct tally {
	__u64 syns;
	__u64 finished; /* handshakes */
};

enum service_name_limit { SERVICE_NAME_BYTES = 64 };

/* What an operator calls a service, and what its configuration says. */
struct service_label {
	__u8 name[SERVICE_NAME_BYTES]; /* ends in zeros; none: no such service */
	__u8 mode;                     /* enum service_mode, configured */
	__u8 pad[7];
};

/* ---- sources ------------------------------------------------------------ */

enum source_limits {
	LISTED_MAX = 1000000, /* prefixes of each list and family */
	LISTED_NESTED = 8,    /* expired prefixes around a source that are looked behind */
	PLACES_MAX = 65536,
	BYPASSES_MAX = 256,
};

/* Who has put a prefix on a list. */
enum listed_origin {
	LISTED_FILE = 1, /* the configuration: gone when it no longer says so */
	LISTED_HAND = 2, /* a command: stays until it is removed or expires */
};

/* Value of a prefix in deny or allow. */
struct listed {
	__u64 until_ns; /* coarse monotonic; 0: for good */
	__u8  length;   /* of the prefix */
	__u8  origin;   /* enum listed_origin */
	__u8  pad[6];
};

/*
 * deny_marks: words of 64 bits that say where nothing is denied, so that few walk a long
 * list's tries. Each prefix on deny is marked before a trie has it:
 *
 *   IPv4, shorter than /32   a bit for each block of /24 that it touches, by its number
 *   IPv4, /32                three bits of one word, by a hash of the address
 *   IPv6                     likewise, by a hash of its first 0, 16, 32, 48 or 64 bits:
 *                            as many as it fixes
 *
 * The last word says by bits which of these kinds there are. A mark too many costs a
 * walk, one too few would let a denied source through. The hash has no key: who makes
 * up sources that meet others' marks pays no more than who takes listed ones.
 */
enum deny_mark {
	MARK_BLOCK_WORDS = 1 << 18, /* the first ones; 2^24 blocks */
	MARK_HASH_BITS = 19,
	MARK_HASH_WORDS = 1 << MARK_HASH_BITS,
	MARK_KINDS = MARK_BLOCK_WORDS + MARK_HASH_WORDS, /* the last one */
	MARK_WORDS,

	MARK_STEP6 = 16,    /* IPv6: kind k is of 16 k bits */
	MARK_KINDS6 = 5,
	MARK_HOST4 = MARK_KINDS6,
	MARK_BLOCK4,
};

/* Where packets of a source may come in. */
struct place {
	__u32 port;        /* interface index of an outside port; 0: inside only */
	__u32 bypass;      /* whose rate its SYNs have */
	__u32 interval_ns; /* between two SYNs that pass; 0: none does */
};

/* What there is to look up of every source: bits. */
enum source_check { SOURCES_DENIED = 1, SOURCES_PLACED = 2 };

struct source_state {
	__u32 checks;  /* enum source_check */
	__u32 version; /* of deny and allow, raised after every change of them; not 0 */
};

/* The tries to get an answer that a network has made. */
struct answer_budget {
	__u32 window; /* a number of windows of 2^30 ns */
	__u32 tries;  /* in it */
	__u32 before; /* in the one before */
	__u32 pad;
};

/* ---- the verified filter ---------------------------------------------- */

enum filter_layout {
	FILTER_WORDS       = 4,  /* 64-bit words per line and generation */
	FILTER_BITS        = 8,  /* bits per flow, two in each word */
	FILTER_GENERATIONS = 2,
	FILTER_KEYS        = 11, /* words of the hash's key */
};

/* Both generations of a block share one cache line: one miss per lookup. */
struct filter_line {
	__u64 word[FILTER_GENERATIONS][FILTER_WORDS];
};

struct filter_state {
	__u64 key[FILTER_KEYS]; /* random per agent */
	__u64 position;         /* of the sweep: its round << 32 | the next line */
};

/* ---- the server's memory ---------------------------------------------- */

/* A connection by its first byte: 4-tuple and initial sequence number of the
 * client. IPv4 addresses are written as IPv4-mapped ones. */
struct connection {
	__u32 client_be[4];
	__u32 server_be[4];
	__u16 client_port_be;
	__u16 server_port_be;
	__u32 client_isn;
};

struct connection_note {
	__u64 at_ns; /* coarse monotonic */
	__u32 what;  /* enum connection_event */
	__u32 pad;
};

/* The table of established connections, for announcements. */
enum established_limit { ESTABLISHED_MAX = 1 << 21 };

struct established_state {
	__u32 round; /* of the walk that last saw an entry, or later */
	__u32 lost;  /* the table was full: the sockets themselves are to be walked */
};

enum connection_event {
	CONNECTION_ESTABLISHED = 1, /* the server's kernel has it, or had it */
	CONNECTION_REQUEUED    = 2, /* its first packet has displaced an old socket */
};

/* ---- translated connections ------------------------------------------- */

/* The ends of a connection, written as in struct connection. */
struct endpoints {
	__u32 client_be[4];
	__u32 server_be[4];
	__u16 client_port_be;
	__u16 server_port_be;
};

/*
 *  first packet        SYN-ACK             any ACK
 * ------------> SYN_SENT -----> SYN_RECEIVED ----> ESTABLISHED, in `flows`
 *                  |  ^           in `half_open`
 *     no SYN-ACK   v  | first packet, again          | the socket's end
 *               UNANSWERED                            v
 *                                                   CLOSED, for a while
 */
enum translation_state {
	TRANSLATION_SYN_SENT = 1,
	TRANSLATION_UNANSWERED,
	TRANSLATION_SYN_RECEIVED,
	TRANSLATION_ESTABLISHED,
	TRANSLATION_CLOSED, /* its socket is gone, or in TIME_WAIT */

	/* of tenants, whose sockets are out of sight: */
	TRANSLATION_CLIENT_FIN, /* established, and this end has sent its FIN */
	TRANSLATION_SERVER_FIN,
};

/* `requeues` of a tenant's connection: packets held, and flags. */
enum translation_held {
	TRANSLATION_HELD_MASK   = 0x3f,
	TRANSLATION_REPLACES    = 0x40, /* another connection of these ends */
	TRANSLATION_RESET_TRIED = 0x80,
};

/* `options`: three window scales, 15 is none, and a flag. */
enum translation_options {
	TRANSLATION_SCALE_MASK      = 0x0f, /* of each; the client's is the lowest */
	TRANSLATION_ANNOUNCED_SHIFT = 4,    /* that he applies to the server's windows */
	TRANSLATION_KERNEL_SHIFT    = 8,    /* that the server's kernel means */
	TRANSLATION_TIMESTAMPS      = 0x1000,
};

struct translation {
	__u64 expires_ns;  /* coarse monotonic; 0: lives as long as its socket */
	__u32 client_isn;
	__u32 cookie;
	__u32 delta;       /* the kernel's sequence numbers less the client's view */
	__u32 stamp_delta; /* likewise of timestamps; before the SYN-ACK the first TSecr */
	__u8  state;       /* enum translation_state */
	__u8  requeues;    /* of packets that came before the SYN-ACK */
	__u16 options;     /* enum translation_options */
	__u16 acked_high;  /* tenants: what the server has of the client, in 64 KiB */
	__u16 sent_high;   /* tenants: what it has sent, likewise */
};

/* ---- control messages ---------------------------------------------------
 * Between the daemons of both halves, in UDP; control.md has the bytes. All
 * fields of a message are big-endian.
 */
enum control_layout {
	CONTROL_VERSION = 0xc1,
	CONTROL_HEADER  = 40,   /* bytes before the body */
	CONTROL_TAG     = 8,    /* bytes behind it: SipHash-2-4 */
	CONTROL_BYTES   = 1400, /* of a message, at most */
	CONTROL_HELLO_BYTES = 24, /* bodies, without lists */
	CONTROL_STATE_BYTES = 24,
	CONTROL_FLOWS_BYTES = 8,
	CONTROL_PERIOD_SECONDS = 64, /* each period has keys of its own */
	CONTROL_PERIODS_BEHIND = 2,
	CONTROL_PERIODS_AHEAD  = 1,
	CONTROL_WINDOW = 1024,       /* counters that may come late */
	CONTROL_SILENCE_SECONDS = 5, /* then a peer counts as silent */
	CONTROL_PACKET_BYTES = 1352, /* of the packet in a SETUP or PROBE: a body */
};

enum control_direction { CONTROL_TO_AGENT = 1, CONTROL_TO_EDGE = 2 };

enum control_kind {
	CONTROL_HELLO   = 1, /* edge to agent, every second */
	CONTROL_STATE   = 2, /* agent to edge, every second: the heartbeat */
	CONTROL_FLOWS   = 3, /* agent to edge: established flows */
	CONTROL_SETUP   = 4, /* edge to agent: a packet with a valid cookie */
	CONTROL_CONFIRM = 5, /* agent to edge: flows of connections that exist */
	CONTROL_PROBE   = 6, /* edge to agent: a packet of an unknown flow */
};

/* Flags of the header, for each kind. */
enum control_hello_flag { HELLO_WANTS_ALL = 1, HELLO_ENFORCES = 2 };
enum control_state_flag {
	STATE_STRICT = 1,
	STATE_OFF    = 2,      /* every service of the agent is off */
	STATE_ANY_LISTENS = 4, /* too many listeners to list: each port counts */
};
enum control_flows_flag { FLOWS_LAST = 1 };

/* What both daemons count; the names are those of `status`. */
enum control_event {
	CONTROL_SENT_HELLO = 0,
	CONTROL_SENT_STATE,
	CONTROL_SENT_FLOWS,
	CONTROL_SENT_BYTES,
	CONTROL_HEARD_HELLO,
	CONTROL_HEARD_STATE,
	CONTROL_HEARD_FLOWS,
	CONTROL_UNCONFIRMED_HELLO,  /* answered by a STATE, nothing else */
	CONTROL_ANNOUNCED,          /* flows sent */
	CONTROL_LEARNED,            /* flows put into the filter */
	CONTROL_REFUSED_LENGTH,     /* shorter or longer than any message */
	CONTROL_REFUSED_VERSION,
	CONTROL_REFUSED_KIND,       /* unknown, or not for this half */
	CONTROL_REFUSED_SENDER,     /* id or address of no configured peer */
	CONTROL_REFUSED_PERIOD,     /* too old, or from the future */
	CONTROL_REFUSED_KEY,        /* no key for its period */
	CONTROL_REFUSED_TAG,
	CONTROL_REFUSED_SESSION,    /* made for, or by, another session */
	CONTROL_REFUSED_REPLAY,
	CONTROL_REFUSED_BODY,       /* authentic and malformed */
	CONTROL_REFUSED_FOREIGN,    /* about an address that is not the agent's */
	CONTROL_REFUSED_UNPROTECTED, /* flows of no service of this edge */
	CONTROL_SENT_SETUP,
	CONTROL_SENT_PROBE,
	CONTROL_SENT_CONFIRM,
	CONTROL_HEARD_SETUP,        /* its packet was handed to the kernel */
	CONTROL_HEARD_PROBE,        /* likewise, the kernel has its connection */
	CONTROL_HEARD_CONFIRM,
	CONTROL_UNKNOWN_PROBE,      /* the kernel has no such connection */
	CONTROL_UNCONFIRMED_SETUP,  /* no connection has come of its packet */
	CONTROL_CONFIRMED,          /* flows sent */
	CONTROL_UNSENT,             /* packets whose agent is not heard */
	CONTROL_REFUSED_UNASKED,    /* confirmed flows that the edge did not ask about */
	CONTROL_EVENT_COUNT,
};

/* In what two halves disagree: bits. */
enum control_disagreement {
	DISAGREE_KEY          = 1,  /* the key file's entries for the domain */
	DISAGREE_EPOCH_LENGTH = 2,
	DISAGREE_CLOCK        = 4,  /* by more than half an epoch */
	DISAGREE_SCALE        = 8,  /* window scale */
	DISAGREE_MSS          = 16, /* the edge's is larger than the agent's MTU allows */
	DISAGREE_MODE         = 32, /* off at the agent, always at the edge */
	DISAGREE_UNHEARD_KEY  = 64, /* its messages have a wrong tag */
	DISAGREE_UNHEARD_CLOCK = 128, /* its messages are of another period */
};

/* How an edge stands to an agent. */
enum agent_phase {
	AGENT_UNHEARD  = 0, /* everything passes */
	AGENT_GRACE    = 1, /* SYNs are answered, unknown packets still pass */
	AGENT_ENFORCED = 2,
	AGENT_SILENT   = 3, /* the service's policy decides */
};

/* What becomes of a service whose agent is silent. */
enum silent_policy { SILENT_KEEP = 0, SILENT_PASS = 1, SILENT_STOP = 2 };

/* A packet on its way to the edge's daemon, which sends it to an agent. */
struct relayed {
	__u16 length; /* of the packet, from its IP header on */
	__u8  kind;   /* CONTROL_SETUP or CONTROL_PROBE */
	__u8  pad[5];
	__u8  packet[CONTROL_PACKET_BYTES];
};

/* What a run of the server's injecting program is to do, and what it says. */
enum inject_order { INJECT_PACKET = 1, INJECT_IF_KNOWN = 2 };
enum inject_result { INJECT_KNOWN = 1, INJECT_DONE = 2 };

/* A peer as its daemon knows it; the edge's programs read the phase. */
struct control_peer {
	__u32 phase;         /* enum agent_phase; 0 at the agent */
	__u32 disagreements; /* enum control_disagreement */
	__u32 any_listens;   /* every port counts as listening */
	__u32 pad;
	__u64 heard_ns;      /* monotonic; at an edge: when the last whole announcement began */
};

/* A listening port of an agent. Address 0: all addresses of its family. */
struct listening {
	__u32 agent;
	__u32 address[4]; /* as in struct flow, IPv4 in word 0 */
	__u16 port;
	__u8  v6;
	__u8  pad;
};

/* A flow that an agent announces, as in struct flow. */
struct announced {
	__u32 client[4];
	__u32 server[4];
	__u32 ports; /* client << 16 | server */
	__u32 v6;
};

enum announced_limit { ANNOUNCED_MAX = 256 }; /* flows in one message */

struct announcement {
	__u32 count;
	__u32 learned; /* by the program */
	struct announced flow[ANNOUNCED_MAX];
};

/* ---- verdicts ---------------------------------------------------------
 * Every packet that meets a program ends in exactly one of these. Names say
 * what became of it: PASS, ANSWER, SETUP, DROP.
 */
enum verdict {
	/* both halves */
	VERDICT_PASS_OTHER = 0,        /* not for a protected service: untouched */
	VERDICT_PASS_OFF,              /* the service is off */
	VERDICT_DROP_FRAGMENT,         /* TCP fragment to a protected prefix */
	VERDICT_DROP_UNPARSABLE,       /* TCP or its headers beyond our bounds */
	VERDICT_DROP_VLAN_DEPTH,       /* more than two VLAN tags */
	VERDICT_DROP_FLAGS_NULL,       /* no flag at all */
	VERDICT_DROP_FLAGS_SYN_FIN,
	VERDICT_DROP_FLAGS_SYN_RST,
	VERDICT_DROP_FLAGS_XMAS,       /* FIN, PSH and URG */
	VERDICT_DROP_FLAGS_OTHER,      /* any other illegal set */
	VERDICT_DROP_BAD_COOKIE,
	VERDICT_DROP_UNVERIFIED_SYNACK, /* nobody here has sent its SYN */

	/* edge */
	VERDICT_DROP_NO_KEY,           /* keys have run out, the service stops */
	VERDICT_ANSWER_SYN,            /* SYN-ACK with a cookie */
	VERDICT_PASS_VERIFIED,         /* in the verified filter */
	VERDICT_PASS_COOKIE,           /* valid cookie, now in the filter */
	VERDICT_PASS_LEARNING,         /* unknown, but still learning */
	VERDICT_PASS_SOCKET,           /* host shape: the kernel knows the flow */
	VERDICT_PASS_NO_KEY,           /* keys have run out, the service passes */
	VERDICT_PASS_INSIDE,           /* from a server */
	VERDICT_DROP_UNVERIFIED_RST,
	VERDICT_DROP_BAD_SOURCE,       /* SYN from or to an address that cannot be answered */
	VERDICT_DROP_NO_ROOM,          /* the SYN-ACK does not fit the frame */
	VERDICT_DROP_UNROUTABLE,       /* no route forward */

	/* server */
	VERDICT_SETUP,                 /* connection made from the cookie */
	VERDICT_REQUEUE_TIMEWAIT,      /* turned into a reset of the old socket; */
	VERDICT_REQUEUE_STALE,         /* its copy comes again and sets up */
	VERDICT_PASS_SYN,
	VERDICT_PASS_CONNECTION,       /* the kernel has a socket for it */
	VERDICT_PASS_REPEATED,         /* setup packet of a live connection, again */
	VERDICT_PASS_KERNEL_COOKIE,    /* the kernel's own SYN cookie */
	VERDICT_PASS_CLOSED_PORT,      /* valid cookie, no listener: the kernel answers */
	VERDICT_PASS_RST,              /* harmless without a connection */
	VERDICT_DROP_STRICT_SYN,       /* SYN that did not pass the edge */
	VERDICT_PASS_REPLAYED,         /* setup packet of a closed connection: RST */
	VERDICT_DROP_STUBBORN_SOCKET,  /* the old socket outlived its reset */
	VERDICT_DROP_REFUSED,          /* the kernel refused the setup */

	/* server, translating */
	VERDICT_SETUP_TRANSLATED,      /* turned into a SYN, a copy waits for the SYN-ACK */
	VERDICT_REQUEUE_EARLY,         /* came before the SYN-ACK: comes again */
	VERDICT_DROP_EARLY,            /* the SYN-ACK did not come in time */
	VERDICT_DROP_OWN_SYNACK,       /* of the kernel: the client has the edge's */
	VERDICT_DROP_FLOWS_FULL,       /* no room for another translated connection */
	VERDICT_DROP_UNTRANSLATABLE,   /* of a translated connection, cannot be changed */
	VERDICT_PASS_TRANSLATED,       /* from the server, with the numbers that the client knows */
	VERDICT_PASS_ERROR,            /* ICMP error about a translated connection */

	/* what the halves know of each other */
	VERDICT_PASS_UNHEARD,          /* edge: its agent is unknown, or silent */
	VERDICT_DROP_CLOSED_PORT,      /* edge: SYN to a port on which nobody listens */
	VERDICT_DROP_SILENT,           /* edge: SYN, the agent is silent, the service stops */
	VERDICT_PASS_UNENFORCED,       /* server: no edge enforces */

	/* edge: admission on confirmation, and probes */
	VERDICT_SENT_SETUP,            /* valid cookie, on its way to the agent */
	VERDICT_SENT_PROBE,            /* unknown, on its way to the agent */
	VERDICT_DROP_BUSY,             /* too many such packets at once */
	VERDICT_DROP_TOO_LONG,         /* longer than a message can carry */

	/* server, tenants */
	VERDICT_HOLD_EARLY,            /* came before the SYN-ACK: sent on behind it */
	VERDICT_PASS_UNPROVEN,         /* no translated connection's: the tenant judges */

	/* edge: modes */
	VERDICT_PASS_PASSIVE,          /* auto, and there is no flood */

	/* host, with the kernel's own cookies */
	VERDICT_PASS_CALM,             /* no port that it could concern is in flood mode */
	VERDICT_PASS_NO_COOKIE,        /* the kernel gives or judges no cookie: it takes the packet */
	VERDICT_PASS_NO_LISTENER,      /* nobody listens: the kernel answers */
	VERDICT_PASS_BEHIND,           /* follows a valid cookie whose connection is being made */
	VERDICT_DROP_ACCEPT_FULL,      /* SYN to a listener that cannot take connections */

	/* edge: proxy */
	VERDICT_PASS_OPENED,           /* the server's SYN-ACK, as the client's window update */
	VERDICT_SENT_SYN,              /* the server has said nothing: its SYN again */
	VERDICT_SENT_RESET,            /* and at last the client's RST */
	VERDICT_PASS_PROXIED,          /* unknown to the filter, but the edge translates it */

	/* edge: strategies auth-* */
	VERDICT_ANSWER_CHALLENGE,      /* SYN, answered by a wrong acknowledgement */
	VERDICT_ANSWER_RESET,          /* met a challenge: its source is whitelisted, it got a RST */
	VERDICT_DROP_CHALLENGED,       /* likewise, a RST itself */
	VERDICT_PASS_WHITELISTED,      /* SYN of a whitelisted source */
	VERDICT_PASS_FINISHED,         /* ends the handshake that such a SYN began */
	VERDICT_DROP_SYN_RATE,         /* SYN of a whitelisted source that sends too many */
	VERDICT_DROP_WHITELIST_FULL,   /* met a challenge, but there is no room */

	/* edge: floods of other packets, and limits */
	VERDICT_DROP_DENIED,           /* its source is on the deny list */
	VERDICT_DROP_SPOOFED_INSIDE,   /* its source cannot be behind this port */
	VERDICT_DROP_OTHER_PORT,       /* of a protected address, but of no service */
	VERDICT_DROP_LOW_TTL,          /* might expire behind the edge */
	VERDICT_DROP_FLOW_BUDGET,      /* its flow has sent too many packets */
	VERDICT_DROP_ANSWER_LIMIT,     /* SYN, its network has had too many answers */
	VERDICT_PASS_BYPASS,           /* SYN of a source that is let through unproven */

	VERDICT_COUNT,
	VERDICT_STRIDE = 128,          /* counters: service * stride + verdict */
};

/* Frames that the driver or the redirect lost after their verdict. */
enum transmit_failure {
	TRANSMIT_EXCEPTION = 0, /* the driver refused a verdict */
	TRANSMIT_REDIRECT,      /* the redirect had no valid target */
	TRANSMIT_BULK_TX,       /* XDP_TX queue overran */
	TRANSMIT_DEVMAP,        /* target device dropped */
	TRANSMIT_COUNT,
};

_Static_assert(sizeof(struct key_slot) == 32, "key_slot");
_Static_assert(sizeof(struct agent_clock) == 32, "agent_clock");
_Static_assert(sizeof(struct service) == 40, "service");
_Static_assert(sizeof(struct whitelist_key) == 20, "whitelist_key");
_Static_assert(sizeof(struct whitelisted) == 24, "whitelisted");
_Static_assert(sizeof(struct detector) == 272, "detector");
_Static_assert(sizeof(struct service_label) == 72, "service_label");
_Static_assert(sizeof(struct listed) == 16, "listed");
_Static_assert(sizeof(struct place) == 12, "place");
_Static_assert(sizeof(struct answer_budget) == 16, "answer_budget");
_Static_assert(sizeof(struct prefix6) == 20, "prefix6");
_Static_assert(sizeof(struct port_range) == 8, "port_range");
_Static_assert(sizeof(struct filter_line) == 64, "filter_line: one cache line");
_Static_assert(sizeof(struct connection) == 40, "connection");
_Static_assert(sizeof(struct endpoints) == 36, "endpoints");
_Static_assert(sizeof(struct translation) == 32, "translation: 128 bytes with the map's own");
_Static_assert(sizeof(struct control_peer) == 24, "control_peer");
_Static_assert(sizeof(struct relayed) == 8 + CONTROL_PACKET_BYTES, "relayed");
_Static_assert(CONTROL_PACKET_BYTES == CONTROL_BYTES - CONTROL_HEADER - CONTROL_TAG,
	       "relayed packets fill a message");
_Static_assert(sizeof(struct listening) == 24, "listening");
_Static_assert(sizeof(struct announced) == 40, "announced");
_Static_assert(VERDICT_COUNT <= VERDICT_STRIDE, "verdicts fit their stride");

#endif
