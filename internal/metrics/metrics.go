// Package metrics answers Prometheus, and nobody else: one path, read at the moment
// of the question, of a daemon that goes on whatever becomes of the answer.
package metrics

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

// Path is where metrics are. There is nothing else.
const Path = "/metrics"

// The bounds of what others can have us hold.
const (
	connectionsMost = 16
	scrapesMost     = 2
	headerBytesMost = 8 << 10
	readLimit       = 5 * time.Second
	scrapeLimit     = 8 * time.Second // below Prometheus' usual 10 s
	writeLimit      = 15 * time.Second
	idleLimit       = 2 * time.Minute // longer than between two scrapes
)

// Listener is a port that does not answer yet; nil where none is configured.
type Listener struct {
	listener  net.Listener
	log       *slog.Logger
	collector *collector
	server    *http.Server
	done      chan struct{}
}

// Listen takes the port, so that a wrong one shows before anything is attached. The
// zero address takes none.
func Listen(at netip.AddrPort, log *slog.Logger) (*Listener, error) {
	if !at.IsValid() {
		return nil, nil
	}
	tcp, err := net.Listen("tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	return &Listener{listener: netutil.LimitListener(tcp, connectionsMost), log: log}, nil
}

// Show answers with these from now on, until Close. A daemon whose agent gives its
// place to another one shows anew.
func (l *Listener) Show(s Sources) {
	if l == nil {
		return
	}
	if l.collector != nil {
		l.collector.show(s)
		return
	}
	l.collector = newCollector(s, l.log)
	l.server, l.done = newServer(newHandler(l.collector)), make(chan struct{})
	l.log.Info("metrics", "address", l.listener.Addr().String(), "path", Path)
	go func() {
		defer close(l.done)
		_ = l.server.Serve(l.listener) // until Close
	}()
}

// Close gives the port up.
func (l *Listener) Close() {
	if l == nil {
		return
	}
	l.listener.Close()
	if l.server != nil {
		l.server.Close()
		<-l.done
	}
}

func newServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, MaxHeaderBytes: headerBytesMost, DisableGeneralOptionsHandler: true,
		ReadTimeout: readLimit, WriteTimeout: writeLimit, IdleTimeout: idleLimit,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // what strangers send is no news
	}
}

// newHandler answers for metrics and says no to all else.
func newHandler(c *collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return only(promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapesMost, Timeout: scrapeLimit,
	}))
}

// only lets through what asks for metrics.
func only(metrics http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.URL.Path != Path {
			http.Error(w, "nothing but "+Path, http.StatusNotFound)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		metrics.ServeHTTP(w, r)
	})
}
