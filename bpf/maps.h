/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every map and every setting of the data plane, once. Sizes marked "set when
 * loading" are the loader's; what is mapped into the daemon's memory needs no
 * system call to read or write.
 */
#ifndef SMARTCOOKIE_MAPS_H
#define SMARTCOOKIE_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "lib/types.h"

/* One slot per domain and epoch, see contract.h; set when loading. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct key_slot);
} keys SEC(".maps");

/* Slots per domain, less one; a power of two less one. */
const volatile u32 key_slot_mask = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct agent_clock);
} clock SEC(".maps");

/* By service id; 0 is no service. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICES_MAX + 1);
	__type(key, u32);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PREFIXES_MAX);
	__type(key, struct prefix4);
	__type(value, struct port_set);
} prefixes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, PREFIXES_MAX);
	__type(key, struct prefix6);
	__type(value, struct port_set);
} prefixes6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORT_RANGES_MAX);
	__type(key, u32);
	__type(value, struct port_range);
} port_ranges SEC(".maps");

/* service * VERDICT_STRIDE + verdict */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, (SERVICES_MAX + 1) * VERDICT_STRIDE);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

/* By service id: written and read by the daemons and tools alone. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SERVICES_MAX + 1);
	__type(key, u32);
	__type(value, struct service_label);
} labels SEC(".maps");

/* Named so that the daemons' Go is generated from them. */
struct generated {
	enum contract_version *version;
	enum cookie_hash *hash;
	enum service_limits *limits;
	enum service_mode *mode;
	enum detector_phase *phase;
	enum detector_cause *cause;
	enum service_name_limit *name_limit;
	enum service_option *option;
	enum keys_end *keys_end;
	enum verdict *verdict;
	enum transmit_failure *transmit_failure;
	enum filter_layout *filter;
	enum announced_limit *announced;
	enum silent_policy *silent;
	enum established_limit *established;
	enum admission *admission;
	enum strategy *strategy;
	enum control_kind *control_kind;
	enum source_limits *source_limits;
	enum deny_mark *deny_mark;
	enum listed_origin *listed_origin;
	enum source_check *source_check;
	struct relayed relayed;
	enum inject_order *inject_order;
	enum inject_result *inject_result;
} *generated __attribute__((unused));

#endif
