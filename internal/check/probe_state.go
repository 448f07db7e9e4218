package check

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"smartcookie/internal/keys"
	"smartcookie/internal/policy"
	"smartcookie/internal/server"
	"smartcookie/internal/upkeep"
)

// probeKeys reads the key file, and compares it with what the agent has. No key
// gets into the facts but within the file, which does not print any.
func (f *Facts) probeKeys(path string, domains []string) {
	k := &f.Keys
	k.Path, k.Domains = path, domains
	file, err := keys.Read(path)
	if errors.Is(err, fs.ErrPermission) {
		f.see(keyFile, func() error { return err })
		return
	}
	k.File, k.Err = file, err
	if err != nil {
		return
	}
	k.Epoch = file.Epoch(time.Now())
	if !f.Agent.Attached {
		return
	}
	f.see(keyKernel, func() error {
		kernel := make(map[string]agreement)
		for i, domain := range domains {
			has, ok, err := f.survey.Key(i, len(domains), k.Epoch)
			if err != nil {
				return err
			}
			kernel[domain] = otherKey
			if wants, _ := file.EpochKey(domain, k.Epoch); ok && has == wants {
				kernel[domain] = sameKey
			} else if !ok {
				kernel[domain] = noKey
			}
		}
		k.Kernel = kernel
		return nil
	})
}

func (f *Facts) probeClock() {
	c := &f.Clock
	f.see(clockSync, func() error {
		var t unix.Timex // no modes: it changes nothing
		state, err := unix.Adjtimex(&t)
		if err != nil {
			return fmt.Errorf("ask for the clock's state: %w", err)
		}
		const timeError = 5 // TIME_ERROR
		c.Synchronised = state != timeError && t.Status&unix.STA_UNSYNC == 0
		c.Estimated, c.Bound = time.Duration(t.Esterror)*time.Microsecond, time.Duration(t.Maxerror)*time.Microsecond
		return nil
	})
	if !f.Agent.Attached {
		return
	}
	f.see(clockStep, func() error {
		clock, err := f.survey.Clock()
		now := upkeep.SystemClocks()
		c.Epoch, c.Ahead = time.Duration(clock.EpochNS), time.Duration(now.RealNS-now.MonotonicNS-clock.OffsetNS)
		return err
	})
}

// withTool says that rules are unknown where there may be some and nothing to read
// them: without connection tracking there are none that matter.
func withTool(firewall func([]policy.Service) []server.Obstacle) func([]policy.Service) []server.Obstacle {
	_, noTool := exec.LookPath("nft")
	_, noTracking := os.Stat("/proc/sys/net/netfilter/nf_conntrack_count")
	if noTool == nil || noTracking != nil {
		return firewall
	}
	return func(services []policy.Service) []server.Obstacle {
		return append(firewall(services), server.Obstacle{
			Name: firewallUnknown.Name, Problem: "there is connection tracking, and no nft to read its rules with", Mend: "apt install nftables",
		})
	}
}

// readVirtual lists the TCP services of IPVS; without the module there are none.
func readVirtual() ([]netip.AddrPort, error) {
	text, err := os.ReadFile("/proc/net/ip_vs")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read services of IPVS: %w", err)
	}
	return parseVirtual(string(text)), nil
}

// parseVirtual reads lines such as "TCP  C0000201:0050 rr" or
// "TCP  [2001:0db8:0000:0000:0000:0000:0000:0001]:0050 rr".
func parseVirtual(text string) (all []netip.AddrPort) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "TCP" {
			continue
		}
		host, port, ok := cutLast(f[1], ":")
		number, err := strconv.ParseUint(port, 16, 16)
		if !ok || err != nil {
			continue
		}
		address, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if b, hexErr := hex.DecodeString(host); hexErr == nil && len(b) == 4 {
			address, err = netip.AddrFrom4([4]byte(b)), nil
		}
		if err == nil {
			all = append(all, netip.AddrPortFrom(address, uint16(number)))
		}
	}
	return all
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}

// readSockets is how many TCP connections this network namespace has.
func readSockets() (total int) {
	for _, name := range []string{"/proc/net/sockstat", "/proc/net/sockstat6"} {
		text, err := os.ReadFile(name)
		if err == nil {
			total += parseSockets(string(text))
		}
	}
	return total
}

// parseSockets reads "TCP: inuse 5 orphan 0 …" and "TCP6: inuse 3".
func parseSockets(text string) (total int) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) > 2 && (f[0] == "TCP:" || f[0] == "TCP6:") && f[1] == "inuse" {
			n, _ := strconv.Atoi(f[2]) // what is no number counts for nothing
			total += n
		}
	}
	return total
}

// readNumber reads a file of one number, 0 if there is none.
func readNumber(name string) int {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}
