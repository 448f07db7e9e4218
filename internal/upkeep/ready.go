package upkeep

import (
	"fmt"
	"log/slog"
	"net"
	"os"
)

// Ready logs that the agent protects, and tells the service manager, if one waits
// for it.
func Ready(log *slog.Logger, attributes ...any) {
	log.Info("ready", attributes...)
	if err := notify("READY=1"); err != nil {
		log.Warn(err.Error())
	}
}

// notify is sd_notify(3).
func notify(state string) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}
