package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"
)

// HTTPPort is where the lab's server listens.
const HTTPPort = 80

// Serve is the lab's protected service: HTTP over both families. It logs that
// it is ready and serves until the context ends.
func Serve(ctx context.Context, log *slog.Logger) error {
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the kernel refuses to adopt cookies for MPTCP
	listener, err := config.Listen(ctx, "tcp", fmt.Sprintf(":%d", HTTPPort))
	if err != nil {
		return fmt.Errorf("listen for HTTP: %w", err)
	}
	server := &http.Server{
		Handler:           http.HandlerFunc(greet),
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	log.Info("ready", "address", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// bodyLimit bounds what a client may ask for.
const bodyLimit = 1 << 40

// body is sent again and again.
var body = make([]byte, 64<<10)

// greet answers in a word, or in as many bytes as the path asks for.
func greet(w http.ResponseWriter, r *http.Request) {
	size := r.URL.Path[1:]
	if size == "" {
		w.Header().Set("Content-Length", "7")
		_, _ = io.WriteString(w, "served\n") // a client that has gone is its own affair
		return
	}
	n, err := strconv.ParseUint(size, 10, 64)
	if err != nil || n > bodyLimit {
		http.Error(w, fmt.Sprintf("no page but / and /0 to /%d, bytes", bodyLimit), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatUint(n, 10))
	for n > 0 {
		sent, err := w.Write(body[:min(n, uint64(len(body)))])
		if err != nil {
			return
		}
		n -= uint64(sent)
	}
}
