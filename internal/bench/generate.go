package bench

//go:generate -command bpf2go go tool bpf2go -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-parameter -I/usr/include/x86_64-linux-gnu"
//go:generate bpf2go ours ../../bpf/bench.bpf.c
//go:generate bpf2go kernel ../../bpf/bench_kernel.bpf.c
//go:generate bpf2go aes ../../bpf/bench_aes.bpf.c
//go:generate bpf2go crc ../../bpf/bench_crc.bpf.c
//go:generate bpf2go netdev ../../bpf/bench_netdev.bpf.c
//go:generate bpf2go guess ../../bpf/bench_guess.bpf.c
//go:generate bpf2go filters ../../bpf/bench_filter.bpf.c
