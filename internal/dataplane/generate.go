// Package dataplane holds the eBPF programs: it loads them, attaches them,
// pins their state and reads and writes their maps.
package dataplane

//go:generate go tool bpf2go -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter -I/usr/include/x86_64-linux-gnu" -type verdict -type transmit_failure -type key_slot -type agent_clock -type master_key -type service -type prefix4 -type prefix6 -type port_set -type port_range -type filter_line -type filter_state -type service_limits -type service_mode -type keys_end -type service_option -type cookie_hash -type contract_version -type filter_layout -type control_peer -type listening -type announced -type announcement -type announced_limit -type silent_policy edge ../../bpf/edge.bpf.c
//go:generate go tool bpf2go -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter -I/usr/include/x86_64-linux-gnu" -type connection -type connection_note -type endpoints -type translation -type translation_state -type established_state -type established_limit server ../../bpf/server.bpf.c
