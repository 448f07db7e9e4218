package metrics

import (
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"smartcookie/internal/dataplane"
	"smartcookie/internal/keys"
)

// Sources are what a daemon has to show.
type Sources struct {
	Pins   string
	Agents []string // of this daemon
	Epochs uint64   // for which it keeps keys in the kernel; 0: the kernel makes them
	Clocks func() keys.Reading

	Skews  func() map[uint32]time.Duration // of peers' clocks; nil: there are none
	Tables map[string]func() []dataplane.Occupancy
}

// collector reads everything anew at each scrape, one scrape at a time.
type collector struct {
	log *slog.Logger

	mu      sync.Mutex
	sources Sources
	broken  map[string]bool // parts that could not be read the last time
}

func newCollector(s Sources, log *slog.Logger) *collector {
	return &collector{sources: s, log: log, broken: make(map[string]bool)}
}

func (c *collector) show(s Sources) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources = s
}

// Describe lists all families: a registry refuses what is declared twice.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, f := range families {
		to <- f.desc
	}
}

// Collect reads part by part. A part that fails leaves the others alone.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	emitBuild(to)
	for _, agent := range c.sources.Agents {
		s := &scrape{to: to, sources: &c.sources, agent: agent, survey: dataplane.NewSurvey(c.sources.Pins, agent)}
		if agent == dataplane.ProxyAgent && !s.survey.Attached() {
			continue // nothing is proxied
		}
		for _, p := range parts {
			if p.of(agent) {
				c.run(s, p)
			}
		}
	}
}

func (c *collector) run(s *scrape, p part) {
	begin := time.Now()
	err := p.read(s)
	s.emit(scrapeDuration, time.Since(begin).Seconds(), p.name)
	s.emit(scrapeSuccess, number(err == nil), p.name)
	c.report(s.agent+"/"+p.name, err)
}

// report says once that a part fails, and once that it no longer does.
func (c *collector) report(what string, err error) {
	if (err != nil) == c.broken[what] {
		return
	}
	c.broken[what] = err != nil
	if err != nil {
		c.log.Warn("metrics are incomplete", "part", what, "error", err)
		return
	}
	c.log.Info("metrics are complete again", "part", what)
}

// scrape is one agent in one scrape.
type scrape struct {
	to      chan<- prometheus.Metric
	sources *Sources
	agent   string
	survey  *dataplane.Survey
}

// emit hands out a value; the agent is the first label of all.
func (s *scrape) emit(f *family, value float64, labels ...string) {
	emit(s.to, f, value, append([]string{s.agent}, labels...)...)
}

// oneOf hands out 1 for one of some names, and 0 for the others.
func (s *scrape) oneOf(f *family, names []string, holds func(string) bool, labels ...string) {
	for _, name := range names {
		s.emit(f, number(holds(name)), append(labels, name)...)
	}
}

func emit(to chan<- prometheus.Metric, f *family, value float64, labels ...string) {
	for i := range labels { // names are an operator's
		labels[i] = strings.ToValidUTF8(labels[i], "\ufffd")
	}
	to <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func emitBuild(to chan<- prometheus.Metric) {
	version, revision, toolchain := "unknown", "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version, toolchain = info.Main.Version, info.GoVersion
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				revision = setting.Value
			}
		}
	}
	emit(to, buildInfo, 1, version, revision, toolchain)
}
