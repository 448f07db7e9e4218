package bench

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"

	"smartcookie/internal/evaluation"
	"smartcookie/internal/lab"
)

// synproxyTable has netfilter's SYNPROXY answer for a server. SYNs are kept from
// connection tracking, which would not survive a flood of them; what it then
// takes for a stranger's ACK is checked for a cookie.
const synproxyTable = `table ip bench_synproxy {
	chain raw {
		type filter hook prerouting priority raw
		ip daddr %[1]s tcp dport %[2]d tcp flags & (fin | syn | rst | ack) == syn notrack
	}
	chain guard {
		type filter hook %[4]s priority filter
		ip daddr %[1]s tcp dport %[2]d ct state invalid,untracked synproxy mss 1460 wscale %[3]d timestamp sack-perm
		ip daddr %[1]s tcp dport %[2]d ct state invalid drop
	}
}
`

// startSynproxy makes a machine of the lab answer for a server, in the hook forward
// or, for its own, input, until that is undone.
// The scale is the server's window scale: nft cannot ask for it, and one that is
// wrong breaks transfers without a word.
func startSynproxy(ctx context.Context, at *lab.Namespace, hook string, server netip.AddrPort, scale int) (undo func() error, err error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, &evaluation.Missing{Why: "nft is not installed"}
	}
	// An ACK that begins a connection is a stranger's, not the middle of one.
	if err := at.Sysctl("net.netfilter.nf_conntrack_tcp_loose", "0"); err != nil {
		return nil, &evaluation.Missing{Why: "this kernel has no connection tracking"}
	}
	nft := at.Command(ctx, "nft", "-f", "-")
	nft.Stdin = strings.NewReader(fmt.Sprintf(synproxyTable, server.Addr(), server.Port(), scale, hook))
	if out, err := nft.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &evaluation.Missing{Why: fmt.Sprintf("this kernel or nft has no synproxy: %s", strings.TrimSpace(string(out)))}
	}
	return func() error {
		out, err := at.Command(context.Background(), "nft", "delete", "table", "ip", "bench_synproxy").CombinedOutput()
		if err != nil {
			return fmt.Errorf("take SYNPROXY away: %w: %s", err, out)
		}
		return nil
	}, nil
}

// windowScale is what a machine's kernel offers with its SYN-ACKs: enough for the
// largest buffer that a connection may come to have.
func windowScale(of *lab.Namespace) (int, error) {
	room, err := of.ReadSysctl("net.ipv4.tcp_rmem")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(room)
	if len(fields) != 3 {
		return 0, errors.New("net.ipv4.tcp_rmem has not three numbers: " + room)
	}
	largest, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("net.ipv4.tcp_rmem: %w", err)
	}
	return min(max(bits.Len64(largest)-16, 0), 14), nil
}
