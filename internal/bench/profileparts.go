package bench

import (
	"slices"
	"strings"

	"smartcookie/internal/evaluation"
)

// Where the time of a flooded kernel goes.
const (
	partCookie   = "cookie and its hash"
	partListener = "listener, look-up and queue"
	partSYNACK   = "SYN-ACK: building and sending"
	partRoute    = "routes and neighbours"
	partBuffer   = "memory of packets and requests"
	partReceive  = "receiving: driver, GRO, IP"
	partSink     = "the attacker's end of the cable"
	partServer   = "the server and its system calls"
	partOthers   = "other programs of the machine"
	partIdle     = "idle"
	partRest     = "rest of the profile"
)

// kernelPart is a row of a profile.
type kernelPart struct {
	name      string
	functions []string // a star at the end stands for anything
}

// kernelParts are asked in this order about each function, from the innermost one on:
// the first that is known says where the time goes. Locks, hashes and what else
// everybody calls are listed nowhere and belong to who called them.
var kernelParts = []kernelPart{
	{partCookie, []string{"cookie_*", "__cookie_*"}},
	{partRoute, []string{
		"fib_*", "ip_route_*", "__ip_dev_find", "inet_csk_route_req", "tcp_v4_route_req", "ipv4_default_advmss", "ipv4_mtu",
		"rt_*", "dst_*", "find_exception", "xfrm_*", "neigh_*", "__neigh_*", "inet_addr_*", "inet_confirm_addr",
	}},
	{partBuffer, []string{
		"__alloc_skb", "alloc_skb*", "kmem_cache_*", "__kmem_cache_*", "___slab_*", "__slab_*", "slab_*", "kmalloc*", "__kmalloc*", "kfree*", "__kfree*",
		"skb_release_*", "skb_free_*", "consume_skb", "sk_skb_reason_drop", "skb_pp_cow_data", "skb_defer_*", "skb_attempt_defer_free",
		"page_pool_*", "__page_pool_*", "napi_pp_*", "napi_skb_cache_*", "napi_build_skb", "__napi_build_skb", "napi_consume_skb", "build_skb*", "__build_skb*",
		"__xdp_build_skb*", "xdp_build_skb*", "__xdp_return", "xdp_return_*", "__memcg_*", "inet_reqsk_alloc", "reqsk_free", "__reqsk_free", "tcp_v4_reqsk_destructor",
		"free_frozen_*", "get_page_from_freelist", "__alloc_pages*", "__alloc_frozen_*", "put_page*", "__folio_put",
	}},
	{partSYNACK, []string{
		"tcp_v4_send_synack", "tcp_make_synack", "tcp_synack_options", "tcp_options_write", "__tcp_v4_send_check", "tcp_v4_send_check", "tcp_v4_md5_lookup",
		"ip_build_and_send_pkt", "ip_send_check", "ip_local_out", "__ip_local_out", "ip_output", "ip_finish_output*", "__ip_finish_output", "ip_mc_output",
		"__dev_queue_xmit", "dev_hard_start_xmit", "validate_xmit_*", "netif_skb_features", "skb_network_protocol", "skb_checksum_help", "veth_xmit",
		"__dev_forward_skb*", "passthru_features_check",
	}},
	{partListener, []string{
		"tcp_conn_request", "tcp_v4_conn_request", "tcp_v6_conn_request", "tcp_rcv_state_process", "tcp_v4_do_rcv", "tcp_v4_rcv", "tcp_v4_fill_cb", "tcp_filter",
		"__inet_lookup_*", "inet_lookup_*", "inet_lhash2_lookup", "inet_ehashfn", "tcp_v4_early_demux", "reqsk_*", "inet_csk_reqsk_*", "tcp_openreq_*",
		"tcp_parse_*", "tcp_peer_is_proven", "tcp_get_metrics*", "tcp_get_syncookie_mss", "tcp_syn_flood_action", "tcp_select_initial_window",
		"secure_tcp_*", "tcp_v4_init_*", "tcp_ecn_*", "security_inet_conn_request", "inet_csk_*", "tcp_stream_*", "sk_filter_trim_cap", "bbr_*", "tcp_v4_send_reset",
	}},
	{partReceive, []string{
		"veth_poll", "veth_xdp_*", "eth_type_trans", "napi_*", "__napi_*", "dev_gro_*", "gro_*", "inet_gro_*", "tcp4_gro_*", "tcp_gro_*", "skb_gro_*",
		"netif_receive_*", "__netif_receive_*", "ip_rcv*", "ip_list_*", "ip_sublist_*", "ip_local_deliver*", "ip_protocol_deliver_rcu", "raw_local_deliver",
		"net_rx_action", "process_backlog", "handle_softirqs", "xdp_do_*", "__xdp_*", "dev_xdp_*",
	}},
	{partIdle, []string{"do_idle", "cpu_startup_entry", "default_idle*", "arch_cpu_idle", "pv_native_safe_halt", "cpuidle_*", "cpu_idle_*"}},
}

// sinkEnd is how packets of the kernel reach a port with an XDP program, which
// only the attacker's end has here.
const sinkEnd = "veth_xdp_rcv_skb"

// partNames are all rows, as they are shown.
var partNames = []string{
	partCookie, partSYNACK, partRoute, partListener, partBuffer, partReceive, partSink, partServer, partIdle, partOthers, partRest,
}

func (g kernelPart) has(function string) bool {
	return slices.ContainsFunc(g.functions, func(known string) bool {
		if prefix, ok := strings.CutSuffix(known, "*"); ok {
			return strings.HasPrefix(function, prefix)
		}
		return function == known
	})
}

// systemCall are functions of whoever runs, in its own name.
var systemCall = kernelPart{functions: []string{
	"do_syscall_64", "x64_sys_*", "__x64_sys_*", "entry_SYSCALL_*", "exc_page_fault", "asm_exc_page_fault", "invoke_syscall", "el0_*",
}}

// partOf says where the time of one look went; names are innermost first.
func partOf(names []string, ofServer bool) string {
	program := partOthers
	if ofServer {
		program = partServer
	}
	if len(names) == 0 {
		return program // not in the kernel
	}
	if slices.Contains(names, sinkEnd) {
		return partSink
	}
	if !ofServer && slices.ContainsFunc(names, systemCall.has) && !slices.ContainsFunc(names, softirq.has) {
		return program // its packets are none of ours
	}
	for _, name := range names {
		name, _, _ = strings.Cut(name, ".") // what the compiler has made of it
		if systemCall.has(name) {
			return program
		}
		for _, g := range kernelParts {
			if g.has(name) {
				return g.name
			}
		}
	}
	return partRest
}

// softirq is where the kernel receives, whoever runs.
var softirq = kernelPart{functions: []string{"handle_softirqs", "__do_softirq", "net_rx_action"}}

// shareOut says how many of a hundred looks fell on each part.
func shareOut(stacks []stack, all symbols, server int) evaluation.Figures {
	f := evaluation.Figures{}
	for _, name := range partNames {
		f[name+" percent"] = 0
	}
	for _, s := range stacks {
		names := make([]string, len(s.functions))
		for i, address := range s.functions {
			names[i] = all.name(address)
		}
		f[partOf(names, int(s.task) == server)+" percent"] += 100 / float64(len(stacks))
	}
	return f
}
