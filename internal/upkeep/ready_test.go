package upkeep

import (
	"bytes"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReadyTellsTheServiceManager(t *testing.T) {
	address := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"}
	manager, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", address.Name)
	Ready(slog.New(slog.DiscardHandler))
	if err := manager.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64)
	n, err := manager.Read(got)
	if err != nil || string(got[:n]) != "READY=1" {
		t.Errorf("%q, %v", got[:n], err)
	}
}

func TestReadyIsLoggedWithOrWithoutAServiceManager(t *testing.T) {
	for socket, warnings := range map[string]int{"": 0, filepath.Join(t.TempDir(), "nobody"): 1} {
		t.Setenv("NOTIFY_SOCKET", socket)
		var log bytes.Buffer
		Ready(slog.New(slog.NewTextHandler(&log, nil)), "services", 3)
		if !strings.Contains(log.String(), "msg=ready services=3") || strings.Count(log.String(), "level=WARN") != warnings {
			t.Errorf("%q: %s", socket, &log)
		}
	}
}
