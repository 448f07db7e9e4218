package metrics

import "smartcookie/internal/dataplane"

// meaning is what some verdicts say together.
type meaning struct {
	family   *family
	label    string // the last one; none has the family
	agents   []string
	verdicts []string
}

var (
	edgeOnly = []string{dataplane.EdgeAgent}
	hostOnly = []string{dataplane.HostAgent}
	makers   = []string{dataplane.ServerAgent, dataplane.ProxyAgent}
)

// meanings are sums of verdicts, so that nobody has to know these to ask the usual
// questions. A host with the kernel's cookies counts SYNs by port.
var meanings = []meaning{
	{syns, "", edgeOnly, []string{
		"answer_syn", "answer_challenge", "pass_whitelisted", "pass_bypass", "drop_syn_rate", "drop_closed_port",
		"drop_silent", "drop_bad_source", "drop_no_room", "drop_answer_limit",
	}},
	{syns, "", []string{dataplane.ServerAgent}, []string{"pass_syn", "drop_strict_syn"}},

	{synacks, "", edgeOnly, []string{"answer_syn", "answer_challenge"}},
	{synacks, "", hostOnly, []string{"answer_syn"}},

	{cookies, "valid", edgeOnly, []string{"pass_cookie", "sent_setup", "answer_reset", "drop_challenged", "drop_whitelist_full"}},
	{cookies, "valid", makers, []string{
		"setup", "setup_translated", "pass_closed_port", "pass_replayed", "drop_refused", "drop_stubborn_socket", "drop_flows_full",
	}},
	{cookies, "valid", hostOnly, []string{"pass_kernel_cookie"}},
	{cookies, "invalid", []string{dataplane.EdgeAgent, dataplane.ServerAgent, dataplane.HostAgent}, []string{"drop_bad_cookie"}},

	{setups, "native", []string{dataplane.ServerAgent}, []string{"setup"}},
	{setups, "translated", makers, []string{"setup_translated"}},
	{setups, "kernel", hostOnly, []string{"pass_kernel_cookie"}},

	{setupFailures, "closed_port", makers, []string{"pass_closed_port"}},
	{setupFailures, "replayed", makers, []string{"pass_replayed"}},
	{setupFailures, "refused", makers, []string{"drop_refused"}},
	{setupFailures, "stubborn_socket", makers, []string{"drop_stubborn_socket"}},
	{setupFailures, "flows_full", makers, []string{"drop_flows_full"}},
	{setupFailures, "early", makers, []string{"drop_early"}},
}
