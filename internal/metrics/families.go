package metrics

import "github.com/prometheus/client_golang/prometheus"

// family is one metric: what it is called and what it says. This file is the only
// list of them; docs/metrics.md is compared with it.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

var families []*family

func declare(kind prometheus.ValueType, name, help string, labels []string) *family {
	f := &family{prometheus.NewDesc("smartcookie_"+name, help, labels, nil), kind}
	families = append(families, f)
	return f
}

func counter(name, help string, labels ...string) *family {
	return declare(prometheus.CounterValue, name, help, labels)
}

func gauge(name, help string, labels ...string) *family {
	return declare(prometheus.GaugeValue, name, help, labels)
}

// What the daemon is, and whether it could read.
var (
	buildInfo      = gauge("build_info", "Always 1; the labels say what this daemon was built from.", "version", "revision", "go")
	scrapeSuccess  = gauge("scrape_success", "Whether this part could be read.", "agent", "part")
	scrapeDuration = gauge("scrape_duration_seconds", "How long this part took to read.", "agent", "part")
)

// Packets.
var (
	verdicts      = counter("verdicts_total", "Packets by verdict. No service: those for none, or of none that was looked up.", "agent", "service", "verdict")
	syns          = counter("syns_total", "SYNs that met the defence. An edge in mode auto without a flood counts smartcookie_detector_syns_total alone.", "agent", "service")
	synacks       = counter("synacks_total", "SYN-ACKs sent, those that challenge included.", "agent", "service")
	cookies       = counter("cookies_total", "Packets that came with a valid cookie, or with no valid one where one was needed.", "agent", "service", "result")
	setups        = counter("setups_total", "Connections made from cookies.", "agent", "service", "way")
	setupFailures = counter("setup_failures_total", "Packets with valid cookies of which no connection was made.", "agent", "service", "cause")
	lost          = counter("transmit_failures_total", "Frames that the driver or the redirect lost after their verdict.", "agent", "cause")
)

// Services.
var (
	serviceMode    = gauge("service_mode", "1 for the mode that holds now, 0 for the others.", "agent", "service", "mode")
	serviceDefends = gauge("service_defended", "Whether every SYN is answered and every stranger is lost.", "agent", "service")

	detectorPhase      = gauge("detector_phase", "Mode auto: 1 for the detector's phase, 0 for the others.", "agent", "service", "phase")
	detectorRate       = gauge("detector_syns_per_second", "SYNs of the last second, as the detector has seen them.", "agent", "service")
	detectorUnfinished = gauge("detector_unfinished_ratio", "Share of handshakes that were not finished, likewise.", "agent", "service")
	detectorHalfOpen   = gauge("detector_half_open", "Estimate of half-open handshakes, likewise.", "agent", "service")
	detectorSYNs       = counter("detector_syns_total", "SYNs that the detector has counted: of services in another mode than always.", "agent", "service")
	detectorFinished   = counter("detector_handshakes_total", "Handshakes finished, likewise.", "agent", "service")
	floods             = counter("floods_total", "Floods that have begun: times that the defence was switched on.", "agent", "service")
	floodsEnded        = counter("floods_ended_total", "Floods that have ended.", "agent", "service")
	portChanges        = counter("port_mode_changes_total", "Kernel cookies: changes between passive and flood mode.", "agent", "service")
	portFlooded        = gauge("port_flood_mode", "Kernel cookies: whether SYNs to the port are answered now.", "agent", "service")
)

// Keys and clocks.
var (
	keyEpoch    = gauge("key_epoch", "Number of the epoch that cookies are made in now.", "agent")
	epochLength = gauge("key_epoch_seconds", "Length of an epoch.", "agent")
	keysLeft    = gauge("keys_left_seconds", "How long the kernel has keys for the service, should this daemon end now. 0: none for now.", "agent", "service")
	clockError  = gauge("clock_error_seconds", "Real time less the clock of the epochs: what has not been followed, as a refused step.", "agent")
	learning    = gauge("learning_seconds", "How long unknown flows still pass.", "agent")
)

// The verified filter, and other tables.
var (
	filterFill     = gauge("filter_fill_ratio", "Share of the filter's bits that are set, as a sample tells.", "agent", "generation")
	filterFlows    = gauge("filter_flows", "Estimate of the flows in a generation of the filter.", "agent", "generation")
	filterCapacity = gauge("filter_capacity_flows", "Flows for which the filter is made.", "agent")
	filterFalse    = gauge("filter_false_positive_ratio", "Estimate of the chance that a stranger's packet is let through.", "agent")
	tableEntries   = gauge("table_entries", "Entries of a table, as the daemon has last counted them: every 5 to 60 s.", "agent", "table")
	tableCapacity  = gauge("table_capacity", "Entries for which the table has room.", "agent", "table")
)

// The other half.
var (
	peerPhase     = gauge("peer_phase", "Edge: 1 for how it stands to the agent now, 0 for the others.", "agent", "peer", "phase")
	peerDisagrees = gauge("peer_disagrees", "1 for each thing that this half and the peer differ on, 0 for the others.", "agent", "peer", "on")
	peerSkew      = gauge("peer_clock_skew_seconds", "The peer's clock less ours, when it was last heard; absent while it is silent.", "agent", "peer")
	peerAge       = gauge("peer_heard_age_seconds", "Edge: age of the agent's last whole announcement. Server: of the edge's last greeting.", "agent", "peer")
	controlEvents = counter("control_messages_total", "Control messages, by what became of them.", "agent", "event")
	controlFlows  = counter("control_flows_total", "Flows in control messages, by what became of them.", "agent", "event")
	controlBytes  = counter("control_sent_bytes_total", "Bytes of control messages sent.", "agent")
)

// The programs, where kernel.bpf_stats_enabled has the kernel measure them.
var (
	programTime = counter("program_run_seconds_total", "Time that the program has run, while the kernel measured.", "agent", "hook")
	programRuns = counter("program_runs_total", "Times that the program has run, likewise.", "agent", "hook")
)
