package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
)

// The lab's children are the program itself, called as
// "smartcookie lab child serve", "… lab child load JSON" and "… wire JSON".
const (
	childCommand = "lab"
	childGroup   = "child"
	childServe   = "serve"
	childLoad    = "load"
	childWire    = "wire"

	childAnswer   = "answer"
	childTransact = "transact"
)

// IsChild tells whether a program was started as a child of a lab: a test
// binary that is its own executable asks this in TestMain and calls RunChild.
func IsChild(args []string) bool {
	return len(args) > 3 && args[1] == childCommand && args[2] == childGroup
}

// RunChild is the life of a child; args begin with its kind.
func RunChild(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == childServe:
		return Serve(ctx, slog.New(slog.NewTextHandler(stderr, nil)))
	case len(args) == 2 && args[0] == childLoad:
		var options LoadOptions
		if err := json.Unmarshal([]byte(args[1]), &options); err != nil {
			return fmt.Errorf("read the load: %w", err)
		}
		return RunLoad(ctx, options, stdout)
	case len(args) == 1 && args[0] == childAnswer:
		return Answer(ctx, slog.New(slog.NewTextHandler(stderr, nil)))
	case len(args) == 2 && args[0] == childTransact:
		var options TransactionOptions
		if err := json.Unmarshal([]byte(args[1]), &options); err != nil {
			return fmt.Errorf("read the transactions: %w", err)
		}
		return RunTransactions(ctx, options, slog.New(slog.NewTextHandler(stderr, nil)))
	case len(args) == 2 && args[0] == childWire:
		return runWire(ctx, args[1], slog.New(slog.NewTextHandler(stderr, nil)))
	}
	return fmt.Errorf("no such child of a lab: %q", args)
}

// StartServer starts the lab's HTTP server.
func (l *Lab) StartServer(ctx context.Context) (*Process, error) {
	return l.Start(ctx, l.Server.Namespace, "http", childCommand, childGroup, childServe)
}

// StartServerAt starts it in another namespace, on the CPU of LoadCPU.
func (l *Lab) StartServerAt(ctx context.Context, at *Namespace) (*Process, error) {
	return l.startOn(ctx, []int{l.LoadCPU()}, at, "http", childCommand, childGroup, childServe)
}
