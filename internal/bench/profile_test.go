package bench

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// record is one of the kernel's, in its ring.
func profileRecord(kind uint32, words ...uint64) []byte {
	data := binary.NativeEndian.AppendUint32(nil, kind)
	data = binary.NativeEndian.AppendUint16(data, 2)
	data = binary.NativeEndian.AppendUint16(data, uint16(recordHeader+8*len(words)))
	for _, w := range words {
		data = binary.NativeEndian.AppendUint64(data, w)
	}
	return data
}

func TestStacksAreThoseOfTheRing(t *testing.T) {
	const kernelMarker, userMarker = 1<<64 - 128, 1<<64 - 512
	ring := slices.Concat(
		profileRecord(recordSample, 7|7<<32, 3, kernelMarker, 0x1100, 0x2200),
		profileRecord(2, 1, 2), // lost records
		profileRecord(recordSample, 0, 1, kernelMarker),
		profileRecord(recordSample, 9, 2, userMarker, 0x3300),
		profileRecord(recordSample, 9, 200, 0x4400), // says to have more than it has
		make([]byte, 64),                            // nothing yet
	)
	got := stacksOf(ring)
	want := []stack{{7, []uint64{0x1100, 0x2200}}, {0, nil}, {9, []uint64{0x3300}}, {9, []uint64{0x4400}}}
	if len(got) != len(want) {
		t.Fatalf("%d stacks, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if got[i].task != want[i].task || !slices.Equal(got[i].functions, want[i].functions) {
			t.Errorf("stack %d: %+v, want %+v", i, got[i], want[i])
		}
	}
	half := profileRecord(recordSample, 7, 1, 0x1100)
	if got := stacksOf(half[:len(half)-1]); len(got) > 0 {
		t.Errorf("half a record: %v", got)
	}
}

func TestAddressesHaveTheFunctionBefore(t *testing.T) {
	s := symbols{{0x300, "third"}, {0x100, "first"}, {0x200, "second"}}.sorted()
	for address, want := range map[uint64]string{0xff: "", 0x100: "first", 0x1ff: "first", 0x200: "second", 0x9999: "third"} {
		if got := s.name(address); got != want {
			t.Errorf("%#x: %q, want %q", address, got, want)
		}
	}
}

func TestTimeGoesToTheInnermostKnownFunction(t *testing.T) {
	const call = " do_syscall_64 entry_SYSCALL_64_after_hwframe"
	const flooded = "tcp_conn_request tcp_rcv_state_process tcp_v4_rcv ip_rcv veth_poll net_rx_action"
	for stack, want := range map[string]string{
		"siphash_2u64 cookie_hash __cookie_v4_init_sequence " + flooded:       partCookie,
		"siphash_3u32 secure_tcp_seq_and_ts_off " + flooded:                   partListener,
		"_raw_spin_lock page_pool_put_unrefed_netmem napi_pp_put_page":        partBuffer,
		"fib_table_lookup ip_route_output_flow inet_csk_route_req " + flooded: partRoute,
		"memset tcp_make_synack tcp_v4_send_synack " + flooded:                partSYNACK,
		"__netif_receive_skb_core.constprop.0 netif_receive_skb_list":         partReceive,
		"slab_update_freelist.isra.0 __slab_free kfree":                       partBuffer,
		"bpf_prog_e89b_lab_sink veth_xdp_rcv_skb veth_xdp_rcv veth_poll":      partSink,
		"memcpy tcp_rcv_state_process.part.0 ip_rcv":                          partListener,
		"pv_native_safe_halt do_idle":                                         partIdle,
		"something_new something_unknown":                                     partRest,
	} {
		if got := partOf(strings.Fields(stack), false); got != want {
			t.Errorf("%q: %s, want %s", stack, got, want)
		}
	}
	for stack, want := range map[string][2]string{ // of others, and of the server
		"":                                 {partOthers, partServer},
		"read_tsc" + call:                  {partOthers, partServer},
		"kmem_cache_alloc" + call:          {partOthers, partBuffer},
		"cookie_hash net_rx_action" + call: {partCookie, partCookie},
	} {
		for i, ofServer := range []bool{false, true} {
			if got := partOf(strings.Fields(stack), ofServer); got != want[i] {
				t.Errorf("%q, of the server: %t: %s, want %s", stack, ofServer, got, want[i])
			}
		}
	}
}

func TestSharesAreAllOfTheTime(t *testing.T) {
	s := symbols{{0x100, "cookie_hash"}, {0x200, "nobody_knows"}}
	f := shareOut([]stack{{1, []uint64{0x101}}, {1, []uint64{0x201}}, {1, []uint64{0x202}}, {2, nil}}, s, 2)
	for name, want := range map[string]float64{partCookie: 25, partRest: 50, partServer: 25, partIdle: 0} {
		if got, ok := f[name+" percent"]; !ok || got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	sum := 0.0
	for _, share := range f {
		sum += share
	}
	if len(f) != len(partNames) || sum != 100 {
		t.Errorf("%d kernelParts are %v%% of the time", len(f), sum)
	}
}

func TestEveryPartHasARow(t *testing.T) {
	for _, g := range kernelParts {
		if !slices.Contains(partNames, g.name) {
			t.Errorf("%s is no row", g.name)
		}
	}
}
