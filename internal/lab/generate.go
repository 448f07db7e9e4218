package lab

//go:generate go tool bpf2go -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-mcpu=v3 -O2 -g -Wall -Wextra -Werror -I/usr/include/x86_64-linux-gnu" flood ../../bpf/flood.bpf.c
//go:generate go tool bpf2go -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-mcpu=v3 -O2 -g -Wall -Wextra -Werror -I/usr/include/x86_64-linux-gnu" -type count sink ../../bpf/sink.bpf.c
