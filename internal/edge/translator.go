package edge

import (
	"log/slog"
	"slices"

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

// startTranslator puts the translator in its place. The edge, whose clock and keys
// are set, sends nothing to it yet.
func startTranslator(c *config.Edge, o Options, agent *dataplane.Edge) (*translator, error) {
	if !slices.ContainsFunc(c.Services, policy.Service.Proxied) {
		return nil, nil
	}
	pins, err := dataplane.OpenPins(o.Pins, dataplane.ProxyAgent)
	if err != nil {
		return nil, err
	}
	t := &translator{pins: pins, log: o.Log}
	if t.proxy, err = dataplane.LoadProxy(pins, agent, config.DefaultRecent); err != nil {
		pins.Close()
		return nil, err
	}
	return t, t.proxy.Attach(pins)
}

// keep takes off what an earlier daemon has left where nothing is proxied now.
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

func (t *translator) close() {
	if t != nil {
		t.proxy.Close()
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
