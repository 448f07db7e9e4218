/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the edge knows of the agents behind it: which addresses each of them
 * protects, how it stands to them, and where they listen. The daemon writes
 * it and raises the tables' version; the walk reads it through the memo of the
 * services alone, so that it costs nothing on the way of a packet.
 */
#ifndef SMARTCOOKIE_AGENTS_H
#define SMARTCOOKIE_AGENTS_H

#include "acting.h"
#include "memo.h"

enum { AGENTS_MAX = 1024, LISTENERS_MAX = 65536 };

/* The agent that protects an address, by id. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PREFIXES_MAX);
	__type(key, struct prefix4);
	__type(value, u32);
} covered4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PREFIXES_MAX);
	__type(key, struct prefix6);
	__type(value, u32);
} covered6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, AGENTS_MAX);
	__type(key, u32);
	__type(value, struct control_peer);
} agents SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, LISTENERS_MAX);
	__type(key, struct listening);
	__type(value, u8);
} listeners SEC(".maps");

/* How the edge stands to a destination's agent, beside the service's id. */
enum stance {
	STANCE_SERVICE = 0x07ff, /* the id */
	STANCE_SILENT = 0x0800,  /* the agent is silent: it confirms nothing */
	/* with no service, another port of a protected address: */
	STANCE_OTHER = 0x0800,  /* where a service acts */
	STANCE_QUIET = 0x1000,  /* where none does */
	STANCE_STOPS = 0x1000,  /* the agent is silent: no new connections */
	STANCE_CLOSED = 0x2000, /* nobody listens */
	STANCE_LEARNS = 0x4000, /* unknown packets pass */
	STANCE_PASSES = 0x8000, /* everything passes */
};

INLINE const u32 *covering_agent(const u32 address[4], bool v6)
{
	if (!v6) {
		struct prefix4 key = { .length = 32, .address_be = BE32(address[0]) };

		return bpf_map_lookup_elem(&covered4, &key);
	}
	struct prefix6 key = { .length = 128 };
	for (int i = 0; i < 4; i++)
		key.address_be[i] = BE32(address[i]);
	return bpf_map_lookup_elem(&covered6, &key);
}

INLINE bool agent_listens(u32 agent, const u32 address[4], bool v6, u16 port)
{
	struct listening key = { .agent = agent, .port = port, .v6 = v6 };

	if (bpf_map_lookup_elem(&listeners, &key)) /* at all of its addresses */
		return true;
	key.address[0] = address[0];
	for (int i = 1; i < 4 && v6; i++)
		key.address[i] = address[i];
	return bpf_map_lookup_elem(&listeners, &key);
}

/* A destination that no agent covers is as if there were no control messages.
 * An unheard agent: fail open, it may not be there yet. */
INLINE u32 agent_stance(u32 id, const u32 address[4], bool v6, u16 port)
{
	const u32 *agent = covering_agent(address, v6);

	if (!agent)
		return 0;
	const struct control_peer *peer = bpf_map_lookup_elem(&agents, agent);
	if (!peer || peer->phase == AGENT_UNHEARD)
		return STANCE_PASSES;
	if (peer->phase == AGENT_SILENT) {
		const struct service *service = service_get(id);

		if (!service || service->silent == SILENT_PASS)
			return STANCE_PASSES;
		if (service->silent == SILENT_STOP)
			return STANCE_STOPS;
	}
	u32 stance = peer->phase == AGENT_GRACE  ? STANCE_LEARNS :
		     peer->phase == AGENT_SILENT ? STANCE_SILENT :
						   0;
	if (peer->any_listens || agent_listens(*agent, address, v6, port))
		return stance;
	return stance | STANCE_CLOSED;
}

/* TCP to ports of no service at protected addresses is lost; set when loading. */
const volatile bool other_tcp_drops = false;

/* Found once for each port: while a service acts, a packet has no more to ask. */
INLINE u32 other_stance(const struct port_set *set)
{
	u32 monitored;

	if (!set)
		return SERVICE_NONE;
	return acting_at(set, &monitored) ? STANCE_OTHER : STANCE_QUIET;
}

NOINLINE u32 stance_search(const u32 *address, bool v6, u16 port)
{
	if (!address)
		return SERVICE_NONE;
	u32 id = service_search(address, v6, port);

	if (id == SERVICE_NONE)
		return other_tcp_drops ? other_stance(prefix_find(address, v6)) : id;
	if (service_needs_no_agent(id))
		return id;
	return id | agent_stance(id, address, v6, port);
}

/* The service's id, and how we stand to its agent (enum stance). */
INLINE u32 service_find(const u32 address[4], bool v6, u16 port, u64 version)
{
	return memo_find(address, v6, port, version + acting_changes, stance_search);
}

_Static_assert((int)SERVICES_MAX <= (int)STANCE_SERVICE, "a stance leaves room for the id");

#endif
