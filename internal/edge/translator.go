package edge

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"smartcookie/internal/config"
	"smartcookie/internal/dataplane"
	"smartcookie/internal/policy"
)

// translator is the daemon's side of what the edge proxies; nil where there is
// nothing of that kind.
type translator struct {
	proxy *dataplane.Proxy
	pins  *dataplane.Pins
	log   *slog.Logger
	ticks int
}

// checkForwarding refuses a router whose kernel forwards nothing: what is proxied
// goes through it.
func checkForwarding(c *config.Edge) error {
	if c.Forward != "route" {
		return nil
	}
	for i := range c.Services {
		for _, prefix := range c.Services[i].Prefixes {
			family := "ipv6"
			if prefix.Addr().Is4() {
				family = "ipv4"
			}
			for _, port := range slices.Concat(c.Outside, c.Inside) {
				if c.Services[i].Proxied() && !Forwards(family, port.Name) {
					return c.AtStrategy(i, fmt.Errorf("strategy proxy needs the kernel's forwarding: sysctl net.%s.conf.%s.forwarding=1", family, port.Name))
				}
			}
		}
	}
	return nil
}

// Forwards says whether the kernel forwards what comes in by a device. What cannot
// be read shows when it is used.
func Forwards(family, device string) bool {
	value, err := os.ReadFile(filepath.Join("/proc/sys/net", family, "conf", device, "forwarding"))
	return err != nil || strings.TrimSpace(string(value)) != "0"
}

// startTranslator puts the translator in its place, or in that of a former one. The
// edge, whose clock and keys are set, sends nothing to it yet.
func startTranslator(c *config.Edge, o Options, agent *dataplane.Edge, former *translator) (t *translator, err error) {
	if !slices.ContainsFunc(c.Services, policy.Service.Proxied) {
		return nil, nil
	}
	t = &translator{log: o.Log}
	if former != nil {
		t.pins = former.pins
	} else if t.pins, err = dataplane.OpenPins(o.Pins, dataplane.ProxyAgent); err != nil {
		return nil, err
	}
	if t.proxy, err = dataplane.LoadProxy(t.pins, agent, config.DefaultRecent); err != nil {
		if former == nil {
			t.pins.Close()
		}
		return nil, err
	}
	return t, t.proxy.Attach(t.pins)
}

// keep takes off what an earlier one has left where nothing is proxied now.
func (t *translator) keep(root string) error {
	if t != nil {
		return nil
	}
	_, err := dataplane.DetachAgent(root, dataplane.ProxyAgent)
	return err
}

func (t *translator) undo() {
	if t != nil {
		t.proxy.Undo(t.pins)
	}
}

// restore puts the translator back in the place that another was about to take.
func (t *translator) restore() error {
	if t == nil {
		return nil
	}
	return t.proxy.Attach(t.pins)
}

// close lets go of it, but not of pins that are now another's.
func (t *translator) close(other *translator) {
	if t == nil {
		return
	}
	t.proxy.Close()
	if other == nil || other.pins != t.pins {
		t.pins.Close()
	}
}

// sweepTicks is how often connections that are over are removed, in seconds.
const sweepTicks = 5

func (t *translator) tick() {
	if t == nil {
		return
	}
	if err := t.proxy.Remind(); err != nil {
		t.log.Error("servers are not reminded", "error", err)
	}
	if t.ticks++; t.ticks%sweepTicks != 0 {
		return
	}
	if _, _, err := t.proxy.SweepFlows(); err != nil {
		t.log.Error("ended connections are not removed", "error", err)
	}
}
