package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
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

func greet(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "served\n") // a client that has gone is its own affair
}
